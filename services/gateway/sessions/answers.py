"""From recorded turns to answers of the OpenAI API, whole or as a stream of chunks. Pure.

A stream begins when the turn is recorded: nothing that an agent has read is ever lost.
"""

import json
from collections.abc import Iterator
from typing import Any

from services.contracts.sessions import Turn


def finish_reason(turn: Turn) -> str:
    """Why the answer ended, in OpenAI's words."""
    calls = turn.message.get("tool_calls")
    return "tool_calls" if calls and turn.finish_reason == "stop" else turn.finish_reason


def usage(turn: Turn) -> dict[str, int]:
    """Tokens of prompt and answer."""
    sampled = len(turn.sampled)
    return {
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": turn.prompt_tokens + sampled,
    }


def chat_answer(turn: Turn, id: str, model: str) -> dict[str, Any]:
    """A `chat.completion`."""
    choice = {
        "index": 0,
        "message": turn.message,
        "logprobs": None,
        "finish_reason": finish_reason(turn),
    }
    return _head("chatcmpl", "chat.completion", turn, id, model) | {
        "choices": [choice],
        "usage": usage(turn),
    }


def completions_answer(turn: Turn, id: str, model: str) -> dict[str, Any]:
    """A `text_completion`."""
    choice = {
        "index": 0,
        "text": turn.message["text"],
        "logprobs": None,
        "finish_reason": turn.finish_reason,
    }
    return _head("cmpl", "text_completion", turn, id, model) | {
        "choices": [choice],
        "usage": usage(turn),
    }


def chat_chunks(turn: Turn, id: str, model: str, with_usage: bool) -> Iterator[bytes]:
    """The same as server-sent events."""
    head = _head("chatcmpl", "chat.completion.chunk", turn, id, model)
    said = {name: value for name, value in turn.message.items() if name != "tool_calls"}
    deltas: list[dict[str, Any]] = [said]
    for index, call in enumerate(turn.message.get("tool_calls") or []):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    for delta in deltas:
        yield _event(head, [{"index": 0, "delta": delta, "finish_reason": None}])
    yield _event(head, [{"index": 0, "delta": {}, "finish_reason": finish_reason(turn)}])
    yield from _end(head, turn, with_usage)


def completions_chunks(turn: Turn, id: str, model: str, with_usage: bool) -> Iterator[bytes]:
    """The same as server-sent events."""
    head = _head("cmpl", "text_completion", turn, id, model)
    text = turn.message["text"]
    reason = turn.finish_reason
    yield _event(head, [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}])
    yield from _end(head, turn, with_usage)


def _head(prefix: str, kind: str, turn: Turn, id: str, model: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{id}", "object": kind, "created": turn.created, "model": model}


def _event(head: dict[str, Any], choices: list[dict[str, Any]], **more: Any) -> bytes:
    return b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"


def _end(head: dict[str, Any], turn: Turn, with_usage: bool) -> Iterator[bytes]:
    if with_usage:
        yield _event(head, [], usage=usage(turn))
    yield b"data: [DONE]\n\n"
