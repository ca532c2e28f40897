"""Answers requests of the Responses API in a session, and keeps what later requests name.

A response is kept before its client reads it. The request of a client that has not read it gets the
recorded answer, under the same id.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi.responses import Response

from services.contracts.sessions import SessionName, digest_of
from services.gateway.dialects.responses_answers import ResponsesWriter, echo_of
from services.gateway.dialects.responses_requests import chat_body, messages_of
from services.gateway.openai.answers import TurnRequest
from services.gateway.openai.errors import SessionProblem, over
from services.gateway.openai.requests import refused
from services.gateway.sessions.kept_responses import (
    Kept,
    KeptConversation,
    KeptResponse,
    Messages,
    conversation_entry,
    is_reference,
    items_of,
    named_conversation,
    not_found,
    response_entries,
    response_id,
    talk_entry,
    talks_of,
)
from services.gateway.sessions.turn_requests import Played, Turns, piece_of, whole_answer
from services.http import CLIENT_GONE
from services.store import Store


class Responses:
    """The Responses API of all sessions whose requests reach this process."""

    def __init__(self, store: Store, turns: Turns) -> None:
        self._kept, self._sessions, self._turns = store.kept_responses, store.agent_sessions, turns

    async def create(
        self,
        session: SessionName,
        body: Mapping[str, Any],
        key: str,
        gone: Callable[[], Awaitable[bool]],
    ) -> Response:
        """Answer a request. `key`: its Idempotency-Key, by which a repeated request to a
        conversation is known; `gone`: whether the client has left."""
        conversation, before = named_conversation(body), ""
        earlier: Messages = []
        if _names_kept(body):
            kept = await self._read(session)
            if conversation:
                before = await self._end_of(session, kept, conversation, key)
                earlier = kept.messages(before)
            elif (previous := body.get("previous_response_id")) is not None:
                response = kept.response(previous) if isinstance(previous, str) else None
                if response is None:
                    raise not_found("response", str(previous), "previous_response_id")
                earlier = kept.messages(response.talk)
            body = {**body, "input": kept.with_items(body.get("input"))}
        chat = chat_body(body, earlier)
        echo = echo_of(body)
        request = TurnRequest("chat", chat, partial(ResponsesWriter, echo))
        played = await self._turns.play(session, request, gone)
        if played is None:
            return Response(status_code=CLIENT_GONE)
        begins = 0 if body.get("instructions") is None else 1
        messages = [*played.call.messages[begins:], {"role": "assistant", **played.turn.message}]
        given = len(messages) - 1 - len(earlier)
        talk, id, entries = await self._entries(session, played, messages, given, echo)
        stores = body.get("store") is not False or conversation
        if stores and (
            await self._kept.keep(session, entries, conversation, before, talk) == "elsewhere"
        ):
            raise _continued(
                conversation,
                f"the answer to this one is the response {id}, which is not part of the "
                "conversation",
            )
        writer = ResponsesWriter(echo, id, played.turn.created, session.run)
        return whole_answer(request, writer, piece_of(played.turn, "chat"))

    async def get(self, session: SessionName, id: str) -> dict[str, Any]:
        """Return a response. Raises SessionProblem 404."""
        kept = await self._read(session)
        return kept.shown(id, _response(kept, id))

    async def input_of(self, session: SessionName, id: str) -> list[dict[str, Any]]:
        """Return the items of a response's request. Raises SessionProblem 404."""
        kept = await self._read(session)
        response = _response(kept, id)
        messages = kept.messages(response.talk)[:-1]
        return items_of(messages, response.talk, len(messages) - response.given)

    async def delete(self, session: SessionName, id: str) -> None:
        """Delete a response. Its turn stays. Raises SessionProblem 404."""
        if not await self._kept.forget(session, f"response:{id}"):
            raise not_found("response", id)

    async def begin(
        self, session: SessionName, body: Mapping[str, Any], key: str
    ) -> dict[str, Any]:
        """Begin a conversation, and return it. `key`: as of `create`. Raises SessionProblem."""
        if unknown := sorted(body.keys() - {"items", "metadata"}):
            raise refused(unknown[0][:100], "is unknown: send items or metadata")
        metadata = body.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise refused("metadata", "must be an object")
        messages = messages_of("items", body.get("items") or [])
        await self._require_live(session)
        digest = digest_of([*session, key or time.time_ns()])
        id = f"conv_{digest}"
        talk, entries = talk_entry(messages, "", 0) if messages else ("", {})
        conversation = KeptConversation(int(time.time()), metadata)
        entries |= conversation_entry(id, conversation)
        if await self._kept.keep(session, entries, id, "", talk, are_items=True) == "full":
            raise _full("the conversation was not begun")
        return _shown(id, conversation)

    async def conversation(self, session: SessionName, id: str) -> dict[str, Any]:
        """Return a conversation. Raises SessionProblem 404."""
        conversation = (await self._read(session)).conversation(id)
        if conversation is None:
            raise not_found("conversation", id)
        return _shown(id, conversation)

    async def items(self, session: SessionName, id: str) -> list[dict[str, Any]]:
        """Return all items of a conversation. Raises SessionProblem 404."""
        kept = await self._read(session)
        if kept.conversation(id) is None:
            raise not_found("conversation", id)
        talk = kept.end_of(id)
        return items_of(kept.messages(talk), talk)

    async def add(
        self, session: SessionName, id: str, body: Mapping[str, Any], key: str
    ) -> list[dict[str, Any]]:
        """Add items to a conversation, and return them. `key`: as of `create`. Raises
        SessionProblem."""
        await self._require_live(session)
        kept = await self._read(session)
        if kept.conversation(id) is None:
            raise not_found("conversation", id)
        new = messages_of("items", body.get("items"))
        if not new:
            return []
        before = await self._end_of(session, kept, id, key)
        earlier = kept.messages(before)
        messages = [*earlier, *new]
        talk, entries = talk_entry(messages, before, len(earlier))
        end = kept.end_of(id)
        if end == before or kept.messages(end)[: len(messages)] != messages:
            keeping = await self._kept.keep(session, entries, id, before, talk, are_items=True)
            if keeping == "elsewhere":
                raise _continued(id, "these items were not added: send them again")
            if keeping == "full":
                raise _full("these items were not added")
        return items_of(messages, talk, len(earlier))

    async def end(self, session: SessionName, id: str) -> None:
        """Delete a conversation. Its responses stay. Raises SessionProblem 404."""
        if not await self._kept.forget(session, f"conversation:{id}", f"end:{id}"):
            raise not_found("conversation", id)

    async def _require_live(self, session: SessionName) -> None:
        """Raise SessionProblem 409 for a session that is over or was never there."""
        if reason := await self._sessions.over(*session):
            raise over(reason)

    async def _read(self, session: SessionName) -> Kept:
        return Kept(await self._kept.entries(session), session.run)

    async def _end_of(self, session: SessionName, kept: Kept, conversation: str, key: str) -> str:
        """Return the talk that a request continues. A repeated request continues the same."""
        if kept.conversation(conversation) is None:
            raise not_found("conversation", conversation, "conversation")
        end = kept.end_of(conversation)
        if not key:
            return end
        name = f"tried:{digest_of([conversation, key])}"
        return await self._kept.first(session, name, end)

    async def _entries(
        self,
        session: SessionName,
        played: Played,
        messages: Messages,
        given: int,
        echo: dict[str, Any],
    ) -> tuple[str, str, dict[str, bytes]]:
        """Return the talk and the id of a response, and what is to be kept of it."""
        known = talks_of(messages[:-1])
        present = await self._kept.present(session, [f"talk:{talk}" for _, talk in known])
        size, base = next(
            (talk for talk, is_there in zip(known, present, strict=True) if is_there), (0, "")
        )
        talk, entries = talk_entry(messages, base, size)
        id = response_id(played.asked, talk)
        piece = piece_of(played.turn, "chat")
        response = KeptResponse(talk, given, {}, played.turn.created, piece)
        return talk, id, entries | response_entries(id, response, echo)


def _names_kept(body: Mapping[str, Any]) -> bool:
    given = body.get("input")
    refers = isinstance(given, list) and any(map(is_reference, given))
    names = ("previous_response_id", "conversation")
    return refers or any(body.get(name) is not None for name in names)


def _response(kept: Kept, id: str) -> KeptResponse:
    response = kept.response(id)
    if response is None:
        raise not_found("response", id)
    return response


def _continued(conversation: str, what: str) -> SessionProblem:
    return SessionProblem(
        HTTPStatus.CONFLICT,
        f"another request has continued the conversation {conversation[:100]} meanwhile; {what}",
        "conversation",
        "conversation_locked",
    )


def _full(consequence: str) -> SessionProblem:
    return SessionProblem(
        HTTPStatus.CONFLICT,
        f"this session would have more bytes than its turns may have, so {consequence}: send fewer "
        "or shorter items",
        "items",
    )


def _shown(id: str, conversation: KeptConversation) -> dict[str, Any]:
    about = {"created_at": conversation.created, "metadata": conversation.metadata}
    return {"id": id, "object": "conversation", **about}
