"""Sessions of agents: a hash per attempt with all of its sessions. Their calls, which workers
answer, are in `calls.py`.

Every call may be made twice: the client repeats one whose reply was lost.
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
"""Calls of one session that may wait or be worked on."""
MAX_BYTES = 1 << 30
"""Of the turns of a session, unless who opens it says another limit."""
KEPT_SECONDS = 3600.0
"""How long Redis knows what became of sessions."""

_turn = msgspec.msgpack.Decoder(Turn)


@dataclass(frozen=True)
class Opened:
    """What the sessions of an attempt have in common."""

    task: str
    """`position:epoch:rows:index`."""
    row: int
    samples: int
    leased_at: float
    idle: float
    """Seconds."""
    max_turns: int
    """Of each session."""
    own: Row | None = None
    """What the client brought in place of the task's row."""
    name: str = ""
    """What the client calls its group."""


@dataclass(frozen=True)
class Known:
    """What a session knows of a request."""

    turns: list[int | None]
    """For each history that it may continue the last turn of the conversation that has it."""
    parents: list[int]
    """Of each turn of the session the one that it continues; −1: none."""
    answered: bool
    """Whether this very request has an answer."""
    over: str
    """Why the session takes no more; '' while it may."""


@dataclass
class Played:
    """A session whose group has ended."""

    turns: list[Turn] = field(default_factory=list)
    reward: Reward | None = None
    spent: bool = False
    """Whether a call found all turns, or all their bytes, used up."""


