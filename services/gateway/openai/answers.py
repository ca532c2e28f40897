"""Writes answers of OpenAI's API, whole or as server-sent events, from the pieces of an answer.
Pure.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import accumulate
from typing import Any, Protocol

from services.contracts.policy_calls import Failure, Piece, TokenScore
from services.gateway.openai.bodies import Kind
from services.gateway.openai.errors import SessionProblem
from services.gateway.openai.requests import choices_of, with_usage


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
    writer = partial(AnswerWriter, kind, usage=with_usage(body), choices=choices_of(body))
    return TurnRequest(kind, body, writer)


class AnswerWriter:
    """Writes one answer of some `choices`. `model` names the run, or the version that began the
    answer; with `usage` a stream ends with its number of tokens."""

    def __init__(
        self,
        kind: Kind,
        id: str,
        created: int,
        model: str,
        usage: bool = False,
        choices: int = 1,
    ) -> None:
        self._chat = kind == "chat"
        self._id, self._created, self._model = id, created, model
        self._with_usage = usage
        self._ends: list[Piece] = []
        self._offsets = [0] * choices

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        """Return the whole answer. The last piece must not be a failure."""
        choices = [
            self._choice(index, [piece for piece in pieces if piece.choice == index])
            for index in range(len(self._offsets))
        ]
        return self._head("") | {"choices": choices, "usage": _usage(pieces)}

    def _choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        last, text = pieces[-1], "".join(piece.text for piece in pieces)
        scores = [score for piece in pieces for score in piece.scores]
        logprobs = self._logprobs(index, scores)
        choice = {"index": index, "logprobs": logprobs, "finish_reason": _reason(last)}
        if self._chat:
            return choice | {"message": last.message or {"role": "assistant", "content": text}}
        return choice | {"text": text}

    def begin(self) -> Iterator[bytes]:
        """Yield the events that come before the first piece."""
        if self._chat:
            for index in range(len(self._offsets)):
                yield self._event(index, {"delta": {"role": "assistant", "content": ""}})

    def events(self, piece: Piece) -> Iterator[bytes]:
        """Yield the events of one piece."""
        index = piece.choice
        if piece.text or piece.scores:
            choice = {"delta": {"content": piece.text}} if self._chat else {"text": piece.text}
            yield self._event(index, choice | {"logprobs": self._logprobs(index, piece.scores)})
        for delta in _deltas(piece.message or {}):
            yield self._event(index, {"delta": delta})
        if piece.failure is not None:
            yield from self.failed(problem_of(piece.failure))
        if piece.finish_reason is not None:
            self._ends.append(piece)
            end: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            yield self._event(index, end | {"finish_reason": _reason(piece)})
            if piece.more:
                return
            if self._with_usage:
                yield _line(self._head(".chunk") | {"choices": [], "usage": _usage(self._ends)})
            yield b"data: [DONE]\n\n"

    def failed(self, error: Exception) -> Iterator[bytes]:
        """Yield the event of an answer that breaks off; OpenAI's client raises it."""
        yield _line({"error": problem_of_error(error).error})

    def _event(self, index: int, part: dict[str, Any]) -> bytes:
        choice = {"index": index, "logprobs": None, "finish_reason": None, **part}
        return _line(self._head(".chunk") | {"choices": [choice]})

    def _logprobs(self, index: int, scores: list[TokenScore]) -> dict[str, Any] | None:
        """Return a choice's next log-probabilities in the form of the API."""
        if not scores:
            return None
        if self._chat:
            content = [
                _scored(score.text, score.logprob)
                | {"top_logprobs": [_scored(*token) for token in score.top]}
                for score in scores
            ]
            return {"content": content, "refusal": None}
        has_top = any(score.top for score in scores)
        ends = list(accumulate((len(s.text) for s in scores), initial=self._offsets[index]))
        self._offsets[index] = ends[-1]
        return {
            "tokens": [score.text for score in scores],
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": [dict(s.top) if s.top else None for s in scores] if has_top else None,
            "text_offset": ends[:-1],
        }

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


def _scored(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode(errors="replace"))}


def _usage(pieces: list[Piece]) -> dict[str, int]:
    prompt = sum(piece.prompt_tokens for piece in pieces)
    sampled = sum(piece.sampled_tokens for piece in pieces)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _line(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"
