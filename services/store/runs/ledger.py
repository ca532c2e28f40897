"""The ledger: one row for every task's end, written by the scripts that end tasks, and never
changed. This module only reads and audits it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread

from services.contracts.weights import parse_version_tag, version_tag
from services.store.errors import Gone
from services.store.keys import run_key
from services.store.runs.audit import Audit, Generation, TaskEnding, audit, trained
from services.store.runs.new_run import ORDER, ContinuedRun
from services.store.scripts import StorePart
from services.store.unreadable import reading
from services.store.work.trajectories import parsed_plans

PAGE = 1000
"""Rows per read: a row is one batch or one dropped task."""


class Ledger(StorePart):
    """Calls about the ends of a run's tasks."""

    async def audit(self, run: str) -> Audit:
        """Look up every task of a run, and of the runs that it continues, in every place. O(tasks).
        Raises KeyError for an unknown run, and Unreadable if its state makes no sense."""
        with reading(f"the ledger of run {run}"):
            generations = [await self.generation(run)]
            while (before := await self._before(generations)) is not None:
                generations.insert(0, before)
            return await anyio.to_thread.run_sync(audit, generations)

    async def trained_after(self, run: str, step: int) -> list[str]:
        """Return the tasks that the run, or a run that it continues, trained in steps after `step`,
        unless that was undone."""
        return await self._trained_after(await self.generation(run), step)

    async def forked(self, run: str, step: int) -> ContinuedRun:
        """Return the parts of a run that a fork of its checkpoint of `step` takes over. The run may
        be training: all parts are of one moment, and nothing of the run changes."""
        with reading(f"what Redis holds of run {run}"):
            at = await self.generation(run)
            undone = await self._trained_after(at, step)
        waiting = [*at.returned, *at.held, *(task for _, task in at.groups)]
        return ContinuedRun(
            run,
            step,
            None,
            at.order,
            [version_tag(*lineage) for lineage in at.lineages],
            list(dict.fromkeys([*undone, *waiting])),
            # No row comes before this one.
            at.newest or "0-1",
        )

    async def _trained_after(self, run: Generation, step: int) -> list[str]:
        generations = [run]
        while step < generations[0].base_step and (before := await self._before(generations)):
            generations.insert(0, before)
        return [
            task for ending in trained(generations) if ending.step > step for task in ending.tasks
        ]

    async def _before(self, generations: list[Generation]) -> Generation | None:
        """Return the run that the first of `generations` continues, if there is one. A forked run
        counts as of the fork: its later rows are not the fork's."""
        first = generations[0].run
        name = await self._redis.hget(run_key(first, "run"), "resume_from")
        if not name or name.decode() in {known.run for known in generations}:
            return None
        forked_at = await self._redis.hget(run_key(first, "order"), "forked_at")
        return await self.generation(name.decode(), forked_at.decode() if forked_at else None)

    async def generation(self, run: str, until: str | None = None) -> Generation:
        """Read the run at one moment. Open tasks are read in one transaction together with the id
        of the ledger's newest row. The rows up to that one, or up to the row `until`, never change,
        and are read page by page."""
        async with self._redis.pipeline(transaction=True) as pipe:
            names = ["id", "max_staleness", "max_staleness_most", "lost_writes"]
            pipe.hmget(run_key(run, "run"), names)
            pipe.hmget(run_key(run, "order"), ["base_step", *ORDER])
            pipe.zrange(run_key(run, "returned"), 0, -1)
            pipe.hvals(run_key(run, "held"))
            pipe.xrange(run_key(run, "groups"))
            pipe.hkeys(run_key(run, "blobs"))
            pipe.hgetall(run_key(run, "plans"))
            pipe.lrange(run_key(run, "lineages"), 0, -1)
            pipe.xrevrange(run_key(run, "ledger"), count=1)
            replies: list[Any] = await pipe.execute()
        (there, staleness, most, lost), (base_step, *order), *replies = replies
        returned, held, groups, payloads, plans, lineages, newest = replies
        if not there:
            raise Gone(f"there is no run {run}")
        last = until or (newest[0][0].decode() if newest else "")
        # An edit may have lowered the bound since.
        staleness = most or staleness
        return Generation(
            run=run,
            base_step=int(base_step or 0),
            position=int(order[0] or 0),
            endings=await self._endings(run, last) if last else [],
            lineages=[parse_version_tag(text.decode()) for text in lineages],
            returned=[task.decode() for task in returned],
            held=[record.decode().partition(" ")[0] for record in held],
            groups=[(entry.decode(), fields[b"task"].decode()) for entry, fields in groups],
            payloads=frozenset(name.decode() for name in payloads),
            plans=parsed_plans(plans),
            max_staleness=None if staleness is None else int(staleness),
            lost_writes=lost.decode() if lost else "",
            order={} if order[0] is None else dict(zip(ORDER, map(int, order), strict=True)),
            newest=last,
        )

    async def rows_after(self, run: str, entry: str) -> list[tuple[str, dict[str, str]]]:
        """Return (entry id, fields) of the rows after the row `entry`; "" for all rows."""
        return [
            (id, {name.decode(): v.decode(errors="replace") for name, v in fields.items()})
            async for id, fields in self._rows(run, f"({entry}" if entry else "-", "+")
        ]

    async def _rows(
        self, run: str, start: str, end: str
    ) -> AsyncIterator[tuple[str, dict[bytes, bytes]]]:
        """Yield (entry id, fields) of the rows in a range of the stream, read page by page."""
        page: Any = None
        while page is None or len(page) == PAGE:
            page = await self._redis.xrange(run_key(run, "ledger"), start, end, count=PAGE)
            for id, fields in page:
                yield id.decode(), fields
                start = f"({id.decode()}"

    async def _endings(self, run: str, newest: str) -> list[TaskEnding]:
        endings: list[TaskEnding] = []
        async for _, fields in self._rows(run, "-", newest):
            endings = _with_row(endings, fields)
        return endings


def _with_row(endings: list[TaskEnding], fields: dict[bytes, bytes]) -> list[TaskEnding]:
    """Return `endings` after one more row. A run that goes back undoes its later training."""
    if fields[b"end"] == b"undone":
        step = int(fields[b"step"])
        return [ending for ending in endings if ending.reason or ending.step <= step]
    endings.append(_ending(fields))
    return endings


def _ending(fields: dict[bytes, bytes]) -> TaskEnding:
    tasks = json.loads(fields[b"tasks"])
    if fields[b"end"] == b"dropped":
        return TaskEnding(tasks, reason=fields[b"reason"].decode())
    return TaskEnding(
        tasks,
        step=int(fields[b"step"]),
        oldest=json.loads(fields[b"oldest"]),
        planned=fields[b"planned"].decode(),
    )
