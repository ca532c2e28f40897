"""Which tokens of a packed row attend to which: a forest of segments, cut into calls of kernels.

A segment is a stretch of tokens that attends to itself causally and to all of its ancestors in
full; a sequence without relatives is one segment. Segments lie in depth-first order, so that all
descendants of one lie directly behind it. Nothing here looks at values; no mask exists.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import torch

SIMILAR, SHORT = 0.75, 64
"""A block's shortest piece has this share of its longest's queries, or the longest has no more than
SHORT: there another kernel call costs more than the padding."""
ROOT = -1
"""In place of a parent."""


@dataclass(frozen=True)
class Piece:
    """Queries and keys of one triangle (query i sees the keys up to i) or one rectangle (all see
    all)."""

    queries: torch.Tensor
    """[q] places in the row."""
    keys: torch.Tensor
    """[k] places in the row; of a triangle as many as queries."""
    causal: bool
    stage: int
    """Queries are in at most one piece of a stage, and all are in stage 0."""


class Places:
    """Tokens of a row, in some order, perhaps several times."""

    def __init__(self, index: torch.Tensor, device: torch.device) -> None:
        """`index`: [m] places, on the host."""
        self.size = len(index)
        ordered = self.size > 0 and bool((index.diff() == 1).all())
        self._start = int(index[0]) if ordered else None
        self._index = sent(index, device)

    def whole(self, x: torch.Tensor) -> bool:
        """Whether these are all entries of `x` [T, …], in their order."""
        return self._start == 0 and self.size == len(x)

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """[m, …] the entries of `x` [T, …]: a view where they lie behind each other."""
        if self._start is None:
            return x.index_select(0, self._index)
        return x.narrow(0, self._start, self.size)

    def add(self, total: torch.Tensor, parts: torch.Tensor) -> None:
        """Add `parts` [m, …] to `total` [T, …]."""
        if self._start is None:
            total.index_add_(0, self._index, parts.to(total.dtype))
        else:
            total.narrow(0, self._start, self.size).add_(parts)

    def put(self, total: torch.Tensor, parts: torch.Tensor) -> None:
        """Replace entries of `total` [T, …]."""
        if self._start is None:
            total.index_copy_(0, self._index, parts)
        else:
            total.narrow(0, self._start, self.size).copy_(parts)


@dataclass(frozen=True)
class Side:
    """The queries, or the keys, of several pieces, the shorter padded at the right end."""

    shape: tuple[int, int]
    """Pieces, and entries of the longest."""
    padded: Places
    """Of all entries; padding repeats the first of its piece."""
    places: Places
    """Of those that are no padding."""
    real: torch.Tensor | None
    """[m] which of the flattened entries are no padding; None: all."""

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """[n, longest, …] the entries of `x` [T, …]."""
        return self.padded.take(x).unflatten(0, self.shape)

    def flat(self, x: torch.Tensor) -> torch.Tensor:
        """[m, …] the entries of `x` [n, longest, …] that are no padding."""
        x = x.flatten(0, 1)
        return x if self.real is None else x.index_select(0, self.real)

    @cached_property
    def padding(self) -> torch.Tensor | None:
        """[n, longest] bool; None: there is none."""
        if self.real is None:
            return None
        found = torch.ones(self.shape[0] * self.shape[1], dtype=torch.bool, device=self.real.device)
        return found.index_fill_(0, self.real, False).view(self.shape)


@dataclass(frozen=True)
class Block:
    """Pieces that one call of a kernel computes. Padding of a triangle is hidden by the causal
    mask; a rectangle's keys are never padded."""

    queries: Side
    keys: Side
    causal: bool
    first: bool
    """Whether it is of stage 0."""

    @property
    def places(self) -> Places:
        """Of the queries."""
        return self.queries.places

    @property
    def key_places(self) -> Places:
        """Of the keys."""
        return self.keys.places


@dataclass(frozen=True)
class VarlenCall:
    """One call of a kernel that takes sequences of any length, queries aligned to the keys' end."""

    places: Places
    """Of the queries, sequence by sequence."""
    key_places: Places
    """Of the keys, likewise; a token may appear in several sequences."""
    bounds: torch.Tensor
    """[s + 1] int32: first query of each sequence, then their number."""
    key_bounds: torch.Tensor
    """[s + 1] int32: first key of each sequence, then their number."""
    longest: int
    longest_keys: int
    causal: bool
    window: int | None = None
    """Keys that a query sees at most, itself included."""

    @property
    def first(self) -> bool:
        """Whether it has every query of the row, with the query's own token among the keys."""
        return self.causal


