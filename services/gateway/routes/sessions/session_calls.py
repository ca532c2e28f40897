"""The APIs of one session of an agent, OpenAI's and Anthropic's, its reward and its end."""

from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from services.contracts.sessions import SessionName, is_live, parse_session_id
from services.gateway.dependencies import Deps, find_run
from services.gateway.dialects.bodies import (
    MESSAGES_ANSWERED,
    AnthropicModels,
    Beta,
    CountAnswer,
    CountRequest,
    MessagesRequest,
    ModelsAskedDep,
    anthropic_errors,
)
from services.gateway.dialects.messages_requests import chat_body, messages_request
from services.gateway.openai.answers import openai_request
from services.gateway.openai.bodies import (
    ChatRequest,
    CompletionsRequest,
    OpenAIAnswer,
    OpenAIModels,
    RewardRequest,
)
from services.gateway.openai.errors import SessionProblem, openai_errors, over
from services.gateway.policy.asking import count_tokens
from services.gateway.policy.options import count_call
from services.gateway.sessions.rewards import reward_of

ERRORS: dict[int | str, str] = {
    400: "An option or a message cannot be used",
    404: "There is no such session",
    409: "The session takes no such call (any more)",
    422: "The body is no JSON object",
}
ANSWERED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream`, the same as server-sent events",
        "model": OpenAIAnswer,
    }
}

router = APIRouter(
    prefix="/v1/sessions/{session}", tags=["sessions"], responses=openai_errors(ERRORS)
)


class RewardAnswer(BaseModel):
    """The reward that counts: the first one of the session."""

    reward: float | None = Field(description="Null: there is none, and it is not trained.")
    components: dict[str, float] = Field(description="Its parts by name.")
    error: str = Field(description="Why there is none.")


class EndAnswer(BaseModel):
    """The outcome of the session."""

    ended: bool = Field(description="True.")
    turns: int = Field(description="That it had. Without any it is not trained.")


async def _named(
    session: Annotated[str, Path(description="The session's name.", max_length=200)],
) -> SessionName:
    try:
        name = parse_session_id(session)
        if is_live(name.attempt) and name.number > 0:
            raise ValueError("a session of live traffic has no group")
    except ValueError:
        raise SessionProblem(HTTPStatus.NOT_FOUND, f"there is no session {session!r}") from None
    return name


Session = Annotated[SessionName, Depends(_named)]


@router.get(
    "/v1/models", operation_id="session_models_list", summary="The policy, as an OpenAI model"
)
async def models(
    deps: Deps, session: Session, asked: ModelsAskedDep
) -> OpenAIModels | AnthropicModels:
    """One model: the run's policy, in its newest version. A request with the header
    `anthropic-version` gets it in the form of Anthropic's API."""
    if reason := await deps.store.agent_sessions.over(*session):
        raise over(reason)
    return asked.listed({session.run: 0})


@router.post(
    "/v1/chat/completions",
    operation_id="session_chat_completions_create",
    summary="A turn of the session",
    responses=ANSWERED,
    response_model=None,
)
async def chat(deps: Deps, session: Session, request: ChatRequest, http: Request) -> Response:
    """OpenAI's chat completions. A request continues the conversation of the session that its
    messages begin with, or begins one. The same request again gets the recorded answer."""
    return await deps.turns.answer(
        session, openai_request("chat", request.given()), http.is_disconnected
    )


@router.post(
    "/v1/completions",
    operation_id="session_completions_create",
    summary="A turn of the session, as plain text",
    responses=ANSWERED,
    response_model=None,
)
async def completions(
    deps: Deps, session: Session, request: CompletionsRequest, http: Request
) -> Response:
    """OpenAI's completions, of a text or of token ids. A request continues the longest text of the
    session that its prompt begins with, or begins one."""
    return await deps.turns.answer(
        session, openai_request("completions", request.given()), http.is_disconnected
    )


@router.post(
    "/v1/messages",
    operation_id="session_messages_create",
    summary="A turn of the session, by Anthropic's API",
    responses=anthropic_errors(ERRORS) | MESSAGES_ANSWERED,
    response_model=None,
)
async def messages(
    deps: Deps, session: Session, request: MessagesRequest, http: Request, _beta: Beta = None
) -> Response:
    """Anthropic's Messages. A request continues the conversation of the session that its messages
    begin with, or begins one, whichever API the earlier turns came by."""
    asked = messages_request(request.given())
    return await deps.turns.answer(session, asked, http.is_disconnected)


@router.post(
    "/v1/messages/count_tokens",
    operation_id="session_messages_count",
    summary="Count a prompt's tokens, by Anthropic's API",
    responses=anthropic_errors(ERRORS),
)
async def count(
    deps: Deps, session: Session, request: CountRequest, _beta: Beta = None
) -> CountAnswer:
    """The number of tokens of these messages in the chat template. It is no turn: nothing is
    sampled. The prompt of a later turn has the tokens that were sampled, which may be others."""
    if reason := await deps.store.agent_sessions.over(*session):
        raise over(reason)
    deps.policy.admit(f"{session.run}-{session.attempt}-{session.number}")
    run = await find_run(deps, session.run)
    call = count_call(chat_body(request.given()), run.config["data"].get("chat_template_kwargs"))
    return CountAnswer(input_tokens=await count_tokens(deps.store, deps.policy, run, call))


@router.post("/reward", operation_id="sessions_reward", summary="What a session has earned")
async def reward(deps: Deps, session: Session, request: RewardRequest) -> RewardAnswer:
    """`{"reward": 0.5}`, or `{"components": {"format": 0.2, "right": 1}}`, whose sum is the reward,
    or `{"reward": null, "error": "the tool broke"}`: the session is then not trained. The first one
    counts. A session without any is scored by the run's verifiers, by its last answer; one that an
    application has opened waits for it until `data.reward_deadline`."""
    reward = reward_of(request.given())
    if is_live(session.attempt):
        counts = await deps.store.live_sessions.reward(session.run, session.attempt, reward)
    else:
        counts = await deps.store.agent_sessions.reward(*session, reward)
    if isinstance(counts, str):
        raise over(counts)
    return RewardAnswer(**msgspec.structs.asdict(counts))


@router.post("/end", operation_id="sessions_end", summary="End a session")
async def end(deps: Deps, session: Session) -> EndAnswer:
    """The session takes no calls any more. With the last one of its group, the group is scored and
    completed. Ending it again changes nothing."""
    turns = await deps.store.agent_sessions.turn_count(*session)
    if is_live(session.attempt):
        refusal = await deps.store.live_sessions.end(session.run, session.attempt)
    else:
        refusal = await deps.store.agent_sessions.end(*session)
    if refusal:
        raise over(refusal)
    return EndAnswer(ended=True, turns=turns)
