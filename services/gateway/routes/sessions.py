"""The OpenAI API of one session of an agent, its reward and its end."""

from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from services.contracts.sessions import is_live, parse_session_id
from services.gateway.dependencies import Deps
from services.gateway.sessions.bodies import ChatRequest, CompletionsRequest, RewardRequest
from services.gateway.sessions.errors import (
    OpenAIErrorDocument,
    SessionProblem,
    no_responses,
    over,
)
from services.gateway.sessions.requests import reward_of
from services.gateway.sessions.turns import CHAT, COMPLETIONS, Place

router = APIRouter(tags=["sessions"])


class RewardAnswer(BaseModel):
    """The reward that counts: the first one of the session."""

    reward: float | None = Field(description="Null: there is none, and it is not trained.")
    components: dict[str, float] = Field(description="Its parts by name.")
    error: str = Field(description="Why there is none.")


class EndAnswer(BaseModel):
    """The outcome of the session."""

    ended: bool = Field(description="True.")
    turns: int = Field(description="That it had. Without any it is not trained.")


class OpenAIAnswer(BaseModel):
    """An answer as OpenAI's API gives it."""

    id: str = Field(description="Its name.")
    object: str = Field(description="`chat.completion` or `text_completion`.")
    created: int = Field(description="Unix time.")
    model: str = Field(description="The run.")
    choices: list[dict[str, Any]] = Field(description="One.")
    usage: dict[str, int] = Field(description="Tokens of prompt and answer.")


class OpenAIModels(BaseModel):
    """The models of a session."""

    object: str = Field(description="`list`.")
    data: list[dict[str, Any]] = Field(description="One: the run's policy.")


async def _place(
    session: Annotated[str, Path(description="The session's name.", max_length=200)],
) -> Place:
    try:
        place = Place(*parse_session_id(session))
        if is_live(place.attempt) and place.index > 0:
            raise ValueError("one that an application opens is alone")
    except ValueError:
        raise SessionProblem(HTTPStatus.NOT_FOUND, f"there is no session {session!r}") from None
    return place


Session = Annotated[Place, Depends(_place)]
SESSION_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "model": OpenAIErrorDocument}
    for status, text in (
        (400, "An option or a message cannot be used"),
        (404, "There is no such session"),
        (409, "The session takes no such call (any more)"),
        (422, "The body is no JSON object"),
        ("4XX", "What is wrong with the request"),
        ("5XX", "What is wrong here"),
    )
}


ANSWERED: dict[int | str, dict[str, Any]] = SESSION_ERRORS | {
    200: {
        "description": "The answer; with `stream`, the same as server-sent events",
        "model": OpenAIAnswer,
    }
}


@router.get(
    "/v1/sessions/{session}/v1/models",
    summary="The policy, as an OpenAI model",
    responses=SESSION_ERRORS,
)
async def models(deps: Deps, session: Session) -> OpenAIModels:
    """One model: the run's policy, in its newest version."""
    if reason := await deps.store.agent_sessions.over(*session.parts):
        raise over(reason)
    about = {"id": session.run, "object": "model", "created": 0, "owned_by": "headrace"}
    return OpenAIModels(object="list", data=[about])


@router.post(
    "/v1/sessions/{session}/v1/chat/completions",
    summary="A turn of the session",
    responses=ANSWERED,
    response_model=None,
)
async def chat(deps: Deps, session: Session, request: ChatRequest, http: Request) -> Response:
    """OpenAI's chat completions. A request continues the conversation of the session that its
    messages begin with, or begins one. The same request again gets the recorded answer."""
    return await deps.turns.answer(session, request.given(), CHAT, http.is_disconnected)


@router.post(
    "/v1/sessions/{session}/v1/completions",
    summary="A turn of the session, as plain text",
    responses=ANSWERED,
    response_model=None,
)
async def completions(
    deps: Deps, session: Session, request: CompletionsRequest, http: Request
) -> Response:
    """OpenAI's completions, of a text or of token ids. A request continues the longest text of the
    session that its prompt begins with, or begins one."""
    return await deps.turns.answer(session, request.given(), COMPLETIONS, http.is_disconnected)


@router.post("/v1/sessions/{session}/v1/responses", include_in_schema=False)
async def responses() -> Response:
    """Refuse: the Responses API is missing. The message names the API to use instead."""
    raise no_responses()


@router.post(
    "/v1/sessions/{session}/reward",
    summary="What a session has earned",
    responses=SESSION_ERRORS,
)
async def reward(deps: Deps, session: Session, request: RewardRequest) -> RewardAnswer:
    """`{"reward": 0.5}`, or `{"components": {"format": 0.2, "right": 1}}`, whose sum is the reward,
    or `{"reward": null, "error": "the tool broke"}`: the session is then not trained. The first one
    counts. A session without any is scored by the run's verifiers, by its last answer; one that an
    application has opened waits for it until `data.reward_deadline`."""
    given = reward_of(request.given())
    if is_live(session.attempt):
        counts = await deps.store.live_sessions.reward(session.run, session.attempt, given)
    else:
        counts = await deps.store.agent_sessions.reward(*session.parts, given)
    if isinstance(counts, str):
        raise over(counts)
    return RewardAnswer(**msgspec.structs.asdict(counts))


@router.post("/v1/sessions/{session}/end", summary="End a session", responses=SESSION_ERRORS)
async def end(deps: Deps, session: Session) -> EndAnswer:
    """The session takes no calls any more. With the last one of its group, the group is scored and
    completed. Ending it again changes nothing."""
    turns = await deps.store.agent_sessions.turn_count(*session.parts)
    if is_live(session.attempt):
        refusal = await deps.store.live_sessions.end(session.run, session.attempt)
    else:
        refusal = await deps.store.agent_sessions.end(*session.parts)
    if refusal:
        raise over(refusal)
    return EndAnswer(ended=True, turns=turns)