@dataclass(frozen=True)
class PackedLayout:
    """The segments of one packed row, made once and used by every layer."""

    lengths: tuple[int, ...]
    """Tokens of each segment."""
    parents: tuple[int, ...]
    """The segment that each goes on from, or ROOT."""
    bounds: torch.Tensor
    """[n + 1] int32: first token of each segment, then the total."""
    _blocks: dict[int | None, tuple[Block, ...]] = field(default_factory=dict, compare=False)
    _varlen: dict[int | None, tuple[VarlenCall, ...]] = field(default_factory=dict, compare=False)

    @cached_property
    def starts(self) -> list[int]:
        """First token of each segment, then the total."""
        return [0, *accumulate(self.lengths)]

    @cached_property
    def positions(self) -> list[int]:
        """Position of each segment's first token: tokens of its ancestors."""
        found: list[int] = []
        for parent in self.parents:
            found.append(0 if parent == ROOT else found[parent] + self.lengths[parent])
        return found

    @cached_property
    def depths(self) -> list[int]:
        """Ancestors of each segment."""
        found: list[int] = []
        for parent in self.parents:
            found.append(0 if parent == ROOT else found[parent] + 1)
        return found

    @cached_property
    def ends(self) -> list[int]:
        """Of each segment, the first token behind it and all of its descendants."""
        found = [self.starts[i + 1] for i in range(len(self.lengths))]
        for i in reversed(range(len(self.lengths))):
            if self.parents[i] != ROOT:
                found[self.parents[i]] = max(found[self.parents[i]], found[i])
        return found

    @property
    def shares(self) -> bool:
        """Whether any segment goes on from another."""
        return any(parent != ROOT for parent in self.parents)

    def before(self, segment: int, tokens: int) -> torch.Tensor:
        """[at most `tokens`] row places of the last ones before `segment` in its sequence."""
        parts: list[torch.Tensor] = []
        parent = self.parents[segment]
        while tokens > 0 and parent != ROOT:
            end = self.starts[parent + 1]
            parts.append(torch.arange(max(self.starts[parent], end - tokens), end))
            tokens -= len(parts[-1])
            parent = self.parents[parent]
        return torch.cat(parts[::-1]) if parts else torch.zeros(0, dtype=torch.int64)

    def blocks(self, window: int | None) -> tuple[Block, ...]:
        """Calls of a kernel that takes rows of one length, in which each token attends to the last
        `window` tokens of its sequence (None: to all)."""
        if window is not None and window >= self.longest:
            window = None
        if window not in self._blocks:
            pieces = self._pieces() if window is None else self._windowed(window)
            made = tuple(_block(cut, self.bounds.device) for cut in _cuts(pieces))
            self._blocks[window] = made
        return self._blocks[window]

    def varlen(self, window: int | None) -> tuple[VarlenCall, ...]:
        """The same for a kernel that takes sequences of any length."""
        if window is not None and window >= self.longest:
            window = None
        if window not in self._varlen:
            self._varlen[window] = self._varlen_calls(window)
        return self._varlen[window]

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence, ancestors included."""
        return max(p + n for p, n in zip(self.positions, self.lengths, strict=True))

    # --- pieces ---------------------------------------------------------------------------------

    def _pieces(self) -> list[Piece]:
        pieces = []
        for i in range(len(self.lengths)):
            own = torch.arange(self.starts[i], self.starts[i + 1])
            pieces.append(Piece(own, own, causal=True, stage=0))
            if self.ends[i] > self.starts[i + 1]:
                below = torch.arange(self.starts[i + 1], self.ends[i])
                pieces.append(Piece(below, own, causal=False, stage=1 + self.depths[i]))
        return pieces

    def _windowed(self, window: int) -> list[Piece]:
        """In chunks of the window: a chunk sees itself as a triangle; of the `window` − 1 tokens
        before it, its token a those but the first a, which is a triangle in reversed order."""
        pieces = []
        for i, length in enumerate(self.lengths):
            for first in range(0, length, window):
                start = self.starts[i] + first
                own = torch.arange(start, min(start + window, self.starts[i + 1]))
                pieces.append(Piece(own, own, causal=True, stage=0))
                before = torch.arange(max(start - window + 1, self.starts[i]), start)
                if first == 0:
                    before = self.before(i, window - 1)
                if len(before):
                    pieces += _band(own, before, window)
        return pieces

    # --- calls of the varlen kernel -------------------------------------------------------------

    def _varlen_calls(self, window: int | None) -> tuple[VarlenCall, ...]:
        own = [torch.arange(*pair) for pair in zip(self.starts, self.starts[1:], strict=False)]
        if window is None:
            return self._call(own, own, causal=True), *self._of_ancestors()
        # Each segment behind the tokens before it that its window reaches.
        keys = [torch.cat([self.before(i, window - 1), tokens]) for i, tokens in enumerate(own)]
        return (self._call(own, keys, causal=True, window=window),)

    def _of_ancestors(self) -> list[VarlenCall]:
        """A call for each depth: the descendants of two segments of one depth are not the same."""
        calls = []
        parents = [i for i in range(len(self.lengths)) if self.ends[i] > self.starts[i + 1]]
        for depth in sorted({self.depths[i] for i in parents}):
            here = [i for i in parents if self.depths[i] == depth]
            queries = [torch.arange(self.starts[i + 1], self.ends[i]) for i in here]
            keys = [torch.arange(self.starts[i], self.starts[i + 1]) for i in here]
            calls.append(self._call(queries, keys, causal=False))
        return calls

    def _call(
        self,
        queries: list[torch.Tensor],
        keys: list[torch.Tensor],
        causal: bool,
        window: int | None = None,
    ) -> VarlenCall:
        device = self.bounds.device
        sizes, key_sizes = [len(x) for x in queries], [len(x) for x in keys]
        return VarlenCall(
            Places(torch.cat(queries), device),
            Places(torch.cat(keys), device),
            sent(_bounds(sizes), device),
            sent(_bounds(key_sizes), device),
            max(sizes),
            max(key_sizes),
            causal,
            window,
        )


def packed_layout(
    lengths: Sequence[int],
    device: torch.device | str = "cpu",
    parents: Sequence[int] | None = None,
) -> PackedLayout:
    """The layout of segments of these lengths, in this order; without `parents` all are roots.

    Raises ValueError where the order is not depth-first.
    """
    parents = tuple(parents) if parents is not None else (ROOT,) * len(lengths)
    path: list[int] = []
    for i, parent in enumerate(parents):
        while path and path[-1] != parent:
            path.pop()
        if parent != ROOT and not path:
            raise ValueError(f"segment {i} does not follow its parent {parent} depth-first")
        path.append(i)
    return PackedLayout(tuple(lengths), parents, sent(_bounds(lengths), device))


def sent(x: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """`x`, which nothing changes any more, on `device`. The host does not wait for it."""
    return x.to(device, non_blocking=True)


def _bounds(sizes: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *accumulate(sizes)], dtype=torch.int32)


def _band(own: torch.Tensor, before: torch.Tensor, window: int) -> list[Piece]:
    """What a chunk `own` [m ≤ window] sees of the tokens right before it, `before` [b < window].

    With r = 0 the nearest of these, token a of the chunk sees r ≤ t = window − 2 − a. Where t ≥ b
    that is all of them. For the others t runs from `low` to b − 1: all see r < `low`, and the rest
    is a triangle in reversed order.
    """
    reach, b = window - 1, len(before)
    nearest = before.flip(0)
    low = max(0, reach - len(own))
    slanted = own[:reach].flip(0)[: max(0, b - low)]
    pieces = [
        Piece(own[: reach - b], before, causal=False, stage=2),
        Piece(slanted, nearest[:low], causal=False, stage=2),
        Piece(slanted, nearest[low:], causal=True, stage=1),
    ]
    return [piece for piece in pieces if len(piece.queries) and len(piece.keys)]


def _cuts(pieces: list[Piece]) -> list[list[Piece]]:
    """Pieces that share a call, stage by stage, those with most queries first."""

    def kind(piece: Piece) -> tuple[int, int]:
        return piece.stage, 0 if piece.causal else len(piece.keys)

    cuts: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (*kind(piece), -len(piece.queries))):
        first = cuts[-1][0] if cuts else piece
        longest = len(first.queries)
        fits = longest <= SHORT or len(piece.queries) >= SIMILAR * longest
        if not cuts or kind(first) != kind(piece) or not fits:
            cuts.append([])
        cuts[-1].append(piece)
    return cuts


def _block(cut: list[Piece], device: torch.device) -> Block:
    first = cut[0]
    queries = _side([piece.queries for piece in cut], device)
    itself = first.stage == 0
    keys = queries if itself else _side([piece.keys for piece in cut], device)
    return Block(queries, keys, first.causal, itself)


def _side(lists: list[torch.Tensor], device: torch.device) -> Side:
    """`lists` of places, the first the longest."""
    shape = len(lists), len(lists[0])
    sizes = torch.tensor([len(entries) for entries in lists])[:, None]
    real = torch.arange(shape[1]) < sizes
    every = torch.cat(lists)
    if bool(real.all()):
        places = Places(every, device)
        return Side(shape, places, places, None)
    first = torch.stack([entries[0] for entries in lists])[:, None]
    table = first.expand(shape).masked_scatter(real, every)
    index = sent(real.flatten().nonzero().squeeze(1), device)
    return Side(shape, Places(table.flatten(), device), Places(every, device), index)
