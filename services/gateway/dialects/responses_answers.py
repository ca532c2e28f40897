"""Writes answers of OpenAI's Responses API, whole or as server-sent events. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from services.contracts.policy_calls import Piece
from services.gateway.openai.answers import problem_of, problem_of_error

PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
}
"""Keys of a request that its answer repeats, and what stands for those that it lacks."""


def echo_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the answer to a request repeats of it. `body` was checked by `chat_body`."""
    echo = {
        name: body[name] if body.get(name) is not None else usual for name, usual in ECHOED.items()
    }
    if body.get("user") is not None:
        # The schema of OpenAI's API has no null for it.
        echo["user"] = body["user"]
    if echo["service_tier"] == "auto":
        echo["service_tier"] = "default"
    described = {"strict": None, "parameters": None}
    echo["tools"] = [described | tool for tool in body.get("tools") or []]
    conversation = body.get("conversation")
    id = conversation.get("id") if isinstance(conversation, dict) else conversation
    return echo | {"conversation": {"id": id} if id else None, "background": False}


class ResponsesWriter:
    """Writes one answer. `model` names the run, or the version that began the answer; `echo` is
    what it repeats of its request."""

    def __init__(self, echo: dict[str, Any], id: str, created: int, model: str) -> None:
        self._id, self._created, self._model, self._echo = id, created, model, echo
        self._sent = 0
        self._begun = False
        self._output: list[dict[str, Any]] = []
        self._text: dict[str, Any] | None = None
        """The message whose text comes in pieces."""

    def whole(self, pieces: list[Piece]) -> dict[str, Any]:
        """Return the whole answer. The last piece must not be a failure."""
        last, text = pieces[-1], "".join(piece.text for piece in pieces)
        output = output_of(last.message or {"content": text}, self._id, _status(last))
        return self._response(_status(last), output, last)

    def begin(self) -> Iterator[bytes]:
        """Yield nothing: an answer may still be refused."""
        yield from ()

    def events(self, piece: Piece) -> Iterator[bytes]:
        """Yield the events of one piece."""
        if not self._begun and piece.visible and (piece.text or piece.failure is None):
            self._begun = True
            for event in ("created", "in_progress"):
                response = self._response("in_progress", [], None)
                yield self._event(f"response.{event}", response=response)
        if piece.text:
            if self._text is None:
                (item,) = output_of({"content": ""}, self._id, "in_progress")
                self._text = item
                yield from self._open(item, item["content"][0])
            self._text["content"][0]["text"] += piece.text
            yield self._delta(self._text, "output_text", piece.text)
        if piece.message is not None:
            for item in output_of(piece.message, self._id, _status(piece)):
                yield from self._item(item)
        if piece.failure is not None:
            yield from self.failed(problem_of(piece.failure))
        if piece.finish_reason is not None:
            yield from self._finish(piece)

    def failed(self, error: Exception) -> Iterator[bytes]:
        """Yield the event of an answer that breaks off; OpenAI's client raises it."""
        problem = problem_of_error(error).error
        shown = {name: problem[name] for name in ("code", "message", "param")}
        yield self._event("error", **shown, error=problem)

    def _finish(self, piece: Piece) -> Iterator[bytes]:
        status = _status(piece)
        if self._text is not None:
            self._text["status"] = status
            yield from self._close(self._text, self._text["content"][0])
        elif not self._output:
            for item in output_of({"content": ""}, self._id, status):
                yield from self._item(item)
        response = self._response(status, self._output, piece)
        yield self._event(f"response.{status}", response=response)

    def _item(self, item: dict[str, Any]) -> Iterator[bytes]:
        """Yield the events of an item that comes as a whole."""
        if item["type"] == "function_call":
            yield from self._open(item | {"arguments": "", "status": "in_progress"})
            place, arguments = self._place(item), item["arguments"]
            name = "response.function_call_arguments"
            yield self._event(f"{name}.delta", **place, delta=arguments)
            yield self._event(f"{name}.done", **place, arguments=arguments, name=item["name"])
            yield from self._close(item)
            return
        part: dict[str, Any] = item["content"][0]
        yield from self._open(item | {"status": "in_progress"}, part | {"text": ""})
        yield self._delta(item, part["type"], part["text"])
        yield from self._close(item, part)

    def _open(self, item: dict[str, Any], part: dict[str, Any] | None = None) -> Iterator[bytes]:
        empty = item if part is None else item | {"content": []}
        place = {"output_index": len(self._output)}
        yield self._event("response.output_item.added", **place, item=empty)
        if part is not None:
            added = self._place(item) | {"content_index": 0}
            yield self._event("response.content_part.added", **added, part=part)

    def _delta(self, item: dict[str, Any], kind: str, text: str) -> bytes:
        place = self._place(item) | {"content_index": 0}
        return self._event(f"response.{kind}.delta", **place, delta=text, **_logprobs(kind))

    def _close(self, item: dict[str, Any], part: dict[str, Any] | None = None) -> Iterator[bytes]:
        if part is not None:
            place = self._place(item) | {"content_index": 0}
            kind, text = part["type"], part["text"]
            yield self._event(f"response.{kind}.done", **place, text=text, **_logprobs(kind))
            yield self._event("response.content_part.done", **place, part=part)
        index = len(self._output)
        self._output.append(item)
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _place(self, item: dict[str, Any]) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": len(self._output)}

    def _response(
        self, status: str, output: list[dict[str, Any]], piece: Piece | None
    ) -> dict[str, Any]:
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": self._created if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": incomplete,
            "model": self._model,
            "output": output,
            **({} if piece is None else {"usage": _usage(piece)}),
            **self._echo,
        }

    def _event(self, type: str, **data: Any) -> bytes:
        document = {"type": type, "sequence_number": self._sent, **data}
        self._sent += 1
        return f"event: {type}\ndata: {json.dumps(document)}\n\n".encode()


def output_of(message: dict[str, Any], id: str, status: str) -> list[dict[str, Any]]:
    """Return an assistant's message as items of the response `id`: its thought, its text, its
    calls. Blank text beside calls is left out."""
    items: list[dict[str, Any]] = []
    calls = message.get("tool_calls") or []
    if thought := message.get("reasoning") or message.get("reasoning_content"):
        content = [{"type": "reasoning_text", "text": thought}]
        items.append({"type": "reasoning", "summary": [], "content": content})
    text = message.get("content") or ""
    if text.strip() or not calls:
        part: dict[str, Any] = {"type": "output_text", "text": text}
        part |= {"annotations": [], "logprobs": []}
        items.append({"type": "message", "role": "assistant", "content": [part]})
    for call in calls:
        function = call["function"]
        named = {"name": function["name"], "arguments": function["arguments"]}
        items.append({"type": "function_call", "call_id": call["id"], **named})
    return [
        {"id": f"{PREFIXES[item['type']]}_{id}_{at}", **item, "status": status}
        for at, item in enumerate(items)
    ]


def response_of_item(item: str) -> str:
    """Return the id of the response that has the item with this id."""
    return item.partition("_")[2].rpartition("_")[0]


def _status(piece: Piece) -> str:
    return "incomplete" if piece.finish_reason == "length" else "completed"


def _logprobs(kind: str) -> dict[str, Any]:
    return {"logprobs": []} if kind == "output_text" else {}


def _usage(piece: Piece) -> dict[str, Any]:
    return {
        "input_tokens": piece.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": piece.sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": piece.prompt_tokens + piece.sampled_tokens,
    }
