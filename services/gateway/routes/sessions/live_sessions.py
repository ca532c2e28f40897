"""Live traffic: sessions that applications open in a run with `data.source: sessions`."""

import time
from http import HTTPStatus

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from headrace.wording import predicate
from services.contracts.config import RLConfig, parse_config
from services.contracts.config.episodes import Sessions
from services.contracts.records import RunRecord
from services.contracts.sessions import live_id, session_id
from services.gateway.dependencies import Deps, RunDep
from services.gateway.routes.sessions.session_groups import LeasedSession
from services.gateway.sessions.admission import most_bytes, most_session_bytes, serving_versions
from services.http import Problem, responses
from services.runtime.api_key import digest, new_key
from services.store.agents.live import LiveSession

router = APIRouter(tags=["sessions"])

MOST = 100_000
"""Most sessions of a run that are open, or wait for a reward or to be trained."""
FULL_SECONDS = 30


class NewSession(BaseModel):
    """A conversation that begins."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"prompt_key": "refunds"}}
    )

    prompt_key: str = Field(
        "",
        max_length=200,
        description="What kind of prompt it is: its reward is compared with those of the same key "
        "(advantage `running_mean`). Empty: with all.",
    )
    name: str = Field(
        "",
        max_length=200,
        description="With it the request may be sent again: it returns the same session, with a "
        "new key, and 410 once that is over.",
    )


class OpenedSession(LeasedSession):
    """A session of an application."""

    idle_seconds: float = Field(description="It ends by itself when no call comes for so long.")
    reward_deadline: float = Field(
        description="Seconds after its end by which its reward has to come."
    )


@router.post(
    "/v1/runs/{run}/sessions",
    status_code=HTTPStatus.CREATED,
    operation_id="sessions_create",
    summary="Open a session of live traffic",
    responses=responses(
        {
            404: "There is no such run",
            409: "The run has a dataset, or has ended",
            410: "The session of this name is over",
            422: "The body cannot be used",
            429: "The run does not run yet, or has too many sessions: try again after "
            "`Retry-After` seconds",
        }
    ),
)
async def open_session(deps: Deps, run: RunDep, request: Request, new: NewSession) -> OpenedSession:
    """Open a session for one conversation of an application, in a run with `data.source: sessions`.
    It is trained once it has ended and its reward has come; both may take hours. Without a reward
    by `data.reward_deadline` it is discarded."""
    config = parse_config(run.config)
    if not isinstance(config, RLConfig) or not config.data.live:
        raise Problem(
            HTTPStatus.CONFLICT,
            f"run {run.id} trains on a dataset: lease a group with POST /v1/runs/RUN/groups/lease, "
            "or submit a run with data.source: sessions",
        )
    episode = config.rollout.episode
    assert isinstance(episode, Sessions)
    if run.state.ending:
        raise _over(run)
    await serving_versions(deps.store, run)
    key, id = new_key(), live_id(new.name)
    reward, turns = config.data.reward_seconds, episode.max_turns
    live = LiveSession(time.time(), episode.idle_seconds, reward, turns, new.prompt_key, new.name)
    most = max(1, min(MOST, config.rollout.stream_bytes // most_bytes(config)))
    outcome = await deps.store.live_sessions.open(
        run.id, id, live, digest(key), most, most_session_bytes(config)
    )
    if outcome == "full":
        raise Problem(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"{most} sessions of this run are open, wait for a reward, or wait to be trained: as "
            "many as fit rollout.stream_bytes. Until there are fewer, ask the policy without a "
            "session: /v1/chat/completions",
            headers={"Retry-After": str(FULL_SECONDS)},
        )
    if outcome == "run":
        # It has ended meanwhile.
        raise _over(await deps.store.runs.get(run.id) or run)
    if outcome not in ("", "again"):
        raise Problem(HTTPStatus.GONE, f"the session {new.name!r} is over ({outcome})")
    session = LeasedSession.at(request, session_id(run.id, id, 0), key)
    return OpenedSession(
        **session.model_dump(), idle_seconds=episode.idle_seconds, reward_deadline=reward
    )


def _over(run: RunRecord) -> Problem:
    return Problem(
        HTTPStatus.CONFLICT,
        f"run {run.id} {predicate(run.state)} and opens no sessions any more: "
        f"{run.reason or 'it is done'}",
    )
