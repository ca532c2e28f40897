"""Sessions of agents: for each attempt, a hash with all of its sessions. Their calls, which workers
answer, are in `calls.py`.

Every call may be repeated: the client repeats a call whose reply was lost.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from services.contracts.rows.dataset import Row
from services.contracts.sessions import FINISH, Call, Reward, Turn, call_id, digest_of
from services.store.agents.calls import held_in
from services.store.keys import named_key, sessions_key
from services.store.scripts import StorePart
from services.store.unreadable import as_text, reading

AT_ONCE = 64
"""Calls of one session that may wait or be answered at the same time."""
MAX_BYTES = 1 << 30
"""Default limit for the turns of a session."""
KEPT_SECONDS = 3600.0
"""How long Redis keeps the end of sessions."""

_turn = msgspec.msgpack.Decoder(Turn)


@dataclass(frozen=True)
class Opened:
    """The settings that all sessions of an attempt share."""

    task: str
    """`position:epoch:rows:index`."""
    row: int
    samples: int
    leased_at: float
    idle: float
    """Seconds."""
    max_turns: int
    """Per session."""
    client_row: Row | None = None
    """The row that the client brought instead of the task's row."""
    name: str = ""
    """The client's name for its group."""


@dataclass(frozen=True)
class Known:
    """A session's state, as one request needs it."""

    turns: list[int | None]
    """For each history that the request may continue, the last turn of the conversation with that
    history."""
    parents: list[int]
    """For each turn of the session, the turn that it continues; −1 for none."""
    answered: bool
    """Whether the request has an answer."""
    over: str
    """Why the session takes no more calls; '' while it takes calls."""


@dataclass
class PlayedSession:
    """The turns and reward of a session whose group has ended."""

    turns: list[Turn] = field(default_factory=list)
    reward: Reward | None = None
    spent: bool = False
    """Whether a call found all turns, or all their bytes, used up."""


