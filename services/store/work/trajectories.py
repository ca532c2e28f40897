"""The stream of finished groups, their payloads, and the batches planned from the stream.

An entry of the stream takes about 150 bytes. Payloads are in a separate hash, so rank 0 plans
without reading them, and only the ranks that train a group's samples read its payload.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.rows.task import TaskPosition
from services.store.errors import PlanStands, Unplanned, Unreadable
from services.store.keys import run_key
from services.store.scripts import StorePart
from services.store.unreadable import reading, report

READ = 1000
"""Groups per read."""


@dataclass(frozen=True)
class StreamGroup:
    """A group, as the stream describes it. `task` is "position:epoch:rows:index"."""

    entry: str
    task: str
    min_version: int
    lineage: str
    bytes: int
    lengths: GroupLengths


def parsed_plans(plans: Mapping[bytes, bytes]) -> dict[int, list[tuple[str, str]]]:
    """Parse the hash of plans (plan.lua): (entry, task) of each batch, by step."""
    return {
        int(step): [(entry, task) for entry, task in json.loads(plan)["pairs"]]
        for step, plan in plans.items()
    }


class Trajectories(StorePart):
    """Calls of the learner about groups."""

    async def pending(self, run: str) -> list[StreamGroup]:
        """Return all groups that a learner has read and no commit has acknowledged."""
        groups: list[StreamGroup] = []
        while more := await self._read(run, groups[-1].entry if groups else "0", None):
            groups += more
        return groups

    async def read(self, run: str, wait: float) -> list[StreamGroup]:
        """Return new groups, waiting up to `wait` seconds for the first. If none comes, return all
        pending groups, which the caller may know already; return nothing if `wait` is 0.

        Redis counts a group as read once it has sent it. If the reply was lost, or went to a
        learner that was replaced, the group is pending and never comes as new.
        """
        if wait == 0:
            return await self._read(run, ">", None)
        return await self._read(run, ">", max(1, int(wait * 1000))) or await self.pending(run)

    async def _read(self, run: str, after: str, block: int | None) -> list[StreamGroup]:
        streams: dict[Any, Any] = {run_key(run, "groups"): after}
        with reading(f"the groups of run {run}"):
            reply: Any = await self._redis.xreadgroup(
                "learner", "rank0", streams, count=READ, block=block
            )
        entries = reply[0][1] if reply else []
        # A pending entry that was deleted has no fields.
        groups = [await self._group(run, id.decode(), fields) for id, fields in entries if fields]
        return [group for group in groups if group is not None]

    async def _group(self, run: str, entry: str, fields: dict[bytes, bytes]) -> StreamGroup | None:
        """Return the group of an entry. An entry that cannot be read is logged and removed, so that
        its task is sampled again; return None."""
        try:
            with reading(f"group {entry} of run {run}"):
                task = str(TaskPosition.parse(fields[b"task"].decode()))
                lineage, size = fields[b"lineage"].decode(), int(fields[b"bytes"])
                lengths = GroupLengths.parse(fields[b"lengths"].decode())
                return StreamGroup(entry, task, int(fields[b"min_version"]), lineage, size, lengths)
        except Unreadable as error:
            report(f"run {run}", f"{error}; it is removed, and its task is sampled again")
        await self._scripts.run("discard_group", [entry], run=run)
        return None

    async def in_flight(self, run: str, lineage: str) -> dict[int, int]:
        """Count the groups that are being sampled or scored, by the version of `lineage` for which
        they were leased. Finished groups that wait for the stream do not count (in_flight.lua)."""
        reply = [int(part) for part in await self._scripts.run("in_flight", [lineage], run=run)]
        return dict(zip(reply[::2], reply[1::2], strict=True))

    async def filtered(self, run: str) -> tuple[int, float]:
        """Return how many groups were filtered since the run was submitted, and the sum of their
        mean rewards."""
        names = ["filtered_total", "filtered_reward"]
        total, reward = await self._redis.hmget(run_key(run, "order"), names)
        return int(total or 0), float(reward or 0)

    async def skipped(self, run: str) -> int:
        """Return how many tasks the curriculum has skipped since the run was submitted."""
        return int(await self._redis.hget(run_key(run, "order"), "skipped_total") or 0)

    async def filtered_by_dataset(self, run: str, names: Sequence[str]) -> dict[str, int]:
        """Return how many groups of each dataset of a mixture were filtered since the run was
        submitted."""
        if not names:
            return {}
        keys = [f"filtered_of:{name}" for name in names]
        counts = await self._redis.hmget(run_key(run, "order"), keys)
        return {name: int(count or 0) for name, count in zip(names, counts, strict=True)}

    async def plan(
        self, run: str, fencing_token: int, step: int, pairs: list[tuple[str, str]]
    ) -> None:
        """Record batch `step` as (entry, task) pairs. Raises Fenced, and PlanStands if the step has
        another plan or is covered by a checkpoint."""
        arguments = [fencing_token, step, json.dumps(pairs)]
        if await self._run_fenced("plan", run, arguments) == 0:
            raise PlanStands(run, step)

    async def plans(self, run: str) -> dict[int, list[tuple[str, str]]]:
        """Return the plans that no commit covers, by step."""
        with reading(f"the plans of run {run}"):
            return parsed_plans(await self._redis.hgetall(run_key(run, "plans")))

    async def payloads(self, run: str, positions: list[int]) -> list[bytes | None]:
        """Return the payloads of the tasks `positions` as Redis keeps them (`services.payloads`
        reads them), and None for a group that is gone."""
        if not positions:
            return []
        return list(await self._redis.hmget(run_key(run, "blobs"), [str(p) for p in positions]))

    async def needed(self, run: str, payloads: Sequence[tuple[int, str]]) -> list[bool]:
        """Return whether each payload outside Redis, given as (task, attempt), may still be needed.
        A payload that is unneeded now stays unneeded."""
        needed: list[bool] = []
        for start in range(0, len(payloads), READ):
            arguments = [part for pair in payloads[start : start + READ] for part in pair]
            needed += map(bool, await self._scripts.run("payload_needed", arguments, run=run))
        return needed

    async def requeue(
        self,
        run: str,
        fencing_token: int,
        entries: list[str],
        *,
        limit: int,
        cause: Literal["stale", "unreadable"] = "stale",
        detail: str = "",
        step: int = 0,
    ) -> int:
        """Return the tasks of groups that are stale or cannot be read, to be sampled again. A task
        that this has happened to `limit` times is dropped instead, as `too_slow` or `unreadable`,
        with `detail`. The plan of `step` is removed; its other groups can be planned again. Returns
        the number of dropped tasks. Raises Fenced."""
        reason = "too_slow" if cause == "stale" else cause
        arguments = [fencing_token, limit, cause, reason, detail or f"{cause} {limit} times", step]
        return int(await self._run_fenced("requeue", run, [*arguments, *entries]))

    async def commit(
        self, run: str, fencing_token: int, lineage: str, step: int, directory: str
    ) -> int:
        """Make a durable checkpoint current and acknowledge its groups. Returns the number of
        groups. A checkpoint older than the current one changes nothing. Raises Fenced, and
        Unplanned if the checkpoint covers a step that has no plan."""
        arguments = [fencing_token, lineage, step, directory]
        acknowledged = int(await self._run_fenced("commit", run, arguments))
        if acknowledged < -1:
            raise Unplanned(run, -1 - acknowledged)
        await self._announce(run)
        return acknowledged
