"""Groups of sessions that agents lease: of a dataset's row, or of a prompt of their own."""

import time
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from headrace.wording import predicate
from services.contracts.config import RLConfig, parse_config
from services.contracts.config.episodes import Sessions
from services.contracts.records import RunRecord
from services.contracts.rows.dataset import Row
from services.contracts.rows.rendering import compose
from services.contracts.rows.task import TaskPosition
from services.contracts.sessions import session_id
from services.datasets.row_checks import DatasetError, check_prompt
from services.gateway.dependencies import Deps, RunDep
from services.gateway.sessions.admission import (
    later,
    most_bytes,
    most_session_bytes,
    serving_versions,
)
from services.http import Problem, responses
from services.runtime.api_key import digest, new_key
from services.store.agents.sessions import Opened

router = APIRouter(tags=["sessions"])

LOST = ("lapsed", "released", "stale", "failed", "gone")
"""A group that has come to this end is not trained: its client may send its prompt again."""
OVER = (
    "no group can be leased: the run has ended, or its rows have nothing more to give; its record "
    "says why"
)


class LeasedSession(BaseModel):
    """One session, for one episode of an agent."""

    id: str = Field(description="Its name.")
    base_url: str = Field(description="What an OpenAI client takes as its base URL.")
    key: str = Field(
        description="What it takes as its key. It permits this session's calls, and ends with it."
    )

    @classmethod
    def at(cls, request: Request, id: str, key: str) -> "LeasedSession":
        """Return the session `id` at the address by which the client has reached this gateway."""
        return cls(id=id, base_url=f"{request.base_url}v1/sessions/{id}/v1", key=key)


class LeasedGroup(BaseModel):
    """A dataset row, and a session for each of the group's completions."""

    attempt: str = Field(description="The lease.")
    task: int = Field(description="The task's position in the run's order.")
    row: int = Field(
        description="Index of the dataset row; with a prompt of the client's own, of the row whose "
        "place it takes."
    )
    prompt: str | list[dict[str, Any]] = Field(
        description="Its prompt, with the run's `data.template` and `data.system`."
    )
    answer: Any = Field(description="Its reference answer.")
    columns: dict[str, Any] = Field(description="Its other columns by name.")
    idle_seconds: float = Field(
        description="The sessions are lost when no call of any of them comes for so long."
    )
    sessions: list[LeasedSession] = Field(description="To be played in any order, or at once.")


class OwnPrompt(BaseModel):
    """A prompt that is in no dataset."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"prompt": "2+2", "answer": "4"}}
    )

    prompt: str | list[dict[str, Any]] = Field(
        min_length=1, description="A text, or messages. A text goes into the run's `data.template`."
    )
    answer: Any = Field(
        None, description="The reference, for the run's verifiers, if the client gives no reward."
    )
    columns: dict[str, Any] = Field(
        default_factory=dict, description="What verifiers read besides, by name."
    )
    name: str = Field(
        "",
        max_length=100,
        description="With it the request may be sent again: it returns the same group, with new "
        "keys, and 410 once that has ended. Known for an hour after it was "
        "last asked for; `headrace samples` shows it.",
    )


@router.post(
    "/v1/runs/{run}/groups/lease",
    status_code=HTTPStatus.CREATED,
    operation_id="groups_lease",
    summary="Lease a group of sessions for an agent",
    responses=responses(
        {
            404: "There is no such run",
            409: "The run takes no sessions, or has ended",
            429: "Admission is closed: try again after `Retry-After` seconds",
        }
    ),
)
async def lease(deps: Deps, run: RunDep, request: Request) -> LeasedGroup:
    """Lease the next row of a run with `rollout.episode: sessions`, with a session for each
    completion of its group. The group is completed when its last session ends. It keeps its lease
    while calls come, and is leased again when none does for `idle_seconds`."""
    return await _leased(deps, run, request)


@router.post(
    "/v1/runs/{run}/groups",
    status_code=HTTPStatus.CREATED,
    operation_id="groups_create",
    summary="Lease a group of sessions for a prompt of the client's own",
    responses=responses(
        {
            404: "There is no such run",
            409: "The run takes no sessions or no such prompts, or has ended, or the name is of a "
            "group with another prompt",
            410: "The group of this name has ended",
            422: "The prompt cannot be used",
            429: "Admission is closed: try again after `Retry-After` seconds",
        }
    ),
)
async def bring(deps: Deps, run: RunDep, request: Request, brought: OwnPrompt) -> LeasedGroup:
    """Lease a group for the client's prompt instead of the dataset's. The prompt takes the place of
    the next task in the run's order, so that admission, staleness and the audit count it as any
    other task, once. If its sessions are lost, the task is leased again with the dataset's own row.
    A request with a `name` may be sent again."""
    try:
        check_prompt("the request", brought.prompt)
    except DatasetError as error:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
    row = Row(prompt=brought.prompt, answer=brought.answer, columns=brought.columns)
    return await _leased(deps, run, request, row, brought.name)


@router.post(
    "/v1/runs/{run}/groups/{attempt}/release",
    status_code=HTTPStatus.NO_CONTENT,
    operation_id="groups_release",
    summary="Release a leased group",
    responses=responses({404: "There is no such run, or no such group in it"}),
)
async def release(
    deps: Deps,
    run: RunDep,
    attempt: Annotated[str, Path(description="The group's `attempt`.", max_length=100)],
) -> None:
    """Release an abandoned group: its sessions refuse calls, and its task is leased again at once
    instead of after `idle_seconds`. A group that is done stays done."""
    if not await deps.store.agent_sessions.release_group(run.id, attempt):
        raise Problem(
            HTTPStatus.NOT_FOUND,
            f"run {run.id} has no group {attempt!r}: send the `attempt` of a leased group, which "
            "is known for an hour after its end",
        )


class _Group(NamedTuple):
    """An attempt whose sessions are open, with the key of each session."""

    attempt: str
    opened: Opened
    row: Row
    keys: list[str]


async def _leased(
    deps: Deps, run: RunRecord, request: Request, client_row: Row | None = None, name: str = ""
) -> LeasedGroup:
    config, episode = _agents_config(run, client_row)
    if run.state.ending:
        raise Problem(
            HTTPStatus.CONFLICT, f"run {run.id} {predicate(run.state)}: {run.reason or OVER}"
        )
    group, lost = None, ""
    if client_row is not None and name:
        group, lost = await _again(deps, run, client_row, name)
    if group is None:
        attempt, position = await _granted(deps, run, config, episode)
        try:
            opened = Opened(
                task=str(position),
                row=position.row(config.order_seed),
                samples=config.algorithm.samples_generated,
                leased_at=time.time(),
                idle=episode.idle_seconds,
                max_turns=episode.max_turns,
                client_row=client_row,
                name=name,
            )
            row = client_row or await _row(deps, config.data.dataset, opened.row)
            group = _Group(attempt, opened, row, [new_key() for _ in range(opened.samples)])
            digests, most = [digest(key) for key in group.keys], most_session_bytes(config)
            sessions = deps.store.agent_sessions
            if not await sessions.open(run.id, attempt, opened, digests, lost, most):
                raise later("name")
        except BaseException:
            await deps.store.tasks.release(run.id, [attempt])
            raise
    return LeasedGroup(
        attempt=group.attempt,
        task=TaskPosition.parse(group.opened.task).position,
        row=group.opened.row,
        prompt=compose(group.row, config.data),
        answer=group.row.answer,
        columns=group.row.columns,
        idle_seconds=group.opened.idle,
        sessions=[
            LeasedSession.at(request, session_id(run.id, group.attempt, number), key)
            for number, key in enumerate(group.keys)
        ],
    )


def _agents_config(run: RunRecord, client_row: Row | None) -> tuple[RLConfig, Sessions]:
    """Return the run's config and episode. Raises Problem 409 if its groups cannot be leased, or
    not for a prompt of a client's own."""
    config = parse_config(run.config)
    episode = config.rollout.episode if isinstance(config, RLConfig) else None
    refusal = ""
    if not isinstance(config, RLConfig) or not isinstance(episode, Sessions):
        refusal = "takes no sessions of agents: submit one with rollout.episode: sessions"
    elif config.data.live:
        refusal = (
            "has no dataset, and no groups to lease: applications open its sessions with POST "
            "/v1/runs/RUN/sessions"
        )
    elif client_row is not None and (config.data.filter or config.data.curriculum):
        refusal = (
            "takes no prompts of clients: its data.filter or data.curriculum keeps account of the "
            "dataset's rows; submit one without them"
        )
    else:
        return config, episode
    raise Problem(HTTPStatus.CONFLICT, f"run {run.id} {refusal}")


