"""Calls of agents' sessions that wait for a worker or that a worker answers: hashes of a run, and
two streams that wake readers.

Every call may be repeated: the client repeats a call whose reply was lost.
"""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from services.contracts.sessions import Call, SampledTurn, is_live
from services.store.errors import Unreadable
from services.store.keys import run_key
from services.store.scripts import StorePart
from services.store.unreadable import as_text, reading, report

CLAIM_SECONDS = 10.0
"""A worker that has not prolonged a call for this long has lost it."""
HEAD_START_SECONDS = 1.0
"""Seconds for which only the worker that session_call.lua chose may claim a call. That worker
claims its calls every quarter of a second."""

Log = Literal["asked", "ended"]
"""A run's streams of calls: calls that workers should answer, and calls that have ended, for
gateways."""

_call = msgspec.msgpack.Decoder(Call)


def held_in(attempt: str) -> str:
    """Return the part of a run with the session's deadline: of leased attempts, or of live
    sessions."""
    return "sessions_open" if is_live(attempt) else "attempts"


@dataclass(frozen=True)
class Claimed:
    """A call that this worker may answer."""

    id: str
    call: Call

    @property
    def attempt(self) -> str:
        return self.id.split("/")[0]

    @property
    def index(self) -> int:
        """The number of the session; 0 for the end of a group."""
        return int(self.id.split("/")[1])

    @property
    def digest(self) -> str:
        return self.id.split("/")[2]


class AgentCalls(StorePart):
    """Calls of workers about calls of sessions, and of gateways that wait for their end."""

    async def claim(
        self, run: str, worker: str, count: int, held: int = 0, at_once: int = 1
    ) -> list[Claimed]:
        """Claim up to `count` calls to answer. `held` is the number of calls that the worker
        answers already, `at_once` the number that it can answer at the same time."""
        times = [int(CLAIM_SECONDS * 1000), int(HEAD_START_SECONDS * 1000)]
        arguments = [worker, count, *times, held, at_once]
        pairs = await self._scripts.run("session_claim", arguments, run=run)
        return await self._readable(run, list(zip(pairs[::2], pairs[1::2], strict=True)))

    async def asked(self, run: str, calls: list[str]) -> list[Claimed]:
        """Return those of `calls` that have not ended, for the worker that may claim them first.
        The worker does not hold them yet. One read."""
        calls_found = await self._redis.hmget(run_key(run, "calls"), calls)
        pairs = zip(calls, calls_found, strict=True)
        return await self._readable(run, [(id.encode(), call) for id, call in pairs if call])

    async def _readable(self, run: str, pairs: list[tuple[bytes, bytes]]) -> list[Claimed]:
        readable = []
        for id, call in pairs:
            try:
                with reading(f"call {as_text(id)} of run {run}"):
                    readable.append(Claimed(id.decode(), _call.decode(call)))
            except Unreadable as error:
                report(f"run {run}", f"{error}; it is forgotten")
                await self._redis.hdel(run_key(run, "calls"), id, id + b":worker")
                await self._redis.zrem(run_key(run, "calls_due"), id)
        return readable

    async def renew(self, run: str, worker: str, idle: float, calls: list[str]) -> list[str]:
        """Prolong calls, and the leases of their attempts by `idle` seconds. Returns the calls that
        this worker has lost."""
        arguments = [worker, int(CLAIM_SECONDS * 1000), int(idle * 1000), *calls]
        # The sessions of a run are all live, or none is.
        deadlines = held_in(calls[0])
        lost = await self._scripts.run("session_renew", arguments, run=run, deadlines=deadlines)
        return [id.decode() for id in lost]

    async def release(self, run: str, worker: str, calls: list[str]) -> None:
        """Give calls back without an answer, so that any worker may claim them."""
        await self._scripts.run("session_release", [worker, *calls], run=run)

    async def record_turn(
        self,
        run: str,
        worker: str,
        claimed: Claimed,
        sampled: SampledTurn,
    ) -> int | None:
        """Record a turn. Returns the turn's number, −1 if the call was answered before, or None if
        it came too late."""
        turn, history, length, (lineage, version) = sampled
        blob = msgspec.msgpack.encode(turn)
        recorded = [blob, history, turn.parent, length or "", version, lineage]
        done, *number = await self._end(run, worker, claimed, recorded, b"")
        return (number[0] if number else -1) if done else None

    async def fail(self, run: str, worker: str, claimed: Claimed, error: dict[str, Any]) -> bool:
        """Answer a call with an error. The session stays as it is. Returns False if it came too
        late."""
        failure = msgspec.json.encode(error)
        done = await self._end(run, worker, claimed, [b"", "", "", "", 0, ""], failure)
        return bool(done[0])

    async def _end(
        self, run: str, worker: str, claimed: Claimed, recorded: list[Any], failure: bytes
    ) -> list[int]:
        of = [claimed.attempt, claimed.index, claimed.digest, worker]
        arguments = [*of, *recorded, claimed.id, failure]
        attempt = claimed.attempt
        reply: list[int] = await self._scripts.run(
            "session_record_turn", arguments, run=run, attempt=attempt, deadlines=held_in(attempt)
        )
        return reply

    async def newest(self, log: Log, run: str) -> str:
        """Return the place in a run's stream of calls after which `news` begins."""
        newest = await self._redis.xrevrange(run_key(run, f"calls_{log}"), count=1)
        return str(newest[0][0].decode()) if newest else "0"

    async def news(
        self, log: Log, run: str, after: str, wait: float
    ) -> tuple[str, list[tuple[str, str]]]:
        """Return the last place, and (call, the worker that may claim it first or '') of each entry
        after `after`. Waits up to `wait` seconds."""
        key = run_key(run, f"calls_{log}")
        read = await self._redis.xread({key: after}, count=1000, block=max(1, int(wait * 1000)))
        new = read[0][1] if read else []
        entries = [
            (fields[b"call"].decode(), fields.get(b"worker", b"").decode()) for _, fields in new
        ]
        return (new[-1][0].decode() if new else after), entries
