"""Which waiting groups the next batch trains on. A small state machine without I/O.

Invariants: a draw is in at most one batch; a batch holds only groups whose oldest token lies at
most η versions back; the oldest go first, so whatever would be too stale for the next batch is in
this one.
"""

from dataclasses import dataclass, field

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
    seen: set[str] = field(default_factory=set)
    """Entries that are planned, given back or duplicates: a redelivery of one is ignored."""

    def arrive(self, groups: list[Waiting]) -> None:
        """Take in groups from the stream; a draw that is already here counts once."""
        for group in groups:
            if group.entry not in self.seen and group.position not in self.waiting:
                self.waiting[group.position] = group
            self.seen.add(group.entry)

    def planned(self, entries: list[str]) -> None:
        """Entries of a recorded plan are not available to another one."""
        self.seen.update(entries)
        taken = set(entries)
        self.waiting = {p: g for p, g in self.waiting.items() if g.entry not in taken}

    def stale(self, ancestry: Ancestry, version: int) -> list[Waiting]:
        """Take out and return the groups that are too old for the batch trained at `version`."""
        old = [
            group
            for group in self.waiting.values()
            if ancestry.distance(group.oldest, version) > self.max_staleness
        ]
        for group in old:
            del self.waiting[group.position]
        return old

    def take(self, ancestry: Ancestry, version: int) -> list[Waiting] | None:
        """The batch for `version`, oldest versions first, then in the run's order; None while
        there are too few groups. Call `stale` first."""
        if len(self.waiting) < self.batch:
            return None
        chosen = sorted(
            self.waiting.values(),
            key=lambda g: (-ancestry.distance(g.oldest, version), g.position),
        )[: self.batch]
        self.planned([group.entry for group in chosen])
        return chosen
