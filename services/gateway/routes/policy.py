"""The policy as an endpoint while it trains: OpenAI's and Anthropic's APIs. The model is a run."""

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from redis.exceptions import RedisError

from services.contracts.openai_models import read_fine_tuned_name
from services.contracts.policy_calls import Piece
from services.contracts.records import RunRecord
from services.contracts.served_models import ModelDemand
from services.gateway.callers import Caller
from services.gateway.dependencies import CallerDep, Dependencies, Deps, find_run
from services.gateway.dialects.bodies import (
    ASKED,
    MESSAGES_ANSWERED,
    RESPONSES_ANSWERED,
    AnthropicModels,
    Beta,
    CountAnswer,
    CountRequest,
    MessagesRequest,
    ModelsAskedDep,
    ResponsesRequest,
    anthropic_errors,
)
from services.gateway.dialects.messages_requests import chat_body, messages_request
from services.gateway.dialects.responses_requests import responses_request
from services.gateway.openai.answers import TurnRequest, Writer, openai_request, problem_of
from services.gateway.openai.bodies import (
    ChatRequest,
    CompletionsRequest,
    OpenAIAnswer,
    OpenAIModels,
    example_of,
)
from services.gateway.openai.errors import SessionProblem, openai_errors
from services.gateway.openai_jobs.permissions import is_permitted
from services.gateway.policy.asking import Asking, count_tokens
from services.gateway.policy.finished_models import demand_for
from services.gateway.policy.options import count_call, policy_call
from services.gateway.policy.served_models import Asked, names_of, not_found, parse_model
from services.gateway.routes.runs.events import EventStream
from services.http import CLIENT_GONE, Problem
from services.runtime.api_key import digest, shown_key

