"""Decide which samples compute a common prefix once: the prompt of a group, or earlier turns of a
conversation.

Sequences are sorted so that sequences with a common prefix are neighbours. Then one number for each
sequence is enough: the tokens that it shares with its predecessor. A prefix is shared if a cost
estimate from lengths alone says that sharing pays. Sharing never changes a gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from learner.batch.cost import SequenceCost


@dataclass(frozen=True)
class Sharing:
    """Decides when computing a prefix once pays, by FLOPs of a forward pass."""

    cost: SequenceCost
    merge: int
    """Cost of merging a token's attention to a shared prefix with its attention to its own
    sequence, for each number of its queries: memory time, expressed in FLOPs."""
    least: int
    """Fewest tokens that a shared prefix must save, because it takes extra kernel calls."""

    def pays(self, start: int, end: int, copies: int, behind: int) -> bool:
        """Whether `copies` sequences should share their tokens from `start` to `end`. `behind`: the
        tokens of all copies after `end`."""
        saved = (copies - 1) * (end - start)
        flops = (copies - 1) * (self.cost.prompt(end) - self.cost.prompt(start))
        numbers = self.cost.attention + self.cost.windowed
        return saved >= self.least and flops > behind * self.merge * numbers


@dataclass(frozen=True)
class Prefixes:
    """Sequences, sorted so that each can share a prefix with its predecessor."""

    order: list[int]
    """Indices of the sequences, sorted."""
    lengths: list[int]
    """Tokens of each sequence, in this order."""
    shared: list[int]
    """Tokens that each sequence shares with its predecessor, in this order; 0 for the first."""

    def families(self, budget: int) -> list[range]:
        """Cut the order into families that share nothing with each other and compute at most
        `budget` tokens each. A longer sequence is alone in its family."""
        families: list[range] = []
        tokens = 0
        for i, (length, shared) in enumerate(zip(self.lengths, self.shared, strict=True)):
            if shared and tokens + length - shared <= budget:
                families[-1] = range(families[-1].start, i + 1)
                tokens += length - shared
            else:
                families.append(range(i, i + 1))
                tokens = length
        return families

    def within(self, family: range) -> list[int]:
        """Return `shared` of a family. Its first sequence shares nothing."""
        return [0, *self.shared[family.start + 1 : family.stop]]


def common_prefixes(
    sequences: Sequence[torch.Tensor],
    experts: Sequence[torch.Tensor | None],
    sharing: Sharing | None,
) -> Prefixes:
    """Find the prefixes that `sequences` ([t] token ids each) share. Two tokens are equal only if
    their recorded `experts` [t, …] are equal too. Without `sharing` nothing is shared, and the
    longest sequence comes first."""
    if sharing is None:
        order = sorted(range(len(sequences)), key=lambda i: (-len(sequences[i]), i))
        return Prefixes(order, [len(sequences[i]) for i in order], [0] * len(order))
    # Big-endian bytes sort as the numbers do.
    keys = [sequence.numpy().astype(">u4").tobytes() for sequence in sequences]
    order = sorted(range(len(sequences)), key=lambda i: (keys[i], i))
    lengths = [len(sequences[i]) for i in order]
    common = [0] * min(len(order), 1)
    for first, second in pairwise(order):
        same = _common(sequences[first], sequences[second])
        common.append(_common(experts[first], experts[second], same))
    return Prefixes(order, lengths, worthwhile(lengths, common, sharing))


def _common(
    first: torch.Tensor | None, second: torch.Tensor | None, limit: int | None = None
) -> int:
    """Count the leading entries that are equal, at most `limit`."""
    if first is None or second is None:
        return (limit or 0) if first is second else 0
    size = min(len(first), len(second)) if limit is None else limit
    unequal = (first[:size] != second[:size]).flatten(1).any(1) if first.ndim > 1 else None
    differ = (first[:size] != second[:size] if unequal is None else unequal).nonzero()
    return int(differ[0]) if len(differ) else size


def worthwhile(lengths: Sequence[int], common: Sequence[int], sharing: Sharing) -> list[int]:
    """Return the tokens that each sequence shares with its predecessor, given the tokens that they
    have in `common`. At each fork of the tree either all sequences below it share the tokens before
    the fork, or no sequence does."""
    shared = [0] * len(lengths)
    # Sequences from `low` to `high` already share `depth` tokens.
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
    """A forest of segments: stretches of tokens that one or several sequences have in common."""

    lengths: list[int]
    """Tokens of each segment, in depth-first order. The segments that a sequence adds are its
    tokens after the shared prefix."""
    parents: list[int]
    """The segment that each segment continues, or −1."""


def token_places(lengths: Sequence[int], shared: Sequence[int]) -> list[torch.Tensor]:
    """Return the places [t] of each sequence's tokens in the row of all segments."""
    places: list[torch.Tensor] = []
    start = 0
    for length, depth in zip(lengths, shared, strict=True):
        prefix = places[-1][:depth] if depth else torch.zeros(0, dtype=torch.int64)
        suffix = torch.arange(start, start + length - depth)
        places.append(torch.cat([prefix, suffix]))
        start += len(suffix)
    return places


def segments(lengths: Sequence[int], shared: Sequence[int]) -> Segments:
    """Return the segments of sequences with these `lengths`. Each sequence shares its first
    `shared` tokens with its predecessor."""
    # Each sequence adds one stretch. Later sequences fork off from it.
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
    forest = Segments([], [])
    ends: dict[tuple[int, int], int] = {}
    for i, length in enumerate(lengths):
        start, parent = shared[i], -1
        if start:
            parent = ends[from_[i], start]
        for end in sorted({*forks[i], length} - {start}):
            ends[i, end] = len(forest.lengths)
            forest.lengths.append(end - start)
            forest.parents.append(parent)
            start, parent = end, ends[i, end]
    return forest