class AgentSessions(StorePart):
    """Calls about sessions. `attempt` names a group's sessions, `index` one of them."""

    async def named(self, run: str, name: str) -> tuple[str, str] | None:
        """Return the attempt of a group that a client has named, and why its sessions take no more
        calls ('' while they take calls, or if only the lease has lapsed). Returns None for an
        unknown name."""
        attempt = as_text(await self._redis.get(named_key(run, digest_of(name))) or b"")
        if not attempt:
            return None
        idle, state = await self._redis.hmget(sessions_key(run, attempt), ["idle", "state"])
        return attempt, _over(idle, state, None)

    async def reopen(self, run: str, attempt: str, name: str, keys: list[str]) -> str:
        """Give the sessions of a named group new keys. Returns '', or why they take no more
        calls."""
        idle = await self._redis.hget(sessions_key(run, attempt), "idle") or b"0"
        arguments = [attempt, int(int(idle) / 1000 + KEPT_SECONDS), *keys]
        reply = await self._scripts.run(
            "session_reopen", arguments, run=run, attempt=attempt, group=digest_of(name)
        )
        return str(reply.decode())

    async def open(
        self,
        run: str,
        attempt: str,
        opened: Opened,
        keys: list[str],
        lost: str = "",
        max_bytes: int = MAX_BYTES,
    ) -> bool:
        """Make the sessions of a leased attempt. `keys` are the digests of their keys, `lost` is
        the attempt that had the group's name before, and `max_bytes` limits the turns of each
        session. Returns False if another attempt has the name now."""
        fields: dict[str, Any] = {
            "task": opened.task,
            "row": opened.row,
            "samples": opened.samples,
            "leased_at": opened.leased_at,
            "idle": int(opened.idle * 1000),
            "max_turns": opened.max_turns,
            "max_bytes": max_bytes,
            "open": opened.samples,
            **{f"key:{index}": key for index, key in enumerate(keys)},
        }
        if opened.client_row is not None:
            fields |= {"own": msgspec.json.encode(opened.client_row), "name": opened.name}
        flat = [part for pair in fields.items() for part in pair]
        named = [named_key(run, digest_of(opened.name))] if opened.name else []
        arguments = [attempt, lost, int(opened.idle + KEPT_SECONDS), *flat]
        holder = await self._scripts.run(
            "session_open", arguments, more=named, run=run, attempt=attempt
        )
        return bool(holder == attempt.encode())

    async def key_of(self, run: str, attempt: str, index: int) -> str | None:
        """Return the digest of a session's key, or None if nothing is known of the session."""
        key = await self._redis.hget(sessions_key(run, attempt), f"key:{index}")
        return key.decode() if key else None

    async def turn_count(self, run: str, attempt: str, index: int) -> int:
        count = await self._redis.hget(sessions_key(run, attempt), f"turns:{index}")
        with reading(f"session {index} of attempt {attempt}"):
            return int(count or 0)

    async def lengths(self, run: str, attempt: str, index: int) -> list[int]:
        """Return the lengths of a session's texts (/completions) after each turn, rising."""
        lengths = await self._redis.hget(sessions_key(run, attempt), f"lengths:{index}")
        with reading(f"session {index} of attempt {attempt}"):
            return sorted(int(length) for length in (lengths or b"").split())

    async def known(
        self, run: str, attempt: str, index: int, digest: str, histories: list[str]
    ) -> Known:
        """Return the session's state for a request with this digest, which may continue one of
        `histories`. One read."""
        turns = [f"history:{index}:{history}" for history in histories]
        names = [f"asked:{index}:{digest}", "idle", "state", f"ended:{index}", f"parents:{index}"]
        with reading(f"session {index} of attempt {attempt}"):
            values = await self._redis.hmget(sessions_key(run, attempt), [*names, *turns])
            asked, idle, state, ended, parents, *known = values
            return Known(
                [None if turn is None else int(turn) for turn in known],
                [int(turn) for turn in (parents or b"").split()],
                asked is not None,
                _over(idle, state, ended),
            )

    async def call(self, run: str, attempt: str, index: int, digest: str, call: Call) -> str:
        """Ask for a turn. Returns `waiting`, `answered`, or why not (session_call.lua)."""
        arguments = [attempt, index, digest, AT_ONCE, msgspec.msgpack.encode(call)]
        return str((await self._run("call", run, attempt, arguments)).decode())

    async def over(self, run: str, attempt: str, index: int) -> str:
        """Return why a session takes no more calls; '' while it takes calls."""
        arguments = [attempt, index, ""]
        *_, reason = await self._run("look", run, attempt, arguments)
        return str(reason.decode())

    async def answer_of(
        self, run: str, attempt: str, index: int, digest: str
    ) -> Turn | dict[str, Any] | str | None:
        """Return the turn that answers a request, its error (an object), or why it stays unanswered
        (a text). Returns None while it waits."""
        arguments = [attempt, index, digest]
        reply = await self._run("look", run, attempt, arguments)
        turn, failure, refusal = reply
        with reading(f"session {index} of attempt {attempt}"):
            if turn:
                return _turn.decode(turn)
            if failure:
                error: dict[str, Any] = msgspec.json.decode(failure, type=dict[str, Any])
                return error
            return str(refusal.decode()) or None

    async def reward(self, run: str, attempt: str, index: int, reward: Reward) -> Reward | str:
        """Record a session's reward. Returns the reward that counts, or the reason for a
        refusal."""
        arguments = [attempt, index, msgspec.json.encode(reward)]
        refusal, *counts = await self._run("reward", run, attempt, arguments)
        return msgspec.json.decode(counts[0], type=Reward) if counts else str(refusal.decode())

    async def end(self, run: str, attempt: str, index: int) -> str:
        """End a session. Returns '', or why it could not be ended."""
        finish = msgspec.msgpack.encode(Call(kind="finish"))
        arguments = [attempt, index, call_id(attempt, 0, FINISH), finish]
        return str((await self._run("end", run, attempt, arguments)).decode())

    # --- workers ------------------------------------------------------------------------------

    async def turns(
        self, run: str, attempt: str, index: int, numbers: list[int]
    ) -> list[Turn] | None:
        """Return these turns of a session, or None if they are gone."""
        if not numbers:
            return []
        names = [f"turn:{index}:{number}" for number in numbers]
        blobs = await self._redis.hmget(sessions_key(run, attempt), names)
        with reading(f"session {index} of attempt {attempt}"):
            return None if None in blobs else [_turn.decode(blob) for blob in blobs]

    async def opened(self, run: str, attempt: str) -> Opened | None:
        """Return the settings of an attempt's sessions, or None if nothing is known of them."""
        names = ("own", "name", "task", "row", "samples", "leased_at", "idle", "max_turns")
        brought, name, *values = await self._redis.hmget(sessions_key(run, attempt), names)
        if None in values:
            return None
        with reading(f"the sessions of attempt {attempt}"):
            task, row, samples, leased_at, idle, max_turns = (value.decode() for value in values)
            about = int(row), int(samples), float(leased_at), int(idle) / 1000, int(max_turns)
            client_row = msgspec.json.decode(brought, type=Row) if brought else None
            return Opened(task, *about, client_row, as_text(name or b""))

    async def played(self, run: str, attempt: str, samples: int) -> list[PlayedSession] | None:
        """Return all sessions of a group with their turns and rewards, or None if another worker
        was faster and they are closed."""
        fields = await self._redis.hgetall(sessions_key(run, attempt))
        if fields.get(b"state", b"ended") != b"ended":
            return None
        sessions = []
        with reading(f"the sessions of attempt {attempt}"):
            for index in range(samples):
                count = int(fields.get(b"turns:%d" % index, 0))
                turns = [_turn.decode(fields[b"turn:%d:%d" % (index, n)]) for n in range(count)]
                reward = fields.get(b"reward:%d" % index)
                known = msgspec.json.decode(reward, type=Reward) if reward else None
                sessions.append(PlayedSession(turns, known, b"spent:%d" % index in fields))
        return sessions

    async def release_group(self, run: str, attempt: str) -> bool:
        """Release a group for its client: its task is leased again. A group that is done stays
        done. Returns False for an unknown group."""
        return bool(await self._run("release_group", run, attempt, [attempt]))

    async def close(self, run: str, attempt: str, state: str) -> None:
        """Close a group's sessions: delete their turns and keep `state`, the reason. Does nothing
        if the attempt has closed them before."""
        arguments = [call_id(attempt, 0, FINISH), state]
        await self._run("close", run, attempt, arguments)

    async def _run(self, name: str, run: str, attempt: str, arguments: list[Any]) -> Any:
        of = {"run": run, "attempt": attempt, "deadlines": held_in(attempt)}
        return await self._scripts.run(f"session_{name}", arguments, **of)


def _over(idle: bytes | None, state: bytes | None, ended: bytes | None) -> str:
    if idle is None:
        return "gone"
    return state.decode() if state else "ended" if ended else ""
