"""Which waiting groups the next batch trains on. A small state machine without I/O.

Invariants: a task is in at most one batch; a batch holds only groups whose oldest token is at most
`max_staleness` versions old; the oldest go first, so that a group which would be too stale for the
next batch is in this one. Groups in flight have places reserved: earliest deadline first, over
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
    """A finished group in the stream, as far as planning needs it."""

    entry: str
    """Id of the stream entry."""
    task: str
    """`position:epoch:rows:index`."""
    oldest: str
    """Version tag of its oldest sampled token."""
    bytes: int
    lengths: GroupLengths

    @property
    def position(self) -> int:
        """The task's place in the run's order, which names it."""
        return TaskPosition.parse(self.task).position


@dataclass
class BatchSelection:
    """Groups that have arrived and are in no plan yet."""

    batch: int
    """Groups of a batch."""
    max_staleness: int
    waiting: dict[int, WaitingGroup] = field(default_factory=dict)
    """By the position of their tasks."""
    seen: dict[str, int] = field(default_factory=dict)
    """Entries that have arrived, with the step that they are planned for (0: none yet): a
    redelivery of one is ignored."""

    def arrive(self, groups: list[WaitingGroup]) -> None:
        """Add groups from the stream; a task that is already here counts once."""
        for group in groups:
            if group.entry not in self.seen and group.position not in self.waiting:
                self.waiting[group.position] = group
            self.seen.setdefault(group.entry, 0)

    def planned(self, entries: list[str], step: int) -> None:
        """Entries of the recorded plan of `step` are not available to another one."""
        self.seen |= dict.fromkeys(entries, step)
        taken = set(entries)
        self.waiting = {p: g for p, g in self.waiting.items() if g.entry not in taken}

    def unplanned(self, groups: Collection[WaitingGroup], gone: Collection[str]) -> None:
        """The plan of `groups` is dropped: all wait again, but for the entries `gone`, which are
        deleted from the stream."""
        for group in groups:
            self.seen.pop(group.entry, None)
        self.arrive([group for group in groups if group.entry not in gone])

    def committed(self, step: int) -> None:
        """Forget the entries of plans up to `step`: they are deleted, and never come again."""
        self.seen = {entry: at for entry, at in self.seen.items() if at == 0 or at > step}

    def stale(self, ancestry: Ancestry, version: int) -> list[WaitingGroup]:
        """Remove and return the groups that are too stale for the batch trained at `version`."""
        old = [
            group
            for group in self.waiting.values()
            if ancestry.too_stale(group.oldest, version, self.max_staleness)
        ]
        for group in old:
            # Requeueing deletes the entry from the stream, too.
            del self.waiting[group.position], self.seen[group.entry]
        return old

    @property
    def enough(self) -> bool:
        """Whether there are as many groups as a batch has."""
        return len(self.waiting) >= self.batch

    def take(
        self,
        ancestry: Ancestry,
        version: int,
        step: int,
        in_flight: Mapping[int, int] = MappingProxyType({}),
    ) -> list[WaitingGroup] | None:
        """The batch of `step`, trained at `version`: oldest versions first, then in the run's
        order. Raises ValueError where one is too stale: `stale` removes those.

        None while there are too few groups, or while it is better to wait for one in flight:
        `in_flight` counts those by the version that they may be as old as.
        """
        if not self.enough:
            return None

        def batches_left(group: WaitingGroup) -> int:
            """In how many batches after this one it can be trained at the latest."""
            return self.max_staleness - ancestry.staleness(group.oldest, version)

        chosen = sorted(self.waiting.values(), key=lambda g: (batches_left(g), g.position))
        chosen = chosen[: self.batch]
        if ancestry.too_stale(chosen[0].oldest, version, self.max_staleness):
            raise ValueError(
                f"the group of task {chosen[0].task} is too stale for version {version}"
            )
        due = Counter({v + self.max_staleness - version: n for v, n in in_flight.items()})
        if self._crowded(batches_left(chosen[-1]), due):
            return None
        self.planned([group.entry for group in chosen], step)
        return chosen

    def _crowded(self, youngest: int, due: Counter[int]) -> bool:
        """Whether the groups in flight that the next batches must train are more than fit there, so
        that one of them should replace the `youngest` of this batch. `due`: how many are in
        flight, by the last batch after this one that can train them."""
        total = 0
        for after in range(youngest):
            total += due[after]
            if total > after * self.batch:
                return True
        return False
