"""Play a session's next turn: submit the call, wait for it, and answer in the format of OpenAI's
API.

A stream begins when the turn is recorded: nothing that an agent has read is ever lost.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple

from fastapi.responses import JSONResponse, Response, StreamingResponse

from services.contracts.config import RLConfig, parse_config
from services.contracts.config.episodes import Sessions
from services.contracts.policy_calls import Piece
from services.contracts.sessions import Call, SessionName, Turn, call_id
from services.gateway.openai.answers import TurnRequest, Writer
from services.gateway.openai.bodies import Kind
from services.gateway.openai.errors import SessionProblem, over
from services.gateway.openai.requests import VARIABLES, call_of
from services.gateway.run_readers import Batches, RunReaders
from services.gateway.sessions.histories import (
    beginnings,
    continued,
    is_side_call,
    request_digest,
)
from services.http import CLIENT_GONE
from services.store import Store
from services.store.agents.sessions import AT_ONCE

WAIT_SECONDS = 5.0
"""Seconds of one read of a run's log of calls."""
LOOK_SECONDS = 5.0
"""Seconds between two checks for a client that has left, or for an answer whose news was lost."""
MOST_RUNS = 256
"""Runs whose configs are remembered."""


class Played(NamedTuple):
    """A request's call, its digest, and the turn that answers it."""

    call: Call
    asked: str
    turn: Turn


class Turns:
    """Answers requests for turns: of all sessions whose requests reach this process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readers = RunReaders(self._ended_calls)
        self._configs: dict[str, RLConfig] = {}
        self.close = self._readers.close

    async def answer(
        self, session: SessionName, request: TurnRequest, gone: Callable[[], Awaitable[bool]]
    ) -> Response:
        """Answer a request of `session`, as a whole or as a stream. `gone`: whether the client has
        left. The turn is sampled and recorded even then."""
        played = await self.play(session, request, gone)
        if played is None:
            return Response(status_code=CLIENT_GONE)
        turn = played.turn
        writer = request.writer(played.asked, turn.created, session.run)
        return whole_answer(request, writer, piece_of(turn, request.kind))

    async def play(
        self, session: SessionName, request: TurnRequest, gone: Callable[[], Awaitable[bool]]
    ) -> Played | None:
        """Return the turn that answers a request, or None if the client is `gone`."""
        config = await self._config(session.run)
        variables = {VARIABLES: config.data.chat_template_kwargs}
        call = call_of(request.kind, request.body, config.sampling.model_dump() | variables)
        episode = config.rollout.episode
        assert isinstance(episode, Sessions)
        call.side = is_side_call(call, request.body.get("model"), episode.side_calls)
        asked = request_digest(call)
        turn = await self._played(session, call, asked, gone)
        return None if turn is None else Played(call, asked, turn)

    async def _config(self, run: str) -> RLConfig:
        """Return a run's config. The parts that are read here never change."""
        if run not in self._configs:
            record = await self._store.runs.get(run)
            config = parse_config(record.config) if record else None
            if not (isinstance(config, RLConfig) and isinstance(config.rollout.episode, Sessions)):
                raise SessionProblem(HTTPStatus.NOT_FOUND, f"there is no run {run!r} any more")
            while len(self._configs) >= MOST_RUNS:
                self._configs.pop(next(iter(self._configs)))
            self._configs[run] = config
        return self._configs[run]

    async def _played(
        self, session: SessionName, call: Call, asked: str, gone: Callable[[], Awaitable[bool]]
    ) -> Turn | None:
        """Return the turn that answers `call`, whose digest is `asked`, or None if the client is
        `gone`."""
        sessions = self._store.agent_sessions
        lengths = await sessions.lengths(*session) if call.kind == "completions" else []
        histories = beginnings(call, lengths)
        known = await sessions.known(*session, asked, [digest for _, digest in histories])
        if not known.answered:
            if known.over:
                raise over(known.over)
            call = continued(call, histories, known.turns, known.parents)
        name = call_id(session.attempt, session.number, asked)
        async with self._readers.waiting(session.run, name) as (_, news):
            match await self._ask(session, call, asked):
                case "answered":
                    news.set()
                case "spent":
                    return _spent(call)
            while True:
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await news.wait()
                except TimeoutError:
                    if await gone():
                        return None
                news.clear()
                answer = await sessions.answer_of(*session, asked)
                if isinstance(answer, Turn):
                    return answer
                if isinstance(answer, str):
                    raise over(answer)
                if answer is not None:
                    raise SessionProblem(
                        int(answer["status"]),
                        str(answer["message"]),
                        answer.get("param"),
                        answer.get("code"),
                    )

    async def _ended_calls(self, run: str) -> Batches:
        calls = self._store.agent_calls
        after = await calls.newest("ended", run)
        yield ()
        while True:
            after, ended = await calls.news("ended", run, after, WAIT_SECONDS)
            yield [call for call, _ in ended]

    async def _ask(self, session: SessionName, call: Call, asked: str) -> str:
        """Have a worker take `call`. Returns `waiting`, `answered`, or `spent` if the session has
        no turn left."""
        outcome = await self._store.agent_sessions.call(*session, asked, call)
        if outcome == "busy":
            raise SessionProblem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{AT_ONCE} requests of this session are not answered yet: try again in a moment",
                code="session_busy",
                headers={"Retry-After": "1"},
            )
        if outcome == "stale":
            detail = "its oldest token is more than rollout.max_staleness versions old"
            await self._store.tasks.release(
                session.run, [session.attempt], cause="too_slow", detail=detail
            )
        if outcome not in ("waiting", "answered", "spent"):
            raise over(outcome)
        return outcome


def whole_answer(request: TurnRequest, writer: Writer, piece: Piece) -> Response:
    """Return an answer that is there as a whole, as the request wants it."""
    if request.streams:
        chunks = (*writer.begin(), *writer.events(piece))
        return StreamingResponse(iter(chunks), media_type="text/event-stream")
    return JSONResponse(writer.whole([piece]))


def piece_of(turn: Turn, kind: Kind) -> Piece:
    """Return the whole answer of a turn as one piece."""
    chat = kind == "chat"
    return Piece(
        text="" if chat else turn.message["text"],
        message=turn.message if chat else None,
        finish_reason=turn.finish_reason,
        stop=turn.stop,
        prompt_tokens=turn.prompt_tokens,
        sampled_tokens=len(turn.sampled),
    )


def _spent(call: Call) -> Turn:
    """Return the empty answer to a call for which its session has no turn left. It is not
    recorded."""
    return Turn(
        added=b"",
        token_ids=b"",
        logprobs=b"",
        versions=[],
        finish_reason="length",
        message={"role": "assistant", "content": ""} if call.kind == "chat" else {"text": ""},
        prompt_tokens=0,
        created=int(time.time()),
    )