async def _granted(
    deps: Deps, run: RunRecord, config: RLConfig, episode: Sessions
) -> tuple[str, TaskPosition]:
    """Lease the next task whose row is not filtered. Raises Problem 409 if no task is left,
    429 if admission is closed."""
    serving = await serving_versions(deps.store, run)
    while True:
        granted = await deps.store.tasks.lease(
            run.id,
            worker="agents",
            lineage=run.lineage,
            version=min(serving),
            count=1,
            ttl=episode.idle_seconds,
            reserve_bytes=most_bytes(config),
        )
        if granted.refusal in ("exhausted", "filtered_group"):
            raise Problem(HTTPStatus.CONFLICT, OVER)
        if not granted.leases:
            raise later(granted.refusal)
        (leased,) = granted.leases
        row = leased.position.row(config.order_seed)
        if config.data.filter is None or not await deps.store.tasks.prompt_filtered(
            run.id, str(row)
        ):
            return leased.attempt, leased.position
        detail = f"dataset row {row} (data.filter)"
        await deps.store.tasks.drop(run.id, leased.attempt, "filtered_prompt", detail)


async def _again(
    deps: Deps, run: RunRecord, client_row: Row, name: str
) -> tuple[_Group | None, str]:
    """Return the open group of this name, with new keys. If the group is lost, return None and its
    attempt; if there is none, None and ''. Raises Problem 410 if it has ended, 409 if it has
    another prompt."""
    sessions = deps.store.agent_sessions
    known = await sessions.named(run.id, name)
    if known is None:
        return None, ""
    attempt, state = known
    # A group that has ended is lost as well if nobody hands it in in time.
    opened = await sessions.opened(run.id, attempt) if state in ("", "ended") else None
    if opened is not None:
        if opened.client_row != client_row:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"name: the group {name!r} of this run has another prompt: choose another name",
            )
        keys = [new_key() for _ in range(opened.samples)]
        state = await sessions.reopen(run.id, attempt, name, [digest(key) for key in keys])
        if not state:
            return _Group(attempt, opened, client_row, keys), ""
    if state and state not in LOST:
        raise Problem(HTTPStatus.GONE, f"the group {name!r} has ended ({state})")
    return None, attempt


async def _row(deps: Deps, dataset: str, row: int) -> Row:
    """Return a row of a run's dataset. Raises Problem 409 if the dataset was deleted."""
    record = await deps.store.datasets.find(dataset)
    if record is None:
        raise Problem(HTTPStatus.CONFLICT, f"there is no dataset {dataset!r}")
    return await deps.rows.row(record, row)
