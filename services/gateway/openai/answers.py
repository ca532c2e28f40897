"""Writes answers of OpenAI's API, whole or as server-sent events, from the pieces of an answer.
Pure.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

from services.contracts.policy_calls import Failure, Piece
from services.gateway.openai.bodies import Kind
from services.gateway.openai.errors import SessionProblem
from services.gateway.openai.requests import with_usage


class Writer(Protocol):
    """Writes one answer in the form of one API."""

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        """Return the whole answer. The last piece must not be a failure."""

    def begin(self) -> Iterator[bytes]:
        """Yield the events that come before the first piece."""

    def events(self, piece: Piece) -> Iterator[bytes]:
        """Yield the events of one piece."""

    def failed(self, error: Exception) -> Iterator[bytes]:
        """Yield the event of an answer that breaks off."""


@dataclass(frozen=True)
class TurnRequest:
    """A client's request as one of chat completions or completions, whichever API it came by."""

    kind: Kind
    body: Mapping[str, Any]
    writer: Callable[[str, int, str], Writer]
    """Makes the writer of the answer from its id, its time and its model."""

    @property
    def streams(self) -> bool:
        """Whether the answer comes as server-sent events."""
        return bool(self.body.get("stream"))


def openai_request(kind: Kind, body: Mapping[str, Any]) -> TurnRequest:
    """Return a request of chat completions or completions."""
    return TurnRequest(kind, body, partial(AnswerWriter, kind, usage=with_usage(body)))


class AnswerWriter:
    """Writes one answer. `model` names the run, or the version that began the answer; with `usage`
    a stream ends with its number of tokens."""

    def __init__(self, kind: Kind, id: str, created: int, model: str, usage: bool = False) -> None:
        self._chat = kind == "chat"
        self._id, self._created, self._model = id, created, model
        self._with_usage = usage

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        """Return the whole answer. The last piece must not be a failure."""
        last, text = pieces[-1], "".join(piece.text for piece in pieces)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": _reason(last)}
        if self._chat:
            choice["message"] = last.message or {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return self._head("") | {"choices": [choice], "usage": _usage(last)}

    def begin(self) -> Iterator[bytes]:
        """Yield the events that come before the first piece."""
        if self._chat:
            yield self._event({"delta": {"role": "assistant", "content": ""}})

    def events(self, piece: Piece) -> Iterator[bytes]:
        """Yield the events of one piece."""
        if piece.text:
            choice = {"delta": {"content": piece.text}} if self._chat else {"text": piece.text}
            yield self._event(choice)
        for delta in _deltas(piece.message or {}):
            yield self._event({"delta": delta})
        if piece.failure is not None:
            yield from self.failed(problem_of(piece.failure))
        if piece.finish_reason is not None:
            end: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            yield self._event(end, _reason(piece))
            if self._with_usage:
                yield _line(self._head(".chunk") | {"choices": [], "usage": _usage(piece)})
            yield b"data: [DONE]\n\n"

    def failed(self, error: Exception) -> Iterator[bytes]:
        """Yield the event of an answer that breaks off; OpenAI's client raises it."""
        yield _line({"error": problem_of_error(error).error})

    def _event(self, part: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": reason}
        return _line(self._head(".chunk") | {"choices": [choice]})

    def _head(self, chunk: str) -> dict[str, Any]:
        name = f"chat.completion{chunk}" if self._chat else "text_completion"
        prefix = "chatcmpl" if self._chat else "cmpl"
        return {
            "id": f"{prefix}-{self._id}",
            "object": name,
            "created": self._created,
            "model": self._model,
        }


def problem_of(failure: Failure) -> SessionProblem:
    """Return a failure as the response to a request."""
    headers = {"Retry-After": "1"} if failure.status == 503 else None
    return SessionProblem(failure.status, failure.message, failure.param, failure.code, headers)


def problem_of_error(error: Exception) -> SessionProblem:
    """Return an error within an answer as a response. Any but a SessionProblem is Redis's."""
    away = SessionProblem(HTTPStatus.SERVICE_UNAVAILABLE, "Redis cannot be reached: ask again")
    return error if isinstance(error, SessionProblem) else away


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    delta = {name: value for name, value in message.items() if name not in ("tool_calls", "role")}
    if any(delta.values()):
        yield delta
    for index, call in enumerate(message.get("tool_calls") or []):
        yield {"tool_calls": [{"index": index, **call}]}


def _reason(piece: Piece) -> str | None:
    calls = (piece.message or {}).get("tool_calls")
    return "tool_calls" if calls and piece.finish_reason == "stop" else piece.finish_reason


def _usage(piece: Piece) -> dict[str, int]:
    return {
        "prompt_tokens": piece.prompt_tokens,
        "completion_tokens": piece.sampled_tokens,
        "total_tokens": piece.prompt_tokens + piece.sampled_tokens,
    }


def _line(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"
