"""Leases of tasks. Each call is one script and one round trip for any number of tasks.

Every call may be repeated: the client repeats a call whose reply was lost.
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.rows.task import TaskPosition
from services.contracts.sessions import session_of
from services.store.errors import StreamFull
from services.store.keys import run_key
from services.store.scripts import Scripts, StorePart

EXHAUSTED = (
    "no row of the dataset is of use: since a group was last finished every row was sampled again "
    "and dropped, the last one as {last}. `headrace audit {run}` counts the reasons; repair the "
    "rows, or append others, and run it again: `headrace resume {run}`"
)
FILTERED = (
    "too little to learn from: {filtered} groups were filtered while {finished} of the {batch} "
    "groups of a batch were finished, the last one as {last}. `headrace samples {run}` shows "
    "answers with their references and the verifiers' reasons: are the prompts much too hard or "
    "too easy for the model? Run it again with a key changed: `headrace resume {run} --set "
    "KEY=VALUE`, for example algorithm.dynamic_sampling.max_filtered=2000"
)


Partial = Literal["", "continued", "stale"]


@dataclass(frozen=True)
class Lease:
    """One attempt at a task."""

    attempt: str
    position: TaskPosition
    partial: Partial = ""
    """`continued`: an earlier attempt has left a partial (`partial`). `stale`: it was deleted,
    because no batch may train it any more."""

    @property
    def task(self) -> int:
        return self.position.position


class Passed(NamedTuple):
    """The share of a group's samples that were correct, for a curriculum."""

    row: str
    """The name of the dataset row in the run."""
    share: float


@dataclass(frozen=True)
class Granted:
    """Leases, or the reason of a refusal: `state`, `lineage`, `admission`, `bytes`, `exhausted`,
    `filtered_group`, or `unready` for live sessions (lease.lua)."""

    refusal: str
    leases: list[Lease]


