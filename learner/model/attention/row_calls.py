"""Calls of attention kernels: which tokens of a packed row each has as queries and as keys.

`row_layout` decides what attends to what; here pieces of it are put together so that few calls do,
and each knows where in the row its inputs come from and its outputs go. Nothing looks at values.
"""

from dataclasses import dataclass
from functools import cached_property

import torch

SIMILAR, SHORT = 0.75, 64
"""A block's shortest piece has this share of its longest's queries, or the longest has no more than
SHORT: there another kernel call costs more than the padding."""


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


def cuts(pieces: list[Piece]) -> list[list[Piece]]:
    """Pieces that share a call, stage by stage, those with most queries first."""

    def kind(piece: Piece) -> tuple[int, int]:
        return piece.stage, 0 if piece.causal else len(piece.keys)

    found: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (*kind(piece), -len(piece.queries))):
        first = found[-1][0] if found else piece
        longest = len(first.queries)
        fits = longest <= SHORT or len(piece.queries) >= SIMILAR * longest
        if not found or kind(first) != kind(piece) or not fits:
            found.append([])
        found[-1].append(piece)
    return found


def block_of(cut: list[Piece], device: torch.device) -> Block:
    """The call for these pieces (`cuts`)."""
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


def sent(x: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """`x`, which nothing changes any more, on `device`. The host does not wait for it."""
    return x.to(device, non_blocking=True)
