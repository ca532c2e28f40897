"""Sessions that applications open: each is a group of its own, and takes a task only once it has
ended and has its reward.

A session is open until it is ended, or had no call for its idle time; then it waits for a reward,
until its deadline; with a reward it is ready to be leased. In between it holds no task, so that
nobody waits for it. Turns and calls are those of any session (`sessions.py`).

Every call may be made twice: the client repeats one whose reply was lost.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from services.contracts.rows.task import TaskPosition
from services.contracts.sessions import Reward, digest_of, session_of
from services.store.agents.sessions import MAX_BYTES
from services.store.keys import LIVE_PARTS, run_key, sessions_key
from services.store.scripts import StorePart

KEPT_SECONDS = 3600.0
"""How long after its deadline Redis knows of a session."""


@dataclass(frozen=True)
class LiveSession:
    """What a session is opened with."""

    opened_at: float
    idle: float
    """Seconds."""
    reward: float
    """Seconds after its end by which its reward has to come."""
    max_turns: int
    prompt_key: str
    """As of GroupHeader."""
    name: str
    """What the application calls it; ''."""


@dataclass(frozen=True)
class LiveCounts:
    """The live sessions of a run."""

    open: int
    waiting: int
    """Ended, and without a reward."""
    ready: int
    """With a reward, and not handed in."""
    opened: int
    """So far."""
    discarded: int
    """Of these, those whose reward did not come in time, or that were not played."""


class LiveSessions(StorePart):
    """`id` names a session; its attempts are called `ID.TOKEN`."""

    async def open(
        self,
        run: str,
        id: str,
        session: LiveSession,
        key: str,
        most: int,
        max_bytes: int = MAX_BYTES,
    ) -> str:
        """Open a session with this digest of its key, whose turns may weigh `max_bytes`: ''.
        `again`: it was opened before, and has the new key. Else why not: `full` (the run has `most`
        sessions), `run` (it opens none any more), or how the session has ended."""
        # It takes a task only when it is leased; this number is what its calls are seeded with.
        number = int(digest_of(id)[:7], 16)
        fields: dict[str, Any] = {
            "task": str(TaskPosition(number, number, 1, 0)),
            "row": 0,
            "samples": 1,
            "open": 1,
            "leased_at": session.opened_at,
            "idle": int(session.idle * 1000),
            "reward_ms": int(session.reward * 1000),
            "kept": int((session.reward + KEPT_SECONDS) * 1000),
            "max_turns": session.max_turns,
            "max_bytes": max_bytes,
            "prompt_key": session.prompt_key,
            "name": session.name,
        }
        flat = [part for pair in fields.items() for part in pair]
        return str((await self._live("open", run, id, [id, most, key, *flat])).decode())

    async def reward(self, run: str, id: str, reward: Reward) -> Reward | str:
        """Note a session's reward. Returns the one that counts, or why there is none."""
        arguments = [id, msgspec.json.encode(reward), int(reward.reward is not None)]
        refusal, *counts = await self._live("reward", run, id, arguments)
        return msgspec.json.decode(counts[0], type=Reward) if counts else str(refusal.decode())

    async def end(self, run: str, id: str) -> str:
        """End a session: '', or why it could not."""
        return str((await self._live("end", run, id, [id])).decode())

    async def refused(self, run: str, attempt: str) -> tuple[int, bool]:
        """The session of this attempt could not be handed in: it is leased after all others that
        are ready. Returns how often that was so, and whether others were accepted since the first
        time; 0: the attempt is not held."""
        id = session_of(attempt)
        tries, others = await self._live("refused", run, id, [id, attempt])
        return int(tries), bool(others)

    async def sweep(self, run: str) -> int:
        """End sessions that are idle, and discard those whose deadline has passed. Returns how
        many."""
        return int(await self._scripts.run("live_sweep", [sessions_key(run, "")], run=run))

    async def find(self, run: str, id: str) -> LiveSession | None:
        """What a session was opened with; None: nothing is known of it any more."""
        names = ("leased_at", "idle", "reward_ms", "max_turns", "prompt_key", "name")
        found = await self._redis.hmget(sessions_key(run, id), names)
        if None in found:
            return None
        opened, idle, reward, turns, key, name = (value.decode() for value in found)
        times = float(opened), int(idle) / 1000, int(reward) / 1000
        return LiveSession(*times, int(turns), key, name)

    async def counts(self, run: str) -> LiveCounts:
        """How many there are."""
        async with self._redis.pipeline(transaction=True) as pipe:
            for part in LIVE_PARTS:
                pipe.zcard(run_key(run, part))
            pipe.hmget(run_key(run, "order"), "sessions_opened", "sessions_discarded")
            open, waiting, ready, (opened, discarded) = await pipe.execute()
        return LiveCounts(open, waiting, ready, int(opened or 0), int(discarded or 0))

    async def _live(self, name: str, run: str, id: str, arguments: list[Any]) -> Any:
        return await self._scripts.run(f"live_{name}", arguments, run=run, attempt=id)
