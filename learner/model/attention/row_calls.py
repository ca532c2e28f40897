"""Calls of attention kernels: the tokens of a packed row that are queries and keys of each call.

`row_layout` decides which tokens attend to which. This module combines its pieces into few calls.
Each call knows where in the row its inputs come from and its outputs go. Values are never read.
"""

from dataclasses import dataclass
from functools import cached_property

import torch

SIMILAR, SHORT = 0.75, 64
"""Pieces share a block if the shortest has at least this share of the longest's queries, or if the
longest has at most SHORT queries: then an extra kernel call costs more than padding."""


@dataclass(frozen=True)
class AttentionPiece:
    """Queries and keys of one triangle (query i sees the keys up to i) or of one rectangle (all
    queries see all keys)."""

    queries: torch.Tensor
    """[q] places in the row."""
    keys: torch.Tensor
    """[k] places in the row. A triangle has as many keys as queries."""
    causal: bool
    stage: int
    """Each query is in at most one piece of a stage, and in exactly one piece of stage 0."""


class Places:
    """Places in a row, in any order, possibly repeated. They read and write entries of a tensor."""

    def __init__(self, index: torch.Tensor, device: torch.device) -> None:
        """`index`: [m] places, on the host."""
        self.size = len(index)
        ordered = self.size > 0 and bool((index.diff() == 1).all())
        self._start = int(index[0]) if ordered else None
        self._index = sent(index, device)

    def whole(self, x: torch.Tensor) -> bool:
        """Whether these are all entries of `x` [T, …], in order."""
        return self._start == 0 and self.size == len(x)

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """[m, …] the entries of `x` [T, …]: a view if they are contiguous."""
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
    """The queries, or the keys, of several pieces. Shorter pieces are padded at the right end."""

    shape: tuple[int, int]
    """Number of pieces, and entries of the longest piece."""
    padded: Places
    """Places of all entries. Padding repeats the first entry of its piece."""
    places: Places
    """Places of the entries without padding."""
    real: torch.Tensor | None
    """[m] indices of the flattened entries that are not padding. None: no entry is padding."""

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """[n, longest, …] the entries of `x` [T, …]."""
        return self.padded.take(x).unflatten(0, self.shape)

    def flat(self, x: torch.Tensor) -> torch.Tensor:
        """[m, …] the entries of `x` [n, longest, …] without padding."""
        x = x.flatten(0, 1)
        return x if self.real is None else x.index_select(0, self.real)

    @cached_property
    def padding(self) -> torch.Tensor | None:
        """[n, longest] bool mask of padding. None without padding."""
        if self.real is None:
            return None
        mask = torch.ones(self.shape[0] * self.shape[1], dtype=torch.bool, device=self.real.device)
        return mask.index_fill_(0, self.real, False).view(self.shape)


@dataclass(frozen=True)
class Block:
    """Pieces that one kernel call computes. The causal mask hides the padding of a triangle. A
    rectangle's keys are never padded."""

    queries: Side
    keys: Side
    causal: bool
    first: bool
    """Whether the pieces are of stage 0."""

    @property
    def places(self) -> Places:
        return self.queries.places

    @property
    def key_places(self) -> Places:
        return self.keys.places


@dataclass(frozen=True)
class VarlenCall:
    """A call of a kernel that takes sequences of any length, with queries aligned to the keys'
    end."""

    places: Places
    """Places of the queries, sequence by sequence."""
    key_places: Places
    """Places of the keys, sequence by sequence. A token may be in several sequences."""
    bounds: torch.Tensor
    """[s + 1] int32: first query of each sequence, then the number of queries."""
    key_bounds: torch.Tensor
    """[s + 1] int32: first key of each sequence, then the number of keys."""
    longest: int
    longest_keys: int
    causal: bool
    window: int | None = None
    """Most keys that a query sees, including its own token."""

    @property
    def first(self) -> bool:
        """Whether the call has every query of the row, with the query's own token among the
        keys."""
        return self.causal


def cuts(pieces: list[AttentionPiece]) -> list[list[AttentionPiece]]:
    """Group pieces that share a call, stage by stage, the largest pieces first."""

    def kind(piece: AttentionPiece) -> tuple[int, int]:
        return piece.stage, 0 if piece.causal else len(piece.keys)

    groups: list[list[AttentionPiece]] = []
    for piece in sorted(pieces, key=lambda piece: (*kind(piece), -len(piece.queries))):
        first = groups[-1][0] if groups else piece
        longest = len(first.queries)
        fits = longest <= SHORT or len(piece.queries) >= SIMILAR * longest
        if not groups or kind(first) != kind(piece) or not fits:
            groups.append([])
        groups[-1].append(piece)
    return groups


def block_of(cut: list[AttentionPiece], device: torch.device) -> Block:
    """Return the call for these pieces (`cuts`)."""
    first = cut[0]
    queries = _side([piece.queries for piece in cut], device)
    itself = first.stage == 0
    keys = queries if itself else _side([piece.keys for piece in cut], device)
    return Block(queries, keys, first.causal, itself)


def _side(lists: list[torch.Tensor], device: torch.device) -> Side:
    """Combine `lists` of places; the first is the longest."""
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
    """Copy `x`, which must not change any more, to `device` without blocking the host."""
    return x.to(device, non_blocking=True)
