"""Which conversations share a packed row: best fit, from a buffer of those that come next. Pure.

As nanochat's data loaders fill rows: the longest conversation that still fits whole comes next, the
first of several as long; where none fits, the rest of the row stays empty (`pad`), or the shortest
one fills it and loses its end (`crop`).
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Placed(NamedTuple):
    """A conversation in a row."""

    position: int
    """In the run's order, which names it."""
    tokens: int
    """That the row has of it."""
    lost: int = 0
    """Of its end, which no row has."""


class BestFit:
    """Fills rows of `length` tokens, none of whose conversations is longer."""

    def __init__(self, length: int, buffer: int, crop: bool) -> None:
        self._length, self._buffer, self._crop = length, buffer, crop
        # Sorted; of equal lengths the latest first, so that the last one of a length came first.
        self._waiting: list[tuple[int, int]] = []

    @property
    def waiting(self) -> list[int]:
        """Positions of the buffered conversations, in the order in which they came."""
        return sorted(-negative for _, negative in self._waiting)

    def put(self, arrived: Iterable[tuple[int, int]]) -> None:
        """Buffer conversations: (position, tokens) of each."""
        for position, tokens in arrived:
            insort(self._waiting, (tokens, -position))

    def row(self, following: Callable[[], tuple[int, int] | None]) -> list[Placed]:
        """The next row. `following` gives the next conversation's position and tokens, None when
        there is none. Empty when there is none left."""
        placed: list[Placed] = []
        room = self._length
        while room:
            while len(self._waiting) < self._buffer and (arrived := following()) is not None:
                self.put([arrived])
            if not self._waiting:
                break
            fits = bisect_right(self._waiting, (room, 0)) - 1
            if fits >= 0:
                tokens, negative = self._waiting.pop(fits)
                placed.append(Placed(-negative, tokens))
            elif self._crop:
                shortest = bisect_right(self._waiting, (self._waiting[0][0], 0)) - 1
                tokens, negative = self._waiting.pop(shortest)
                placed.append(Placed(-negative, room, tokens - room))
            else:
                break
            room -= placed[-1].tokens
        return placed
