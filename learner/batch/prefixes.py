"""Which samples compute a common prefix once: prompts of a group, turns of a conversation.

Sequences are put in an order in which those with a common beginning lie behind each other. Then one
number each says all: how many tokens it shares with the one before it. A prefix is shared where a
cost estimate from lengths alone says that it pays; what is shared never changes a gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from learner.batch.cost import SequenceCost


@dataclass(frozen=True)
class Sharing:
    """When it pays to compute a prefix once, by FLOPs of a forward pass."""

    cost: SequenceCost
    merge: int
    """What it takes to merge the attention of a token to a shared prefix with that to its own
    sequence, for each number of its queries: time at the memory, in FLOPs of that time."""
    least: int
    """Tokens that have to be saved at one prefix, which takes further calls of kernels."""

    def pays(self, start: int, end: int, copies: int, behind: int) -> bool:
        """Whether `copies` sequences, with `behind` tokens in all after their common `end` tokens,
        should share those from `start` on."""
        saved = (copies - 1) * (end - start)
        flops = (copies - 1) * (self.cost.prompt(end) - self.cost.prompt(start))
        numbers = self.cost.attention + self.cost.windowed
        return saved >= self.least and flops > behind * self.merge * numbers


@dataclass(frozen=True)
class Prefixes:
    """Sequences in an order that shows what they share."""

    order: list[int]
    """Indices of the sequences."""
    lengths: list[int]
    """Tokens of each, in this order."""
    shared: list[int]
    """Tokens that each shares with the one before it, in this order; the first none."""

    def families(self, budget: int) -> list[range]:
        """Stretches of the order that share nothing with each other, cut where they compute more
        than `budget` tokens; a longer sequence stands alone."""
        found: list[range] = []
        tokens = 0
        for i, (length, shared) in enumerate(zip(self.lengths, self.shared, strict=True)):
            if shared and tokens + length - shared <= budget:
                found[-1] = range(found[-1].start, i + 1)
                tokens += length - shared
            else:
                found.append(range(i, i + 1))
                tokens = length
        return found

    def within(self, family: range) -> list[int]:
        """`shared` of a family, of which the first shares nothing."""
        return [0, *self.shared[family.start + 1 : family.stop]]


def common_prefixes(
    sequences: Sequence[torch.Tensor],
    experts: Sequence[torch.Tensor | None],
    sharing: Sharing | None,
) -> Prefixes:
    """The prefixes that `sequences` ([t] token ids each) share where it pays, the longest sequence
    first of those that share nothing. A token is only the same where its recorded `experts` [t, …]
    are. Without `sharing` nothing is shared."""
    if sharing is None:
        order = sorted(range(len(sequences)), key=lambda i: (-len(sequences[i]), i))
        return Prefixes(order, [len(sequences[i]) for i in order], [0] * len(order))
    # The order of the bytes is that of the numbers.
    keys = [sequence.numpy().astype(">u4").tobytes() for sequence in sequences]
    order = sorted(range(len(sequences)), key=lambda i: (keys[i], i))
    lengths = [len(sequences[i]) for i in order]
    common = [0] * min(len(order), 1)
    for one, other in pairwise(order):
        same = _common(sequences[one], sequences[other])
        common.append(_common(experts[one], experts[other], same))
    return Prefixes(order, lengths, worthwhile(lengths, common, sharing))


def _common(one: torch.Tensor | None, other: torch.Tensor | None, most: int | None = None) -> int:
    """How many first entries, at most `most`, are the same."""
    if one is None or other is None:
        return (most or 0) if one is other else 0
    size = min(len(one), len(other)) if most is None else most
    apart = (one[:size] != other[:size]).flatten(1).any(1) if one.ndim > 1 else None
    differ = (one[:size] != other[:size] if apart is None else apart).nonzero()
    return int(differ[0]) if len(differ) else size


def worthwhile(lengths: Sequence[int], common: Sequence[int], sharing: Sharing) -> list[int]:
    """Of the `common` tokens of each sequence and the one before it, those that are shared: at each
    fork of the tree all sequences below it share what lies before it, or none does."""
    shared = [0] * len(lengths)
    # Sequences from `low` to `high` share `depth` tokens already.
    open_ = [(0, len(lengths), 0)]
    while open_:
        low, high, depth = open_.pop()
        if high - low < 2:
            continue
        fork = min(common[low + 1 : high])
        starts = [low, *(i for i in range(low + 1, high) if common[i] == fork)]
        behind = sum(lengths[low:high]) - (high - low) * fork
        if fork > depth and sharing.pays(depth, fork, len(starts), behind):
            depth = fork
        for i in starts[1:]:
            shared[i] = depth
        open_ += [(a, b, depth) for a, b in zip(starts, [*starts[1:], high], strict=True)]
    return shared


@dataclass(frozen=True)
class Segments:
    """A forest: stretches of tokens that one or several sequences have in common."""

    lengths: list[int]
    """Tokens of each, in depth-first order: behind each other they are each sequence's tokens after
    those that it shares with the one before it."""
    parents: list[int]
    """The segment that each goes on from, or −1."""


def token_places(lengths: Sequence[int], shared: Sequence[int]) -> list[torch.Tensor]:
    """Where the tokens of each sequence are in the row of all segments: [t] each."""
    places: list[torch.Tensor] = []
    start = 0
    for length, depth in zip(lengths, shared, strict=True):
        before = places[-1][:depth] if depth else torch.zeros(0, dtype=torch.int64)
        own = torch.arange(start, start + length - depth)
        places.append(torch.cat([before, own]))
        start += len(own)
    return places


def segments(lengths: Sequence[int], shared: Sequence[int]) -> Segments:
    """The segments of sequences of these `lengths`, of which each shares its first `shared` tokens
    with the one before it."""
    # Each sequence adds one stretch, which later ones fork off from.
    forks: list[set[int]] = [set() for _ in lengths]
    from_: list[int] = []
    path: list[int] = []
    for i, depth in enumerate(shared):
        while path and shared[path[-1]] >= depth:
            path.pop()
        from_.append(path[-1] if path else -1)
        if path and depth < lengths[path[-1]]:
            forks[path[-1]].add(depth)
        if lengths[i] > depth:
            path.append(i)
    found = Segments([], [])
    ends: dict[tuple[int, int], int] = {}
    for i, length in enumerate(lengths):
        start, parent = shared[i], -1
        if start:
            parent = ends[from_[i], start]
        for end in sorted({*forks[i], length} - {start}):
            ends[i, end] = len(found.lengths)
            found.lengths.append(end - start)
            found.parents.append(parent)
            start, parent = end, ends[i, end]
    return found