class AgentSessions(StorePart):
    """`attempt` names a group's sessions, `index` one of them."""

    async def named(self, run: str, name: str) -> tuple[str, str] | None:
        """The attempt of a group that a client has named, and why its sessions take no calls any
        more ('' while they may, but for a lease that has lapsed); None without any."""
        attempt = as_text(await self._redis.get(named_key(run, digest_of(name))) or b"")
        if not attempt:
            return None
        idle, state = await self._redis.hmget(sessions_key(run, attempt), ["idle", "state"])
        return attempt, _over(idle, state, None)

    async def reopen(self, run: str, attempt: str, name: str, keys: list[str]) -> str:
        """Give the sessions of a named group other keys: '', or why they take no calls any more."""
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
        """Make the sessions of a leased attempt; `keys`: the digest of each one's key; `lost`: the
        attempt that had the group's name before; `max_bytes`: of the turns of each session, above
        which it gets no more. False: another attempt has the name now."""
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
        if opened.own is not None:
            fields |= {"own": msgspec.json.encode(opened.own), "name": opened.name}
        flat = [part for pair in fields.items() for part in pair]
        named = [named_key(run, digest_of(opened.name))] if opened.name else []
        arguments = [attempt, lost, int(opened.idle + KEPT_SECONDS), *flat]
        holder = await self._scripts.run(
            "session_open", arguments, more=named, run=run, attempt=attempt
        )
        return bool(holder == attempt.encode())

    async def key_of(self, run: str, attempt: str, index: int) -> str | None:
        """The digest of a session's key; None if nothing is known of it (any more)."""
        found = await self._redis.hget(sessions_key(run, attempt), f"key:{index}")
        return found.decode() if found else None

    async def turn_count(self, run: str, attempt: str, index: int) -> int:
        """How many turns a session has."""
        found = await self._redis.hget(sessions_key(run, attempt), f"turns:{index}")
        with reading(f"session {index} of attempt {attempt}"):
            return int(found or 0)

    async def lengths(self, run: str, attempt: str, index: int) -> list[int]:
        """The lengths of a session's texts (of /completions) after each turn, rising."""
        found = await self._redis.hget(sessions_key(run, attempt), f"lengths:{index}")
        with reading(f"session {index} of attempt {attempt}"):
            return sorted(int(length) for length in (found or b"").split())

    async def known(
        self, run: str, attempt: str, index: int, digest: str, histories: list[str]
    ) -> Known:
        """What the session knows of a request with this digest, which may continue `histories`. One
        read of as many fields."""
        turns = [f"history:{index}:{one}" for one in histories]
        names = [f"asked:{index}:{digest}", "idle", "state", f"ended:{index}", f"parents:{index}"]
        with reading(f"session {index} of attempt {attempt}"):
            found = await self._redis.hmget(sessions_key(run, attempt), [*names, *turns])
            asked, idle, state, ended, parents, *known = found
            return Known(
                [None if turn is None else int(turn) for turn in known],
                [int(turn) for turn in (parents or b"").split()],
                asked is not None,
                _over(idle, state, ended),
            )

    async def call(self, run: str, attempt: str, index: int, digest: str, call: Call) -> str:
        """Ask for a turn: `waiting`, `answered`, or why not (see session_call.lua)."""
        arguments = [attempt, index, digest, AT_ONCE, msgspec.msgpack.encode(call)]
        return str((await self._run("call", run, attempt, arguments)).decode())

    async def over(self, run: str, attempt: str, index: int) -> str:
        """Why a session takes no calls any more; '' while it may."""
        arguments = [attempt, index, ""]
        *_, reason = await self._run("look", run, attempt, arguments)
        return str(reason.decode())

    async def answer_of(
        self, run: str, attempt: str, index: int, digest: str
    ) -> Turn | dict[str, Any] | str | None:
        """The turn that a request was answered with, or its error (an object), or why it gets none
        (a text); None: not yet."""
        arguments = [attempt, index, digest]
        reply = await self._run("look", run, attempt, arguments)
        turn, failure, refusal = reply
        with reading(f"session {index} of attempt {attempt}"):
            if turn:
                return _turn.decode(turn)
            if failure:
                found: dict[str, Any] = msgspec.json.decode(failure, type=dict[str, Any])
                return found
            return str(refusal.decode()) or None

    async def reward(self, run: str, attempt: str, index: int, reward: Reward) -> Reward | str:
        """Note a session's reward. Returns the one that counts, or why there is none."""
        arguments = [attempt, index, msgspec.json.encode(reward)]
        refusal, *counts = await self._run("reward", run, attempt, arguments)
        return msgspec.json.decode(counts[0], type=Reward) if counts else str(refusal.decode())

    async def end(self, run: str, attempt: str, index: int) -> str:
        """End a session: '', or why it could not."""
        finish = msgspec.msgpack.encode(Call(kind="finish"))
        arguments = [attempt, index, call_id(attempt, 0, FINISH), finish]
        return str((await self._run("end", run, attempt, arguments)).decode())

    # --- workers ------------------------------------------------------------------------------

    async def turns(
        self, run: str, attempt: str, index: int, numbers: list[int]
    ) -> list[Turn] | None:
        """These turns of a session; None if they are gone."""
        if not numbers:
            return []
        names = [f"turn:{index}:{number}" for number in numbers]
        found = await self._redis.hmget(sessions_key(run, attempt), names)
        with reading(f"session {index} of attempt {attempt}"):
            return None if None in found else [_turn.decode(blob) for blob in found]

    async def opened(self, run: str, attempt: str) -> Opened | None:
        """What is known of the sessions of an attempt; None: nothing any more."""
        names = ("own", "name", "task", "row", "samples", "leased_at", "idle", "max_turns")
        brought, name, *found = await self._redis.hmget(sessions_key(run, attempt), names)
        if None in found:
            return None
        with reading(f"the sessions of attempt {attempt}"):
            task, row, samples, leased_at, idle, most = (value.decode() for value in found)
            about = int(row), int(samples), float(leased_at), int(idle) / 1000, int(most)
            own = msgspec.json.decode(brought, type=Row) if brought else None
            return Opened(task, *about, own, as_text(name or b""))

    async def played(self, run: str, attempt: str, samples: int) -> list[Played] | None:
        """All sessions of a group, with their turns and rewards; None if another worker was faster,
        and they are closed."""
        found = await self._redis.hgetall(sessions_key(run, attempt))
        if found.get(b"state", b"ended") != b"ended":
            return None
        sessions = []
        with reading(f"the sessions of attempt {attempt}"):
            for index in range(samples):
                count = int(found.get(b"turns:%d" % index, 0))
                turns = [_turn.decode(found[b"turn:%d:%d" % (index, n)]) for n in range(count)]
                reward = found.get(b"reward:%d" % index)
                known = msgspec.json.decode(reward, type=Reward) if reward else None
                sessions.append(Played(turns, known, b"spent:%d" % index in found))
        return sessions

    async def release_group(self, run: str, attempt: str) -> bool:
        """A group's client plays it no more: its task is leased again. One that is done stays done.
        False: there is no such group."""
        return bool(await self._run("release_group", run, attempt, [attempt]))

    async def close(self, run: str, attempt: str, state: str) -> None:
        """A group has been worked on. Unless its attempt ended its task, which closes them with it:
        forget its sessions' turns, and remember why."""
        arguments = [call_id(attempt, 0, FINISH), state]
        await self._run("close", run, attempt, arguments)

    async def _run(self, name: str, run: str, attempt: str, arguments: list[Any]) -> Any:
        of = {"run": run, "attempt": attempt, "deadlines": held_in(attempt)}
        return await self._scripts.run(f"session_{name}", arguments, **of)


def _over(idle: bytes | None, state: bytes | None, ended: bytes | None) -> str:
    if idle is None:
        return "gone"
    return state.decode() if state else "ended" if ended else ""
