"""Asks models for `score_model`, `label_model` and the metric `cosine`.

A model is asked for JSON with its steps and a `result`, as OpenAI asks. A reply that is the bare
number or label counts too. Any other reply is asked for again, and is then an error: an unreadable
grader proves nothing about the answer.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

from reward.remote_endpoints import Endpoint, EndpointError
from reward.verifiers.base import shown
from reward.verifiers.graders.evaluation import filled
from reward.verifiers.graders.outcome import GraderError, Outcome
from reward.verifiers.graders.shapes import LabelModel, ScoreModel, TextSimilarity

MAX_TOKENS = 1024
"""The longest reply, if the grader names no length."""
_STEPS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"description": {"type": "string"}, "conclusion": {"type": "string"}},
        "required": ["description", "conclusion"],
        "additionalProperties": False,
    },
}


class _UnreadableError(Exception):
    """A reply without a score or a label."""


async def ask_model(
    grader: ScoreModel | LabelModel,
    names: Mapping[str, Any],
    http: httpx.AsyncClient,
    endpoint: Endpoint,
    attempts: int,
) -> Outcome:
    """Return the outcome of a grader that asks a model. Raises GraderError, and MissingError if the
    answer is to blame."""
    body = request_of(grader, names)
    tokens: dict[str, int] = {}
    retrying = AsyncRetrying(
        retry=retry_if_exception_type(_UnreadableError),
        stop=stop_after_attempt(attempts),
        reraise=True,
    )
    try:
        score: float = await retrying(_asked, grader, http, endpoint, body, attempts, tokens)
    except EndpointError as error:
        raise GraderError("model_grader_server_error", str(error)) from None
    except _UnreadableError as error:
        raise GraderError("model_grader_parse_error", str(error)) from None
    return Outcome(score, tokens=tokens)


def request_of(grader: ScoreModel | LabelModel, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request to a model. Raises as `ask_model` does."""
    sampling = grader.sampling_params
    # Servers of open models know no role `developer`.
    messages = [
        {
            "role": "system" if message.role == "developer" else message.role,
            "content": filled(grader, message.content, names),
        }
        for message in grader.input
    ]
    options = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "reasoning_effort": sampling.reasoning_effort,
        "max_completion_tokens": sampling.max_completions_tokens or MAX_TOKENS,
        "model": grader.model.partition("/")[2] or None,
    }
    result = {"type": "number"} if isinstance(grader, ScoreModel) else {"enum": grader.labels}
    schema = {
        "type": "object",
        "properties": {"steps": _STEPS, "result": result},
        "required": ["steps", "result"],
        "additionalProperties": False,
    }
    form = {"name": "grade", "strict": True, "schema": schema}
    return {
        "messages": messages,
        "response_format": {"type": "json_schema", "json_schema": form},
    } | {name: value for name, value in options.items() if value is not None}


async def _asked(
    grader: ScoreModel | LabelModel,
    http: httpx.AsyncClient,
    endpoint: Endpoint,
    body: dict[str, Any],
    attempts: int,
    tokens: dict[str, int],
) -> float:
    reply = await endpoint.ask(http, "/chat/completions", body, attempts)
    try:
        message = reply["choices"][0]["message"]
        refusal, text = message.get("refusal"), message.get("content")
    except (LookupError, TypeError, AttributeError):
        raise _UnreadableError(f"endpoint {endpoint.name!r} answers no chat completion") from None
    usage = reply.get("usage")
    spent = usage.get("total_tokens") if isinstance(usage, dict) else None
    if isinstance(spent, int):
        tokens[grader.model] = tokens.get(grader.model, 0) + spent
    if refusal:
        raise GraderError("model_grader_refusal_error", f"the model refuses: {shown(refusal)}")
    text = text if isinstance(text, str) else ""
    return label_in(text, grader) if isinstance(grader, LabelModel) else score_in(text, grader)


def score_in(text: str, grader: ScoreModel) -> float:
    """Return the score in a model's reply. Raises _UnreadableError for a reply without a score on
    the scale."""
    low, high = grader.range
    value = _result(text)
    try:
        score = math.nan if isinstance(value, bool | list | dict | None) else float(value)
    except (ValueError, OverflowError):
        score = math.nan
    if not low <= score <= high:
        raise _UnreadableError(
            f"model {grader.model!r} gives no number from {low:g} to {high:g}: {shown(text[-80:])}"
        )
    return score


def label_in(text: str, grader: LabelModel) -> float:
    """Return 1 if the label in a model's reply passes, else 0. Raises _UnreadableError for a reply
    without a known label."""
    label = _result(text)
    if label not in grader.labels:
        raise _UnreadableError(
            f"model {grader.model!r} gives none of the labels {', '.join(grader.labels)[:200]}: "
            f"{shown(text[-80:])}"
        )
    return float(label in grader.passing_labels)


def _result(text: str) -> Any:
    """Return the `result` of a reply, or the bare reply."""
    try:
        reply = json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()
    return reply.get("result") if isinstance(reply, dict) else text.strip()


async def cosine(
    grader: TextSimilarity,
    names: Mapping[str, Any],
    http: httpx.AsyncClient,
    endpoint: Endpoint,
    attempts: int,
) -> Outcome:
    """Return the cosine of two texts' embeddings. Raises as `ask_model` does."""
    texts = [filled(grader, text, names) for text in (grader.input, grader.reference)]
    body = {"model": endpoint.name, "input": texts}
    try:
        reply = await endpoint.ask(http, "/embeddings", body, attempts)
        ours, theirs = ([float(x) for x in entry["embedding"]] for entry in reply["data"])
        size = math.hypot(*ours) * math.hypot(*theirs)
        score = sum(x * y for x, y in zip(ours, theirs, strict=True)) / size
    except EndpointError as error:
        raise GraderError("model_grader_server_error", str(error)) from None
    except (LookupError, TypeError, ValueError, ArithmeticError):
        raise GraderError(
            "model_grader_parse_error", f"endpoint {endpoint.name!r} answers no two embeddings"
        ) from None
    return Outcome(score)