ERRORS: dict[int | str, str] = {
    400: "An option or a message cannot be used",
    404: "There is no such run, or no such checkpoint; `message` says what is there",
    422: "The body is no JSON object, or a worker cannot load the checkpoint",
    429: "Too many calls: try again after `Retry-After` seconds",
    503: "No worker serves the model yet, or the worker stopped: `message` says what happens. Try "
    "again after `Retry-After` seconds",
}
ANSWERED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream`, server-sent events as the tokens come",
        "model": OpenAIAnswer,
    }
}

router = APIRouter(tags=["policy"], responses=openai_errors(ERRORS))

MODEL = Field(
    None,
    description="`RUN` or `RUN@latest` for the newest version of a run, `RUN@STEP` for the version "
    "after so many steps: one that a worker serves while the run trains, or a kept checkpoint. RUN "
    "is an id, the beginning of one, or a name. Also `ft:BASE:ORG:SUFFIX:ID`.",
)
TEMPERATURE = Field(
    None,
    description="Also `top_p`, `top_k`, `min_p` and penalties. Default: those that the run samples "
    "with.",
)


class PolicyChatRequest(ChatRequest):
    """A request of OpenAI's chat completions, to a run's policy."""

    model_config = example_of({"model": "grpo", "messages": [{"role": "user", "content": "2+2?"}]})

    model: Any = MODEL
    temperature: Any = TEMPERATURE


class PolicyCompletionsRequest(CompletionsRequest):
    """A request of OpenAI's completions, to a run's policy."""

    model_config = example_of({"model": "grpo", "prompt": "2+2="})

    model: Any = MODEL
    temperature: Any = TEMPERATURE


class PolicyCountRequest(CountRequest):
    """A request whose tokens are counted, to a run's policy."""

    model_config = example_of({"model": "grpo", "messages": ASKED})

    model: Any = MODEL


class PolicyResponsesRequest(ResponsesRequest):
    """A request of OpenAI's Responses API, to a run's policy."""

    model_config = example_of({"model": "grpo", "input": "2+2?"})

    model: Any = MODEL
    temperature: Any = TEMPERATURE


class PolicyMessagesRequest(MessagesRequest):
    """A request of Anthropic's Messages API, to a run's policy."""

    model_config = example_of({"model": "grpo", "max_tokens": 100, "messages": ASKED})

    model: Any = MODEL
    temperature: Any = TEMPERATURE


@router.get("/v1/models", operation_id="models_list", summary="Policies that can be asked")
async def models(
    deps: Deps, caller: CallerDep, asked: ModelsAskedDep
) -> OpenAIModels | AnthropicModels:
    """The runs whose policy a worker serves now, and the versions of each that can be asked for. A
    request with the header `anthropic-version` gets the list in the form of Anthropic's API."""
    every = await deps.store.runs.live()
    live = [run for run in every if run.kind == "rl" and caller.sees(run.project)]
    workers = await deps.store.workers.list() if live else []
    names = [(name, int(run.created)) for run in live for name in names_of(run, workers)]
    return asked.listed(dict(names))


@router.post(
    "/v1/chat/completions",
    operation_id="chat_completions_create",
    summary="Ask the model of a run",
    responses=ANSWERED,
    response_model=None,
)
async def chat(deps: Deps, http: Request, request: PolicyChatRequest) -> Response:
    """OpenAI's chat completions, answered by the policy that a run trains, or by a checkpoint of a
    run. Training comes first, and these calls are not trained. The `model` of the answer names the
    version that began it. The model's chat template writes the prompt; the run's `data.template`
    and `data.system` are not added."""
    return await answer(deps, http, openai_request("chat", request.given()))


@router.post(
    "/v1/completions",
    operation_id="completions_create",
    summary="Have the model of a run continue a text",
    responses=ANSWERED,
    response_model=None,
)
async def completions(deps: Deps, http: Request, request: PolicyCompletionsRequest) -> Response:
    """OpenAI's completions, of a text or of token ids, without a chat template."""
    return await answer(deps, http, openai_request("completions", request.given()))


@router.post(
    "/v1/messages",
    operation_id="messages_create",
    summary="Ask a run's policy, by Anthropic's API",
    responses=anthropic_errors(ERRORS) | MESSAGES_ANSWERED,
    response_model=None,
)
async def messages(
    deps: Deps, http: Request, request: PolicyMessagesRequest, _beta: Beta = None
) -> Response:
    """Anthropic's Messages, answered as `/v1/chat/completions` answers the same messages."""
    return await answer(deps, http, messages_request(request.given()))


@router.post(
    "/v1/messages/count_tokens",
    operation_id="messages_count",
    summary="Count a prompt's tokens, by Anthropic's API",
    responses=anthropic_errors(ERRORS),
)
async def count(
    deps: Deps, http: Request, request: PolicyCountRequest, _beta: Beta = None
) -> CountAnswer:
    """The number of tokens of the prompt that `/v1/messages` would make. Nothing is sampled."""
    _admit(deps, http)
    body = chat_body(request.given())
    asked = parse_model(body.get("model"))
    run = await asked_run(deps, Caller.of(http.scope), asked)
    call = count_call(body, run.config["data"].get("chat_template_kwargs"))
    call.version = asked.version
    demand = await _demand(deps, run, asked)
    tokens = await count_tokens(deps.store, deps.policy, run, call, demand)
    return CountAnswer(input_tokens=tokens)


@router.post(
    "/v1/responses",
    operation_id="responses_create",
    summary="Ask a run's policy, by OpenAI's Responses API",
    responses=RESPONSES_ANSWERED,
    response_model=None,
)
async def responses(deps: Deps, http: Request, request: PolicyResponsesRequest) -> Response:
    """OpenAI's Responses, answered as `/v1/chat/completions` answers the same messages. Nothing is
    kept: send the whole conversation, or ask in a session, which keeps its responses."""
    return await answer(deps, http, responses_request(request.given()))


def _admit(deps: Dependencies, http: Request) -> None:
    key = shown_key(http.headers)
    deps.policy.admit(digest(key) if key else "")


async def answer(deps: Dependencies, http: Request, request: TurnRequest) -> Response:
    """Answer a request of any API by the model that it names. Raises SessionProblem."""
    _admit(deps, http)
    body = request.body
    asked = parse_model(body.get("model"))
    run = await asked_run(deps, Caller.of(http.scope), asked)
    variables = run.config["data"].get("chat_template_kwargs")
    most = deps.settings.policy_max_tokens
    demand = await _demand(deps, run, asked)
    is_fixed = demand is not None
    call = policy_call(request.kind, body, asked.version, most, variables, is_fixed)
    id = secrets.token_hex(12)
    asking = Asking(deps.store, deps.policy, id)
    responding = False

    async def gone() -> bool:
        # A response that has begun notices it by itself.
        return not responding and await http.is_disconnected()

    pieces = asking.pieces(run, call, gone, demand)
    try:
        begun = await _until(pieces, until_text=True)
        # A client that asks a fine-tuned model reads its name in the answer.
        named = read_fine_tuned_name(str(body.get("model"))) is not None
        writer = request.writer(id, int(time.time()), body["model"] if named else asking.model)
        if not request.streams:
            begun += [] if begun[-1].last else await _until(pieces, until_text=False)
            await pieces.aclose()
            return JSONResponse(writer.whole(begun))
    except BaseException:
        await pieces.aclose()
        raise
    responding = True
    return EventStream(_events(writer, begun, pieces))


async def asked_run(deps: Dependencies, caller: Caller, asked: Asked) -> RunRecord:
    """Return the run that a model's name means. Raises SessionProblem."""
    hidden = not_found(f"there is no run {asked.run[:80]!r}")
    try:
        run = await find_run(deps, asked.run)
    except Problem as problem:
        # The sentence names other runs, which the key of a project does not see.
        raise not_found(problem.detail, problem.status) if caller.sees(None) else hidden from None
    if caller.sees(run.project) or await is_permitted(deps.volume.root, run.id, caller.project):
        return run
    raise hidden


async def _demand(deps: Dependencies, run: RunRecord, asked: Asked) -> ModelDemand | None:
    workers = await deps.store.workers.list(run.pool)
    return await demand_for(deps.volume.root, run, asked, workers)


async def _until(pieces: AsyncGenerator[Piece, None], until_text: bool) -> list[Piece]:
    """Return the pieces up to the first one with text (`until_text`), or up to the last. Raise
    SessionProblem for a failure."""
    begun: list[Piece] = []
    async for piece in pieces:
        begun.append(piece)
        if piece.failure is not None:
            raise problem_of(piece.failure)
        if piece.last or (until_text and piece.visible):
            return begun
    raise SessionProblem(CLIENT_GONE, "the client has gone")


async def _events(
    writer: Writer, begun: list[Piece], pieces: AsyncGenerator[Piece, None]
) -> AsyncIterator[bytes]:
    async with aclosing(pieces):
        for event in writer.begin():
            yield event
        for piece in begun:
            for event in writer.events(piece):
                yield event
        if begun[-1].last:
            return
        try:
            async for piece in pieces:
                for event in writer.events(piece):
                    yield event
        except (SessionProblem, RedisError) as error:
            for event in writer.failed(error):
                yield event
