"""Which rank trains which samples of a minibatch. Pure, and the same in every process.

The unit is the sample: eight answers to one prompt are too few units for many ranks if they stay
together. Samples of a group stay together where that costs no balance, since each rank that has
some of them reads the whole group, and computes its prompt. Advantages and statistics of a group
come from all its samples wherever they train.
"""

import heapq
from collections.abc import Sequence

from learner.batch.cost import SequenceCost
from services.contracts.groups.group_lengths import GroupLengths

TOLERANCE = 0.01
"""A rank may have so much more to do, as a share, where that splits fewer groups."""

Hand = dict[int, list[int]]
"""What one rank gets: numbers of samples, by the index of their group."""


def deal(
    groups: Sequence[GroupLengths], ranks: int, cost: SequenceCost, shared: bool = False
) -> list[Hand]:
    """The samples of `groups` for each of `ranks`, by their `cost`; `shared`: a rank computes the
    prompt of samples of one group once.

    Every sample is dealt once; one that does not train (length 0) goes where its group already is.
    """
    whole = [cost.samples(group.prompt, group.completions, shared) for group in groups]
    even = -(-sum(whole) // ranks)
    # Whole groups only; whole groups while a rank has less than its share, then samples; samples.
    dealt = [_Table(groups, ranks, cost, shared) for _ in range(3)]
    for table, limit in zip(dealt, (sum(whole), even, 0), strict=True):
        table.deal(whole, limit)
    best = min(table.highest for table in dealt)
    good = [table for table in dealt if table.highest <= best * (1 + TOLERANCE)]
    chosen = min(good, key=lambda table: sum(len(hand) for hand in table.hands))
    return [
        {group: sorted(samples) for group, samples in sorted(hand.items())} for hand in chosen.hands
    ]


class _Table:
    """One way to deal: what each rank has so far, and what it costs."""

    def __init__(
        self, groups: Sequence[GroupLengths], ranks: int, cost: SequenceCost, shared: bool
    ) -> None:
        self._groups, self._cost, self._shared = groups, cost, shared
        self.hands: list[Hand] = [{} for _ in range(ranks)]
        self._loads = [0] * ranks
        self._order = [(0, rank) for rank in range(ranks)]
        """A heap of (load, rank), with entries of earlier loads among them."""
        self._holders: list[list[int]] = [[] for _ in groups]

    @property
    def highest(self) -> int:
        """The load of the rank that has most to do."""
        return max(self._loads)

    def deal(self, whole: Sequence[int], limit: int) -> None:
        """Give each group of cost `whole` to the lightest rank, the heaviest first (Graham 1969),
        if that leaves the rank's load within `limit`; then the samples of the others."""
        split = []
        for group in sorted(range(len(whole)), key=lambda g: (-whole[g], g)):
            rank = self._lightest()
            if self._loads[rank] + whole[group] <= limit:
                self._give(rank, group, range(len(self._groups[group].completions)), whole[group])
            else:
                split.append(group)
        self._deal_samples(split)

    def _deal_samples(self, split: Sequence[int]) -> None:
        samples = [(g, i) for g in split for i in range(len(self._groups[g].completions))]
        alone = {one: self._added(self._lightest(), *one) for one in samples}
        for group, number in sorted(samples, key=lambda one: (-alone[one], one)):
            holders = self._holders[group]
            if not self._groups[group].completions[number] and holders:
                self._give(holders[0], group, [number], 0)
                continue
            # A rank that has some of the group already reads it anyway, and has its prompt.
            among = [*holders, self._lightest()]
            after = [self._loads[rank] + self._added(rank, group, number) for rank in among]
            rank = among[after.index(min(after))]
            self._give(rank, group, [number], min(after) - self._loads[rank])

    def _added(self, rank: int, group: int, number: int) -> int:
        """What one more sample of a group costs `rank`."""
        lengths = self._groups[group]
        tokens = lengths.completions[number]
        if not tokens:
            return 0
        if self._shared and group in self.hands[rank]:
            return self._cost.completion(lengths.prompt, tokens)
        return self._cost.sequence(lengths.prompt, tokens)

    def _give(self, rank: int, group: int, samples: Sequence[int], load: int) -> None:
        if group not in self.hands[rank]:
            self._holders[group].append(rank)
        self.hands[rank].setdefault(group, []).extend(samples)
        self._loads[rank] += load
        heapq.heappush(self._order, (self._loads[rank], rank))

    def _lightest(self) -> int:
        while self._order[0][0] != self._loads[self._order[0][1]]:
            heapq.heappop(self._order)
        return self._order[0][1]
