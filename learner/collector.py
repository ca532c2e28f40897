"""Which waiting groups the next batch trains on. A small state machine without I/O.

Invariants: a draw is in at most one batch; a batch holds only groups whose oldest token lies at
most η versions back; the oldest go first, so whatever would be too stale for the next batch is in
this one. Groups that are still in the works are reckoned with: earliest deadline first, over those
that are done and those that are not.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from learner.staleness import Ancestry


@dataclass(frozen=True)
class Waiting:
    """A finished group in the stream, as far as planning needs it."""

    entry: str
    """Id of the stream entry."""
    draw: str
    """`position:epoch:rows:index`."""
    oldest: str
    """Version tag of its oldest sampled token."""
    bytes: int

    @property
    def position(self) -> int:
        """The draw's place in the run's order, which names it."""
        return int(self.draw.partition(":")[0])


@dataclass
class Collector:
    """Groups that have arrived and are in no plan yet."""

    batch: int
    max_staleness: int
    waiting: dict[int, Waiting] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    """Entries that were taken in, with the step that they are planned for (0: none yet): a
    redelivery of one is ignored."""

    def arrive(self, groups: list[Waiting]) -> None:
        """Take in groups from the stream; a draw that is already here counts once."""
        for group in groups:
            if group.entry not in self.seen and group.position not in self.waiting:
                self.waiting[group.position] = group
            self.seen.setdefault(group.entry, 0)

    def planned(self, entries: list[str], step: int) -> None:
        """Entries of the recorded plan of `step` are not available to another one."""
        self.seen |= dict.fromkeys(entries, step)
        taken = set(entries)
        self.waiting = {p: g for p, g in self.waiting.items() if g.entry not in taken}

    def committed(self, step: int) -> None:
        """The plans up to `step` are: their entries are deleted, and never come again."""
        self.seen = {entry: at for entry, at in self.seen.items() if at == 0 or at > step}

    def stale(self, ancestry: Ancestry, version: int) -> list[Waiting]:
        """Take out and return the groups that are too old for the batch trained at `version`."""
        old = [
            group
            for group in self.waiting.values()
            if ancestry.distance(group.oldest, version) > self.max_staleness
        ]
        for group in old:
            # Out of the stream, too, once it is given back.
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
        awaited: Mapping[int, int] = MappingProxyType({}),
    ) -> list[Waiting] | None:
        """The batch of `step`, trained at `version`: oldest versions first, then in the run's
        order. Raises ValueError where one is too old: `stale` takes those out.

        None while there are too few groups, or while it is better to wait for one that is in the
        works: `awaited` counts those by the version that they may be as old as.
        """
        if not self.enough:
            return None

        def last_chance(group: Waiting) -> int:
            """In how many batches after this one it can be trained at the latest."""
            return self.max_staleness - ancestry.distance(group.oldest, version)

        chosen = sorted(self.waiting.values(), key=lambda g: (last_chance(g), g.position))
        chosen = chosen[: self.batch]
        if last_chance(chosen[0]) < 0:
            raise ValueError(
                f"the group of draw {chosen[0].draw} is too stale for version {version}"
            )
        chances = Counter({v + self.max_staleness - version: n for v, n in awaited.items()})
        if self._crowded(last_chance(chosen[-1]), chances):
            return None
        self.planned([group.entry for group in chosen], step)
        return chosen

    def _crowded(self, youngest: int, chances: Counter[int]) -> bool:
        """Whether the next batches cannot hold all that is in the works and must be in them, so
        that one of these had better be in this batch, in place of the `youngest` of it. `chances`:
        how many are in the works, by the last batch after this one that can train them."""
        due = 0
        for after in range(youngest):
            due += chances[after]
            if due > after * self.batch:
                return True
        return False
