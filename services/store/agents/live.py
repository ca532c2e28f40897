"""Live sessions, which applications open. Each is a group of its own, and takes a task only once it
has ended and has its reward.

A session is open until it is ended, or has had no call for its idle time. Then it waits for a
reward until its deadline. With a reward it is ready to be leased. An unleased session holds no
task, so the learner does not wait for it. Its turns and calls are those of any session
(`sessions.py`).

Every call may be repeated: the client repeats a call whose reply was lost.
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
"""How long Redis keeps a session after its deadline."""


@dataclass(frozen=True)
class LiveSession:
    """The settings with which a session is opened."""

    opened_at: float
    idle: float
    """Seconds."""
    reward: float
    """Seconds after its end within which its reward must come."""
    max_turns: int
    prompt_key: str
    """Named like the field of GroupHeader."""
    name: str
    """The application's name for the session, or ''."""


@dataclass(frozen=True)
class LiveCounts:
    """Numbers of live sessions of a run."""

    open: int
    waiting: int
    """Ended, without a reward."""
    ready: int
    """With a reward, not completed."""
    opened: int
    """All sessions so far."""
    discarded: int
    """Opened sessions that ended without a turn, or without a reward in time."""


class LiveSessions(StorePart):
    """Calls about live sessions. `id` names a session; its attempts are called `ID.TOKEN`."""

    async def open(
        self,
        run: str,
        id: str,
        session: LiveSession,
        key: str,
        max_sessions: int,
        max_bytes: int = MAX_BYTES,
    ) -> str:
        """Open a session. `key` is the digest of its key; its turns may take `max_bytes`. Returns
        '', or `again` if it was opened before and now has this key, or why not: `full` (the run has
        `max_sessions` sessions), `run` (it opens none any more), or how the session has ended."""
        # The session takes a task only when it is leased. This number seeds its calls.
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
        return str((await self._live("open", run, id, [id, max_sessions, key, *flat])).decode())

    async def reward(self, run: str, id: str, reward: Reward) -> Reward | str:
        """Record a session's reward. Returns the reward that counts, or the reason for a
        refusal."""
        arguments = [id, msgspec.json.encode(reward), int(reward.reward is not None)]
        refusal, *counts = await self._live("reward", run, id, arguments)
        return msgspec.json.decode(counts[0], type=Reward) if counts else str(refusal.decode())

    async def end(self, run: str, id: str) -> str:
        """End a session. Returns '', or why it could not be ended."""
        return str((await self._live("end", run, id, [id])).decode())

    async def refused(self, run: str, attempt: str) -> tuple[int, bool]:
        """Note that the session of this attempt could not be completed. It is leased after all
        other ready sessions. Returns how often that has happened, and whether any group was
        accepted since the first time; (0, False) if the attempt is not held."""
        id = session_of(attempt)
        tries, others = await self._live("refused", run, id, [id, attempt])
        return int(tries), bool(others)

    async def sweep(self, run: str) -> int:
        """End idle sessions, and discard sessions whose deadline has passed. Returns their
        number."""
        return int(await self._scripts.run("live_sweep", [sessions_key(run, "")], run=run))

    async def find(self, run: str, id: str) -> LiveSession | None:
        """Return the settings of a session, or None for an unknown or expired one."""
        names = ("leased_at", "idle", "reward_ms", "max_turns", "prompt_key", "name")
        values = await self._redis.hmget(sessions_key(run, id), names)
        if None in values:
            return None
        opened, idle, reward, turns, key, name = (value.decode() for value in values)
        times = float(opened), int(idle) / 1000, int(reward) / 1000
        return LiveSession(*times, int(turns), key, name)

    async def counts(self, run: str) -> LiveCounts:
        async with self._redis.pipeline(transaction=True) as pipe:
            for part in LIVE_PARTS:
                pipe.zcard(run_key(run, part))
            pipe.hmget(run_key(run, "order"), "sessions_opened", "sessions_discarded")
            open, waiting, ready, (opened, discarded) = await pipe.execute()
        return LiveCounts(open, waiting, ready, int(opened or 0), int(discarded or 0))

    async def _live(self, name: str, run: str, id: str, arguments: list[Any]) -> Any:
        return await self._scripts.run(f"live_{name}", arguments, run=run, attempt=id)
