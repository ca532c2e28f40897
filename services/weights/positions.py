"""Packs sorted positions into bytes: an Elias-Fano code whose low part is one byte.

A tensor is cut into blocks of 256 elements. `low` has each position's place in its block. `high`
has a run of bits for each block: a one for each of its positions, then a zero. Its first bit is the
lowest bit of its first byte.

For a share p of changed elements this takes 9 + 1 / (256 p) bits for each; docs/decisions.md
compares it with other codes.
"""

import numpy as np
from numpy.typing import NDArray

BLOCK_BITS = 8
"""A block has 256 elements, so a place in it is one byte."""


def blocks_of(size: int) -> int:
    return -(-size >> BLOCK_BITS)


def high_bytes(count: int, size: int) -> int:
    """Return the bytes of `high` for `count` positions in a tensor of `size` elements."""
    return -(-(count + blocks_of(size)) // 8)


def pack(positions: NDArray[np.int64], size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return (low, high) of rising positions below `size`."""
    bits = np.zeros(len(positions) + blocks_of(size), np.uint8)
    bits[(positions >> BLOCK_BITS) + np.arange(len(positions))] = 1
    return positions.astype(np.uint8), np.packbits(bits, bitorder="little")


def unpack(low: NDArray[np.uint8], high: NDArray[np.uint8], size: int) -> NDArray[np.int64]:
    """Return the positions. Raises ValueError unless they rise and are below `size`."""
    count = len(low)
    if len(high) != high_bytes(count, size):
        raise ValueError(
            f"{len(high)} bytes for the blocks of {size} elements with {count} changes, "
            f"{high_bytes(count, size)} expected"
        )
    ones = np.flatnonzero(np.unpackbits(high, bitorder="little").view(bool))
    # A zero ends the last block, and zeros fill the last byte.
    if len(ones) != count or (count and ones[-1] >= count + blocks_of(size) - 1):
        raise ValueError(f"its blocks do not have {count} changes together")
    positions: NDArray[np.int64] = ((ones - np.arange(count)) << BLOCK_BITS) | low
    if count and positions[-1] >= size:
        raise ValueError(f"position {positions[-1]} is beyond its {size} elements")
    if not np.all(positions[1:] > positions[:-1]):
        raise ValueError("its positions do not rise")
    return positions
