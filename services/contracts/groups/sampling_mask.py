"""The sampling mask: the tokens that `top_k` and `top_p` left to sample from, and its encoding.

The learner computes log-probabilities over the same tokens as the sampler, so they are recorded:
another policy version would leave others. The encoding is the gaps between ascending ids, with
their low, middle and high bytes apart, deflated: 50 ids take 55 to 90 bytes, against 200 as
numbers of 4.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.integer]
BYTES = 3
"""Bytes of a gap: vocabularies have fewer than 2²⁴ tokens."""


@dataclass(frozen=True)
class SamplingMask:
    """counts [tokens]: candidates of each token, 0 for a token that was not sampled · ids
    [sum(counts)]: the candidates, ascending for each token."""

    counts: IntArray
    ids: IntArray

    @classmethod
    def of(cls, supports: Sequence[Sequence[int]]) -> "SamplingMask":
        """From the candidates of each token, in any order."""
        counts = np.array([len(support) for support in supports], dtype=np.int64)
        flat = np.array([id for support in supports for id in support], dtype=np.int64)
        token = np.repeat(np.arange(len(counts)), counts)
        return cls(counts, flat[np.lexsort((flat, token))])

    @classmethod
    def nothing(cls, tokens: int) -> "SamplingMask":
        """For `tokens` that were not sampled."""
        return cls(np.zeros(tokens, dtype=np.int64), np.zeros(0, dtype=np.int64))

    @classmethod
    def joined(cls, parts: Sequence["SamplingMask"]) -> "SamplingMask":
        """`parts` concatenated."""
        empty = cls.nothing(0)
        return cls(
            np.concatenate([empty.counts, *(part.counts for part in parts)]),
            np.concatenate([empty.ids, *(part.ids for part in parts)]),
        )

    def cut(self, start: int, end: int) -> "SamplingMask":
        """That of tokens [start, end)."""
        before, inside = self.counts[:start].sum(), self.counts[start:end]
        return SamplingMask(inside, self.ids[before : before + inside.sum()])

    def has(self, tokens: IntArray) -> npt.NDArray[np.bool_]:
        """[tokens] whether each of `tokens` is among its candidates."""
        token = np.repeat(np.arange(len(self.counts)), self.counts)
        among = np.zeros(len(self.counts), dtype=np.bool_)
        among[token[self.ids == tokens[token]]] = True
        return among

    def table(self) -> npt.NDArray[np.int32]:
        """[tokens, largest count]: the candidates of each token, filled up with −1."""
        width = int(self.counts.max(initial=0))
        inside = np.arange(width) < self.counts[:, None]
        filled = np.full(inside.shape, -1, dtype=np.int32)
        filled[inside] = self.ids
        return filled

    def pack(self) -> bytes:
        """Encode the mask as bytes."""
        gaps = np.diff(self.ids, prepend=0)
        gaps[self._firsts()] = self.ids[self._firsts()]
        planes = [(gaps >> shift).astype(np.uint8) for shift in range(0, 8 * BYTES, 8)]
        parts = [self.counts.astype("<u4"), *planes]
        return zlib.compress(b"".join(part.tobytes() for part in parts), 1)

    @classmethod
    def unpack(cls, tokens: int, data: bytes) -> "SamplingMask":
        """The inverse of `pack`. Raises ValueError for data of another number of tokens."""
        try:
            # Bounded, so that no small input inflates to a huge one.
            inflating = zlib.decompressobj()
            counts = np.frombuffer(inflating.decompress(data, 4 * tokens or 1), dtype="<u4")
            total = int(counts.sum(dtype=np.int64))
            planes = inflating.decompress(inflating.unconsumed_tail, BYTES * total + 1)
        except (zlib.error, ValueError) as error:
            raise ValueError(f"sampling mask cannot be read: {error}") from error
        if len(counts) != tokens or len(planes) != BYTES * total:
            raise ValueError(f"sampling mask is not that of {tokens} tokens")
        counts = counts.astype(np.int64)
        parts = np.frombuffer(planes, dtype=np.uint8).reshape(BYTES, total).astype(np.int64)
        sums = np.cumsum(sum(part << (8 * i) for i, part in enumerate(parts)))
        before = np.concatenate([[0], sums])[counts.cumsum() - counts]
        return cls(counts, sums - np.repeat(before, counts))

    def _firsts(self) -> IntArray:
        """Index of the first candidate of each token that has any."""
        return (self.counts.cumsum() - self.counts)[self.counts > 0]
