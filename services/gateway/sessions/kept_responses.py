"""Responses and conversations that a session keeps: what `previous_response_id` and `conversation`
name, in entries that the store keeps with the session.

`talk:ID` has the messages that a response adds to the talk before it; ID is the digest of all of
them, so a client that sends its whole history with each request adds only what is new.
`response:ID` is a response, `shared:ID` its tools or instructions, which many responses have.
`conversation:ID` is a conversation, and `end:ID` the talk that it has come to.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from services.contracts.policy_calls import Piece
from services.contracts.sessions import chat_histories, digest_of
from services.gateway.dialects.responses_answers import (
    ResponsesWriter,
    output_of,
    response_of_item,
)
from services.gateway.openai.errors import SessionProblem
from services.gateway.openai.requests import refused

SHARED = ("instructions", "tools")
"""What of a response is kept once for all that have it."""
Messages = list[dict[str, Any]]


class Talk(msgspec.Struct):
    """The messages that a talk has after the talk `base`."""

    base: str
    messages: list[dict[str, Any]]


class KeptResponse(msgspec.Struct):
    """A response, as it is written again."""

    talk: str
    """Ends with the answer."""
    given: int
    """How many messages before the answer are its request's own."""
    echo: dict[str, Any]
    created: int
    piece: Piece


class KeptConversation(msgspec.Struct):
    created: int
    metadata: dict[str, Any]


def conversation_entry(id: str, conversation: KeptConversation) -> dict[str, bytes]:
    """Return the entry of a conversation."""
    return {f"conversation:{id}": msgspec.msgpack.encode(conversation)}


class Kept:
    """The entries of one session."""

    def __init__(self, entries: Mapping[str, bytes], run: str) -> None:
        self._entries, self._run = entries, run

    def response(self, id: str) -> KeptResponse | None:
        """Return the response with this id, or None."""
        entry = self._entries.get(f"response:{id}")
        return None if entry is None else msgspec.msgpack.decode(entry, type=KeptResponse)

    def conversation(self, id: str) -> KeptConversation | None:
        """Return the conversation with this id, or None."""
        entry = self._entries.get(f"conversation:{id}")
        return None if entry is None else msgspec.msgpack.decode(entry, type=KeptConversation)

    def end_of(self, conversation: str) -> str:
        """Return the talk that a conversation has come to; '' while it has no messages."""
        return self._entries.get(f"end:{conversation}", b"").decode()

    def messages(self, talk: str) -> Messages:
        """Return all messages of a talk."""
        parts: list[Messages] = []
        while talk:
            known = msgspec.msgpack.decode(self._entries[f"talk:{talk}"], type=Talk)
            parts.append(known.messages)
            talk = known.base
        return [message for part in reversed(parts) for message in part]

    def shown(self, id: str, response: KeptResponse) -> dict[str, Any]:
        """Return a response as the API answers it."""
        echo = {
            name: msgspec.json.decode(self._entries[f"shared:{value}"]) if name in SHARED else value
            for name, value in response.echo.items()
        }
        return ResponsesWriter(echo, id, response.created, self._run).whole([response.piece])

    def with_items(self, given: Any) -> Any:
        """Return a request's `input` with items in place of references to them. Raises
        SessionProblem for an item that the session does not have."""
        if not isinstance(given, list):
            return given
        return [
            self._item(f"input[{at}]", item.get("id")) if is_reference(item) else item
            for at, item in enumerate(given)
        ]

    def _item(self, where: str, id: Any) -> dict[str, Any]:
        response = self.response(response_of_item(id)) if isinstance(id, str) else None
        if response is not None:
            message = response.piece.message or {}
            for item in output_of(message, response_of_item(id), "completed"):
                if item["id"] == id:
                    return item
        raise refused(where, f"this session has no item {id!r}: send the item itself"[:300])


def is_reference(item: Any) -> bool:
    """Whether an item only names one of an earlier answer."""
    return isinstance(item, dict) and item.get("type") == "item_reference"


def named_conversation(body: Mapping[str, Any]) -> str:
    """Return the id in `conversation`, '' without one. Raises SessionProblem."""
    conversation = body.get("conversation")
    id = conversation.get("id") if isinstance(conversation, dict) else conversation
    if conversation is None:
        return ""
    if not isinstance(id, str) or not id:
        raise refused("conversation", "must be the id of a conversation")
    if body.get("previous_response_id") is not None:
        raise refused("conversation", "leave it out, or previous_response_id: a request has one")
    return id


def talks_of(messages: Messages) -> list[tuple[int, str]]:
    """Return (messages, id) of the talks that these messages continue, the longest first. A talk
    ends with an answer."""
    ids = chat_histories([], messages)
    ends = [at for at in range(1, len(ids)) if messages[at - 1]["role"] == "assistant"]
    return [(at, ids[at - 1]) for at in reversed(ends)]


def talk_entry(messages: Messages, base: str, size: int) -> tuple[str, dict[str, bytes]]:
    """Return the id of the talk with these messages, and its entry after the talk `base`, which has
    the first `size` of them."""
    id = chat_histories([], messages)[-1]
    return id, {f"talk:{id}": msgspec.msgpack.encode(Talk(base, messages[size:]))}


def response_entries(id: str, response: KeptResponse, echo: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the entries of a response whose answer repeats `echo`."""
    shared = {name: msgspec.json.encode(echo[name]) for name in SHARED}
    digests = {name: digest_of(echo[name]) for name in SHARED}
    response.echo = {**echo, **digests}
    return {f"shared:{digests[name]}": value for name, value in shared.items()} | {
        f"response:{id}": msgspec.msgpack.encode(response)
    }


def response_id(asked: str, talk: str) -> str:
    """Return the id of the response to a request with the digest `asked`, whose messages and answer
    are `talk`. A repeated request has the same."""
    return f"resp_{digest_of([asked, talk])}"


def items_of(messages: Messages, talk: str, first: int = 0) -> list[dict[str, Any]]:
    """Return the messages of a talk from number `first` on as items, with ids of their own."""
    items: list[dict[str, Any]] = []
    for at, message in enumerate(messages[first:], first):
        id = f"{talk}_{at}"
        match message["role"]:
            case "assistant":
                items += output_of(message, id, "completed")
            case "tool":
                output = {"call_id": message["tool_call_id"], "output": _text(message)}
                items.append({"type": "function_call_output", "id": f"fc_{id}", **output})
            case role:
                content = [{"type": "input_text", "text": _text(message)}]
                about = {"role": role, "status": "completed", "content": content}
                items.append({"type": "message", "id": f"msg_{id}", **about})
    return items


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def not_found(kind: str, id: str, param: str | None = None) -> SessionProblem:
    """Return the refusal of an id that the session does not have."""
    status = HTTPStatus.NOT_FOUND if param is None else HTTPStatus.BAD_REQUEST
    code = None if param is None else f"{param.removesuffix('_id')}_not_found"
    message = (
        f"this session has no {kind} {id[:100]!r}: it was deleted, was sent with store: false, or "
        "is another session's"
    )
    return SessionProblem(status, message, param, code)
