"""The ledger: one row for every task's end, written by the scripts that end tasks, and never
changed. This module only reads and audits it."""

import json
from typing import Any

import anyio.to_thread

from services.contracts.weights import parse_version_tag
from services.store.errors import Gone
from services.store.keys import run_key
from services.store.runs.audit import Audit, Generation, TaskEnding, audit, trained
from services.store.scripts import StorePart
from services.store.unreadable import reading

PAGE = 1000
"""Rows per read: a row is one batch or one dropped task."""


class Ledger(StorePart):
    """Calls about the ends of a run's tasks."""

    async def audit(self, run: str) -> Audit:
        """Look up every task of a run, and of the runs that it continues, in every place. O(tasks).
        Raises KeyError for an unknown run, and Unreadable if its state makes no sense."""
        with reading(f"the ledger of run {run}"):
            generations = [await self.generation(run)]
            seen = {run}
            while (before := await self._continued(generations[0].run)) and before not in seen:
                seen.add(before)
                generations.insert(0, await self.generation(before))
            return await anyio.to_thread.run_sync(audit, generations)

    async def trained_after(self, run: str, step: int) -> list[str]:
        """Return the tasks that the run, or a run that it continues, trained in steps after `step`,
        unless that was undone."""
        generations = [await self.generation(run)]
        while step < generations[0].base_step:
            before = await self._continued(generations[0].run)
            if before is None or before in {known.run for known in generations}:
                break
            generations.insert(0, await self.generation(before))
        return [
            task for ending in trained(generations) if ending.step > step for task in ending.tasks
        ]

    async def _continued(self, run: str) -> str | None:
        name = await self._redis.hget(run_key(run, "run"), "resume_from")
        return name.decode() if name else None

    async def generation(self, run: str) -> Generation:
        """Read the run at one moment. Open tasks are read in one transaction together with the id
        of the ledger's newest row. The rows up to that one never change, and are read page by
        page."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.hmget(run_key(run, "run"), ["id", "max_staleness", "lost_writes"])
            pipe.hmget(run_key(run, "order"), ["position", "base_step"])
            pipe.zrange(run_key(run, "returned"), 0, -1)
            pipe.hvals(run_key(run, "held"))
            pipe.xrange(run_key(run, "groups"))
            pipe.hkeys(run_key(run, "blobs"))
            pipe.hgetall(run_key(run, "plans"))
            pipe.lrange(run_key(run, "lineages"), 0, -1)
            pipe.xrevrange(run_key(run, "ledger"), count=1)
            replies: list[Any] = await pipe.execute()
        (
            (there, staleness, lost),
            order,
            returned,
            held,
            groups,
            payloads,
            plans,
            lineages,
            newest,
        ) = replies
        if not there:
            raise Gone(f"there is no run {run}")
        return Generation(
            run=run,
            base_step=int(order[1] or 0),
            position=int(order[0] or 0),
            endings=await self._endings(run, newest[0][0].decode()) if newest else [],
            lineages=[parse_version_tag(text.decode()) for text in lineages],
            returned=[task.decode() for task in returned],
            held=[record.decode().partition(" ")[0] for record in held],
            groups=[(entry.decode(), fields[b"task"].decode()) for entry, fields in groups],
            payloads=frozenset(name.decode() for name in payloads),
            plans={
                int(step): [(entry, task) for entry, task in json.loads(plan)["pairs"]]
                for step, plan in plans.items()
            },
            max_staleness=None if staleness is None else int(staleness),
            lost_writes=lost.decode() if lost else "",
        )

    async def rows_after(self, run: str, entry: str) -> list[tuple[str, dict[str, str]]]:
        """Return (entry id, fields) of the rows after the row `entry`; "" for all rows."""
        rows: list[tuple[str, dict[str, str]]] = []
        start = f"({entry}" if entry else "-"
        while True:
            page: Any = await self._redis.xrange(run_key(run, "ledger"), min=start, count=PAGE)
            for id, fields in page:
                text = {key.decode(): v.decode(errors="replace") for key, v in fields.items()}
                rows.append((id.decode(), text))
            if len(page) < PAGE:
                return rows
            start = f"({rows[-1][0]}"

    async def _endings(self, run: str, newest: str) -> list[TaskEnding]:
        endings: list[TaskEnding] = []
        start = "-"
        while True:
            rows: Any = await self._redis.xrange(
                run_key(run, "ledger"), min=start, max=newest, count=PAGE
            )
            for _, fields in rows:
                endings = _with_row(endings, fields)
            if len(rows) < PAGE:
                return endings
            start = f"({rows[-1][0].decode()}"


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
