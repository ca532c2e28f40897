"""Select the waiting groups of the next batch. A small state machine without I/O.

Invariants: a task is in at most one batch. The oldest token of every group in a batch is at most
`max_staleness` versions old. The oldest groups go first, so a group that would be too stale for the
next batch is in this one. Groups in flight have reserved places: earliest deadline first, over
finished groups and groups in flight.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from learner.batch.staleness import Ancestry
from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.rows.task import TaskPosition


@dataclass(frozen=True)
class WaitingGroup:
    """A finished group in the stream, with the fields that planning needs."""

    entry: str
    """Id of the stream entry."""
    task: str
    """`position:epoch:rows:index`."""
    oldest: str
    """Version tag of the group's oldest sampled token."""
    bytes: int
    lengths: GroupLengths

    @property
    def position(self) -> int:
        """The task's position in the run's order, which identifies the task."""
        return TaskPosition.parse(self.task).position


@dataclass
class BatchSelection:
    batch: int
    """Number of groups in a batch."""
    max_staleness: int
    waiting: dict[int, WaitingGroup] = field(default_factory=dict)
    """Waiting groups by the position of their tasks."""
    seen: dict[str, int] = field(default_factory=dict)
    """Stream entries that have arrived, with the step of their plan (0: no plan yet). An entry that
    arrives again is ignored."""

    def arrive(self, groups: list[WaitingGroup]) -> None:
        """Add groups from the stream. A task that already waits is not added twice."""
        for group in groups:
            if group.entry not in self.seen and group.position not in self.waiting:
                self.waiting[group.position] = group
            self.seen.setdefault(group.entry, 0)

    def planned(self, entries: list[str], step: int) -> None:
        """Record that the plan of `step` uses these entries, so no other plan can."""
        self.seen |= dict.fromkeys(entries, step)
        taken = set(entries)
        self.waiting = {p: g for p, g in self.waiting.items() if g.entry not in taken}

    def unplanned(self, groups: Collection[WaitingGroup], gone: Collection[str]) -> None:
        """Undo the plan of `groups`: all groups wait again, except the entries `gone`, which are
        deleted from the stream."""
        for group in groups:
            self.seen.pop(group.entry, None)
        self.arrive([group for group in groups if group.entry not in gone])

    def committed(self, step: int) -> None:
        """Forget the entries of plans up to `step`. They are deleted and never arrive again."""
        self.seen = {entry: at for entry, at in self.seen.items() if at == 0 or at > step}

    def stale(self, ancestry: Ancestry, version: int) -> list[WaitingGroup]:
        """Remove and return the groups that are too stale for the batch trained at `version`."""
        left = self._batches_left(ancestry, version)
        old = [group for group in self.waiting.values() if left[group.position] < 0]
        for group in old:
            # Requeueing also deletes the entry from the stream.
            del self.waiting[group.position], self.seen[group.entry]
        return old

    @property
    def enough(self) -> bool:
        return len(self.waiting) >= self.batch

    def take(
        self,
        ancestry: Ancestry,
        version: int,
        step: int,
        in_flight: Mapping[int, int] = MappingProxyType({}),
    ) -> list[WaitingGroup] | None:
        """Return the batch of `step`, trained at `version`: oldest versions first, then in the
        run's order. Return None if there are too few groups, or if the batch should wait for a
        group in flight. `in_flight` counts the groups in flight by the oldest version that each may
        have.

        Raises ValueError if a group is too stale: call `stale` first to remove such groups.
        """
        if not self.enough:
            return None

        left = self._batches_left(ancestry, version)
        chosen = sorted(self.waiting.values(), key=lambda g: (left[g.position], g.position))
        chosen = chosen[: self.batch]
        if left[chosen[0].position] < 0:
            raise ValueError(
                f"the group of task {chosen[0].task} is too stale for version {version}"
            )
        due = Counter({v + self.max_staleness - version: n for v, n in in_flight.items()})
        if self._crowded(left[chosen[-1].position], due):
            return None
        self.planned([group.entry for group in chosen], step)
        return chosen

    def _batches_left(self, ancestry: Ancestry, version: int) -> dict[int, int]:
        """Return `Ancestry.batches_left` of each waiting group, by position."""
        limit = self.max_staleness
        return {p: ancestry.batches_left(g.oldest, version, limit) for p, g in self.waiting.items()}

    def _crowded(self, youngest: int, due: Counter[int]) -> bool:
        """Whether the groups in flight need more places in the next batches than there are, so that
        one of them should replace the `youngest` group of this batch. `due`: groups in flight by
        the last batch after this one that can train them."""
        total = 0
        for after in range(youngest):
            total += due[after]
            if total > after * self.batch:
                return True
        return False
