"""Writes answers of Anthropic's Messages API, whole or as server-sent events. Pure."""

import json
from collections.abc import Iterator
from typing import Any

from services.contracts.policy_calls import Piece
from services.contracts.sessions import digest_of
from services.gateway.openai.answers import problem_of, problem_of_error
from services.gateway.openai.errors import anthropic_error

RAW = "__unparsed_arguments__"
"""The key of a call's arguments that are no object of JSON: `input` must be an object, and the call
comes back as it was sampled."""


class MessagesWriter:
    """Writes one answer. `model` names the run, or the version that began the answer."""

    def __init__(self, id: str, created: int, model: str) -> None:
        self._id, self._model = f"msg_{id}", model
        self._index = 0
        self._begun = self._in_text = False

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        """Return the whole answer. The last piece must not be a failure."""
        last, text = pieces[-1], "".join(piece.text for piece in pieces)
        message = last.message or {"content": text}
        return self._message(blocks_of(message), _usage(last)) | _end(last)

    def begin(self) -> Iterator[bytes]:
        """Yield nothing: the first event has the number of the prompt's tokens."""
        yield from ()

    def events(self, piece: Piece) -> Iterator[bytes]:
        """Yield the events of one piece."""
        if not self._begun and piece.visible and (piece.text or piece.failure is None):
            self._begun = True
            end = {"stop_reason": None, "stop_sequence": None}
            empty = self._message([], _usage(piece) | {"output_tokens": 0}) | end
            yield _event("message_start", message=empty)
            yield _event("ping")
        if piece.text:
            if not self._in_text:
                self._in_text = True
                yield self._start({"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": piece.text})
        if piece.message is not None:
            for block in blocks_of(piece.message):
                yield from self._block(block)
        if piece.failure is not None:
            yield from self.failed(problem_of(piece.failure))
        if piece.finish_reason is not None:
            yield from self._finish(piece)

    def failed(self, error: Exception) -> Iterator[bytes]:
        """Yield the event of an answer that breaks off; Anthropic's client raises it."""
        problem = problem_of_error(error)
        yield _event("error", error=anthropic_error(problem.status, problem.detail))

    def _finish(self, piece: Piece) -> Iterator[bytes]:
        if self._in_text:
            yield self._stop()
        elif self._index == 0:
            yield self._start({"type": "text", "text": ""})
            yield self._stop()
        yield _event("message_delta", delta=_end(piece), usage=_usage(piece))
        yield _event("message_stop")

    def _block(self, block: dict[str, Any]) -> Iterator[bytes]:
        match block["type"]:
            case "thinking":
                yield self._start(block | {"thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": block["thinking"]})
                signature = block["signature"]
                yield self._delta({"type": "signature_delta", "signature": signature})
            case "tool_use":
                yield self._start(block | {"input": {}})
                arguments = json.dumps(block["input"])
                yield self._delta({"type": "input_json_delta", "partial_json": arguments})
            case _:
                yield self._start(block | {"text": ""})
                if block["text"]:
                    yield self._delta({"type": "text_delta", "text": block["text"]})
        yield self._stop()

    def _start(self, block: dict[str, Any]) -> bytes:
        return _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _stop(self) -> bytes:
        self._in_text = False
        self._index += 1
        return _event("content_block_stop", index=self._index - 1)

    def _message(self, content: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "usage": usage,
        }


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an assistant's message as blocks: its thought, its text, its calls. Blank text beside
    calls is left out, because Anthropic's clients refuse it."""
    blocks: list[dict[str, Any]] = []
    calls = message.get("tool_calls") or []
    if thought := message.get("reasoning") or message.get("reasoning_content"):
        # A client sends the signature back. It is not read here, and some clients need one.
        signature = digest_of(thought)
        blocks.append({"type": "thinking", "thinking": thought, "signature": signature})
    text = message.get("content") or ""
    if text.strip() or not calls:
        blocks.append({"type": "text", "text": text})
    for call in calls:
        function = call["function"]
        given = _input(function["arguments"])
        block = {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}
        blocks.append(block)
    return blocks


def _input(arguments: str) -> dict[str, Any]:
    """Return a call's arguments as an object. Arguments that are none stand under RAW."""
    try:
        value = json.loads(arguments or "{}")
        # JSON has no NaN, and a client's parser would refuse it.
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return {RAW: arguments}
    if value is None:
        return {}
    return value if isinstance(value, dict) else {RAW: arguments}


def _end(piece: Piece) -> dict[str, Any]:
    calls = (piece.message or {}).get("tool_calls")
    if piece.finish_reason == "length":
        reason = "max_tokens"
    elif calls:
        reason = "tool_use"
    else:
        reason = "stop_sequence" if piece.stop else "end_turn"
    stop = piece.stop if reason == "stop_sequence" else None
    return {"stop_reason": reason, "stop_sequence": stop}


def _usage(piece: Piece) -> dict[str, int]:
    return {
        "input_tokens": piece.prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": piece.sampled_tokens,
    }


def _event(type: str, **data: Any) -> bytes:
    return f"event: {type}\ndata: {json.dumps({'type': type} | data)}\n\n".encode()