class Tasks(StorePart):
    """Calls that lease tasks, renew leases and end them."""

    def __init__(
        self, redis: Any, scripts: Scripts, fail: Callable[[str, str], Awaitable[object]]
    ) -> None:
        """`fail` ends a run as failed, with a reason."""
        super().__init__(redis, scripts)
        self._fail = fail

    async def lease(
        self,
        run: str,
        *,
        worker: str,
        lineage: str,
        version: int,
        count: int,
        ttl: float,
        reserve_bytes: int,
    ) -> Granted:
        """Lease up to `count` tasks for `ttl` seconds to a worker that serves `version`, as far as
        admission allows. `reserve_bytes` bounds the size of one finished group. Fails a run whose
        dataset has no usable rows, and a run in which too many groups were filtered for one
        batch."""
        if count <= 0:
            return Granted("", [])
        attempts = [secrets.token_hex(8) for _ in range(count)]
        arguments = [worker, lineage, version, count, int(ttl * 1000), reserve_bytes, *attempts]
        reply = await self._scripts.run("lease", arguments, run=run)
        refusal, *pairs = [part.decode() for part in reply]
        if refusal == "exhausted":
            await self._fail(run, EXHAUSTED.format(run=run, last=await self._last_dropped(run)))
        if refusal == "filtered_group":
            await self._fail(run, await self._why_filtered(run))
        leases = []
        for attempt, task in zip(pairs[::2], pairs[1::2], strict=True):
            position, _, partial = task.partition(" ")
            leases.append(Lease(attempt, TaskPosition.parse(position), cast(Partial, partial)))
        return Granted(refusal, leases)

    async def any_finished(self, run: str) -> bool:
        """Return whether any worker has finished a group since the run was submitted."""
        names = ("last_finished", "base_position")
        last, base = await self._redis.hmget(run_key(run, "order"), names)
        return int(last or 0) > int(base or 0)

    async def _last_dropped(self, run: str) -> str:
        """Return the reason of the last dropped task, such as `too_long: dataset row 3: ...`."""
        # Only the few batches that were waiting can have been committed after the last drop.
        rows: Any = await self._redis.xrevrange(run_key(run, "ledger"), count=64)
        dropped = (fields for _, fields in rows if fields[b"end"] == b"dropped")
        last = next(dropped, {b"reason": b"the ledger says", b"detail": b""})
        return ": ".join(text.decode() for text in (last[b"reason"], last[b"detail"]) if text)

    async def _why_filtered(self, run: str) -> str:
        names = ("filtered", "finished", "batch")
        values: Any = await self._redis.hmget(run_key(run, "order"), names)
        counts = {name: int(count or 0) for name, count in zip(names, values, strict=True)}
        return FILTERED.format(run=run, **counts, last=await self._last_dropped(run))

    async def renew(self, run: str, attempts: list[str], ttl: float) -> list[str]:
        """Move the deadlines of attempts to `ttl` seconds from now. Returns the attempts that have
        ended."""
        if not attempts:
            return []
        arguments = [int(ttl * 1000), *attempts]
        lost = await self._scripts.run("renew", arguments, run=run, deadlines="attempts")
        return [attempt.decode() for attempt in lost]

    async def complete(
        self,
        run: str,
        attempt: str,
        *,
        min_version: int,
        lineage: str,
        blob: bytes,
        lengths: GroupLengths,
        passed: Passed | None = None,
    ) -> bool:
        """Complete an attempt: put its group into the stream. `passed` is set with a curriculum.
        Returns False if the attempt is no longer held; then the group is discarded. Raises
        StreamFull if the attempt has to wait, still held; ask `stream_takes` before the next
        try."""
        arguments = [attempt, min_version, lineage, blob, str(lengths), *(passed or ())]
        reply = await self._end("complete", run, attempt, arguments)
        if reply == 2:
            raise StreamFull(f"{len(blob)} bytes")
        return bool(reply)

    async def stream_takes(
        self, run: str, attempt: str, *, min_version: int, lineage: str, size: int
    ) -> bool:
        """Return whether the stream takes a group now that it did not take before."""
        arguments = [attempt, size, min_version, lineage]
        return bool(await self._scripts.run("stream_takes", arguments, run=run))

    async def drop(self, run: str, attempt: str, reason: str, detail: str) -> bool:
        """End a held task without training it. Returns False if the attempt is no longer held."""
        return bool(await self._end("drop", run, attempt, [attempt, reason, detail]))

    async def filter_group(
        self,
        run: str,
        attempt: str,
        detail: str,
        reward: float,
        dataset: str = "",
        passed: Passed | None = None,
    ) -> bool:
        """End a held task because its group is filtered. `reward` is the group's mean reward,
        `dataset` its dataset in a mixture; `passed` is set with a curriculum. Returns False if the
        attempt is no longer held."""
        arguments = [attempt, detail, reward, dataset, *(passed or ("", 0))]
        return bool(await self._end("filter_group", run, attempt, arguments))

    async def pass_rate(self, run: str, row: str) -> float | None:
        """Return a row's running pass rate over its tasks that have ended; None before the
        first."""
        rate = await self._redis.hget(run_key(run, "pass_rates"), row)
        return None if rate is None else float(rate)

    async def skip(self, run: str, attempt: str, detail: str) -> bool:
        """End a held task because the curriculum skips it. Returns False if the attempt is no
        longer held."""
        return bool(await self._scripts.run("skip", [attempt, detail], run=run))

    async def filter_prompt(
        self, run: str, attempt: str, row: str, *, outside: bool, passes: int, max_share: float
    ) -> bool:
        """Note, before the held task of dataset row `row` ends, whether it lies outside the bounds
        of the run's prompt filter. Returns whether the row is filtered: `passes` of its tasks in a
        row lie outside, and less than `max_share` of all rows is filtered."""
        arguments = [attempt, row, int(outside), passes, max_share]
        return bool(await self._scripts.run("filter_prompt", arguments, run=run))

    async def prompt_filtered(self, run: str, row: str) -> bool:
        note = await self._redis.hget(run_key(run, "prompt_filter"), row)
        return note is not None and note.endswith(b":1")

    async def release(
        self, run: str, attempts: list[str], *, cause: str = "", detail: str = "", limit: int = 3
    ) -> int:
        """End attempts and return their tasks, which are leased again first. With a `cause`, a task
        that has failed `limit` times for it is dropped instead, with `detail`. Returns the number
        of dropped tasks."""
        arguments = [cause, detail, limit, *attempts]
        return int(await self._scripts.run("release", arguments, run=run))

    async def set_aside(self, run: str, attempt: str, oldest: str, blob: bytes) -> bool | None:
        """End an attempt, return its task, and keep `blob`, the partial that the next attempt
        continues. `oldest` is the version tag of its oldest token. Returns False if there is no
        space for it, and None if the attempt is no longer held."""
        reply = await self._scripts.run("set_aside", [attempt, oldest, blob], run=run)
        return None if reply == 0 else reply == 1

    async def partial(self, run: str, task: int) -> bytes | None:
        """Return the partial of a task as `services.payloads` reads it, or None."""
        blob: bytes | None = await self._redis.hget(run_key(run, "partials"), str(task))
        return blob

    async def _end(self, script: str, run: str, attempt: str, arguments: list[Any]) -> Any:
        """Run a script that ends an attempt together with its sessions."""
        return await self._scripts.run(script, arguments, run=run, attempt=session_of(attempt))
