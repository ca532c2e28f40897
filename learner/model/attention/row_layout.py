"""The attention layout of a packed row: a forest of segments, cut into kernel calls.

A segment is a stretch of tokens that attends causally to itself and fully to all its ancestors. A
sequence that shares nothing is one segment. Segments are in depth-first order, so all descendants
of a segment directly follow it. This module reads only lengths. It builds no mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import torch

from learner.model.attention.row_calls import (
    AttentionPiece,
    Block,
    Places,
    VarlenCall,
    block_of,
    cuts,
    sent,
)

ROOT = -1
"""The parent of a root."""


@dataclass(frozen=True)
class PackedLayout:
    """The segments of one packed row, made once and used by every layer."""

    lengths: tuple[int, ...]
    """Tokens of each segment."""
    parents: tuple[int, ...]
    """The segment that each segment continues, or ROOT."""
    bounds: torch.Tensor
    """[n + 1] int32: first token of each segment, then the total."""
    _blocks: dict[int | None, tuple[Block, ...]] = field(default_factory=dict, compare=False)
    _varlen: dict[int | None, tuple[VarlenCall, ...]] = field(default_factory=dict, compare=False)

    @cached_property
    def starts(self) -> list[int]:
        return [0, *accumulate(self.lengths)]

    @cached_property
    def positions(self) -> list[int]:
        """Position of each segment's first token: tokens of its ancestors."""
        firsts: list[int] = []
        for parent in self.parents:
            firsts.append(0 if parent == ROOT else firsts[parent] + self.lengths[parent])
        return firsts

    @cached_property
    def depths(self) -> list[int]:
        counts: list[int] = []
        for parent in self.parents:
            counts.append(0 if parent == ROOT else counts[parent] + 1)
        return counts

    @cached_property
    def ends(self) -> list[int]:
        """End of each segment and all its descendants: the first token after them."""
        last = [self.starts[i + 1] for i in range(len(self.lengths))]
        for i in reversed(range(len(self.lengths))):
            if self.parents[i] != ROOT:
                last[self.parents[i]] = max(last[self.parents[i]], last[i])
        return last

    @property
    def shares(self) -> bool:
        return any(parent != ROOT for parent in self.parents)

    def before(self, segment: int, tokens: int) -> torch.Tensor:
        """[at most `tokens`] row places of the last tokens before `segment` in its sequence."""
        parts: list[torch.Tensor] = []
        parent = self.parents[segment]
        while tokens > 0 and parent != ROOT:
            end = self.starts[parent + 1]
            parts.append(torch.arange(max(self.starts[parent], end - tokens), end))
            tokens -= len(parts[-1])
            parent = self.parents[parent]
        return torch.cat(parts[::-1]) if parts else torch.zeros(0, dtype=torch.int64)

    def blocks(self, window: int | None) -> tuple[Block, ...]:
        """Return the calls of a kernel that takes rows of one length. Each token attends to the
        last `window` tokens of its sequence (None: to all)."""
        window = self._effective(window)
        if window not in self._blocks:
            pieces = self._pieces() if window is None else self._windowed(window)
            made = tuple(block_of(cut, self.bounds.device) for cut in cuts(pieces))
            self._blocks[window] = made
        return self._blocks[window]

    def varlen(self, window: int | None) -> tuple[VarlenCall, ...]:
        """Return the calls of a kernel that takes sequences of any length. `window`: see
        `blocks`."""
        window = self._effective(window)
        if window not in self._varlen:
            self._varlen[window] = self._varlen_calls(window)
        return self._varlen[window]

    def _effective(self, window: int | None) -> int | None:
        return None if window is not None and window >= self.longest else window

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence, including its ancestors."""
        return max(p + n for p, n in zip(self.positions, self.lengths, strict=True))

    # --- pieces ---------------------------------------------------------------------------------

    def _pieces(self) -> list[AttentionPiece]:
        pieces = []
        for i in range(len(self.lengths)):
            tokens = torch.arange(self.starts[i], self.starts[i + 1])
            pieces.append(AttentionPiece(tokens, tokens, causal=True, stage=0))
            if self.ends[i] > self.starts[i + 1]:
                below = torch.arange(self.starts[i + 1], self.ends[i])
                pieces.append(AttentionPiece(below, tokens, causal=False, stage=1 + self.depths[i]))
        return pieces

    def _windowed(self, window: int) -> list[AttentionPiece]:
        """Cut the row into chunks of the window. A chunk sees itself as a triangle. The chunk's
        token a sees the `window` − 1 tokens before the chunk except the first a: a triangle in
        reversed order."""
        pieces = []
        for i, length in enumerate(self.lengths):
            for first in range(0, length, window):
                start = self.starts[i] + first
                chunk = torch.arange(start, min(start + window, self.starts[i + 1]))
                pieces.append(AttentionPiece(chunk, chunk, causal=True, stage=0))
                before = torch.arange(max(start - window + 1, self.starts[i]), start)
                if first == 0:
                    before = self.before(i, window - 1)
                if len(before):
                    pieces += _band(chunk, before, window)
        return pieces

    # --- calls of the varlen kernel -------------------------------------------------------------

    def _varlen_calls(self, window: int | None) -> tuple[VarlenCall, ...]:
        segments = [torch.arange(*pair) for pair in zip(self.starts, self.starts[1:], strict=False)]
        if window is None:
            return self._call(segments, segments, causal=True), *self._of_ancestors()
        # The keys of a segment begin with the earlier tokens that its window reaches.
        keys = [
            torch.cat([self.before(i, window - 1), tokens]) for i, tokens in enumerate(segments)
        ]
        return (self._call(segments, keys, causal=True, window=window),)

    def _of_ancestors(self) -> list[VarlenCall]:
        """Return one call per depth, because segments of the same depth have different
        descendants."""
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
    """Return the layout of segments that are `lengths` long, in order. Without `parents`
    all segments are roots.

    Raises ValueError if the order is not depth-first.
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


def _bounds(sizes: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *accumulate(sizes)], dtype=torch.int32)


def _band(chunk: torch.Tensor, before: torch.Tensor, window: int) -> list[AttentionPiece]:
    """Return the pieces of a chunk `chunk` [m ≤ window] and the tokens directly before it, `before`
    [b < window].

    With r = 0 for the nearest token before the chunk, token a of the chunk sees r ≤ t = window − 2
    − a. If t ≥ b, the token sees all of `before`. For the other tokens t runs from `low` to b − 1:
    they all see r < `low`, and the rest is a triangle in reversed order.
    """
    reach, b = window - 1, len(before)
    nearest = before.flip(0)
    low = max(0, reach - len(chunk))
    slanted = chunk[:reach].flip(0)[: max(0, b - low)]
    pieces = [
        AttentionPiece(chunk[: reach - b], before, causal=False, stage=2),
        AttentionPiece(slanted, nearest[:low], causal=False, stage=2),
        AttentionPiece(slanted, nearest[low:], causal=True, stage=1),
    ]
    return [piece for piece in pieces if len(piece.queries) and len(piece.keys)]
