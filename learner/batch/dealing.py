"""Deal the samples of a minibatch to ranks. Pure, and the same in every process.

The unit is the sample, because a few whole groups of eight answers cannot be balanced over many
ranks. Each rank that trains samples of a group reads the whole group and computes its prompt.
Samples of a group therefore stay together unless that costs balance. A group's advantages and
statistics always come from all its samples, wherever they train.
"""

import heapq
from collections.abc import Sequence

from learner.batch.cost import SequenceCost
from services.contracts.groups.group_lengths import GroupLengths

TOLERANCE = 0.01
"""Extra load, as a share of the best balance, that is accepted to split fewer groups."""

RankSamples = dict[int, list[int]]
"""The samples of one rank: sample numbers by the index of their group."""


def deal(
    groups: Sequence[GroupLengths], ranks: int, cost: SequenceCost, shared: bool = False
) -> list[RankSamples]:
    """Deal the samples of `groups` to `ranks` ranks, balanced by `cost`. `shared`: a rank computes
    a group's prompt once for all its samples of the group.

    Every sample is dealt exactly once. A sample that does not train (length 0) goes to a rank that
    already has samples of its group.
    """
    whole = [cost.samples(group.prompt, group.completions, shared) for group in groups]
    even = -(-sum(whole) // ranks)
    # Three candidates: whole groups only; whole groups up to a rank's even share and then samples;
    # samples only.
    dealt = [_Dealing(groups, ranks, cost, shared) for _ in range(3)]
    for table, limit in zip(dealt, (sum(whole), even, 0), strict=True):
        table.deal(whole, limit)
    best = min(table.highest for table in dealt)
    good = [table for table in dealt if table.highest <= best * (1 + TOLERANCE)]
    chosen = min(good, key=lambda table: sum(len(hand) for hand in table.hands))
    return [
        {group: sorted(samples) for group, samples in sorted(hand.items())} for hand in chosen.hands
    ]


class _Dealing:
    """A candidate dealing: the samples of each rank and their cost."""

    def __init__(
        self, groups: Sequence[GroupLengths], ranks: int, cost: SequenceCost, shared: bool
    ) -> None:
        self._groups, self._cost, self._shared = groups, cost, shared
        self.hands: list[RankSamples] = [{} for _ in range(ranks)]
        self._loads = [0] * ranks
        self._order = [(0, rank) for rank in range(ranks)]
        """A heap of (load, rank). It also holds outdated entries."""
        self._holders: list[list[int]] = [[] for _ in groups]

    @property
    def highest(self) -> int:
        return max(self._loads)

    def deal(self, whole: Sequence[int], limit: int) -> None:
        """Give each whole group to the least loaded rank, the most expensive group first (Graham
        1969), if the rank's load stays within `limit`. Then deal the samples of the remaining
        groups."""
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
        alone = {sample: self._added(self._lightest(), *sample) for sample in samples}
        for group, number in sorted(samples, key=lambda sample: (-alone[sample], sample)):
            holders = self._holders[group]
            if not self._groups[group].completions[number] and holders:
                self._give(holders[0], group, [number], 0)
                continue
            # A rank that has samples of this group already reads the group and computes its prompt.
            among = [*holders, self._lightest()]
            after = [self._loads[rank] + self._added(rank, group, number) for rank in among]
            rank = among[after.index(min(after))]
            self._give(rank, group, [number], min(after) - self._loads[rank])

    def _added(self, rank: int, group: int, number: int) -> int:
        """Return the cost of one more sample of `group` on `rank`."""
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
