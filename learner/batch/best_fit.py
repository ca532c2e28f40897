"""Which conversations share a packed row: best fit, from a buffer of those that come next. Pure.

As nanochat's data loaders fill rows: the longest conversation that still fits whole comes next, the
first of several as long. If none fits, the rest of the row stays empty (`pad`), or a conversation
fills it and loses its end (`crop`): the shortest one, or the one that came first.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Literal, NamedTuple

Crop = Literal["shortest", "first"]
"""Which buffered conversation is cropped."""


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

    def __init__(self, length: int, buffer: int, crop: Crop | None) -> None:
        """`crop` None: the rest of a row stays empty."""
        self._length, self._buffer, self._crop = length, buffer, crop
        self._of_length: dict[int, deque[int]] = {}
        """Positions of the buffered conversations by their tokens, in the order in which they
        came. Most have a length that others have: only a new one costs a place among `_lengths`."""
        self._lengths: list[int] = []
        """The lengths that there are, sorted."""
        self._count = 0

    @property
    def waiting(self) -> list[int]:
        """Positions of the buffered conversations, in the order in which they came."""
        return sorted(chain.from_iterable(self._of_length.values()))

    def put(self, arrived: Iterable[tuple[int, int]]) -> None:
        """Buffer conversations: (position, tokens) of each, as they come."""
        for position, tokens in arrived:
            if tokens not in self._of_length:
                self._of_length[tokens] = deque()
                insort(self._lengths, tokens)
            self._of_length[tokens].append(position)
            self._count += 1

    def row(self, following: Iterator[tuple[int, int]]) -> list[Placed]:
        """The next row. `following` gives position and tokens of the conversations that come next.
        Empty when there is none left."""
        placed: list[Placed] = []
        room = self._length
        while room:
            self.put(islice(following, self._buffer - self._count))
            if not self._count:
                break
            fits = bisect_right(self._lengths, room) - 1
            if fits >= 0:
                tokens = self._lengths[fits]
                placed.append(Placed(self._take(fits), tokens))
            elif self._crop:
                at = 0 if self._crop == "shortest" else self._first()
                lost = self._lengths[at] - room
                placed.append(Placed(self._take(at), room, lost))
            else:
                break
            room -= placed[-1].tokens
        return placed

    def _first(self) -> int:
        """The place in `_lengths` of the conversation that came first."""
        return min(range(len(self._lengths)), key=lambda at: self._of_length[self._lengths[at]][0])

    def _take(self, at: int) -> int:
        """Take the conversation that came first of those with the length `_lengths[at]`. Returns
        its position."""
        tokens = self._lengths[at]
        same = self._of_length[tokens]
        position = same.popleft()
        if not same:
            del self._of_length[tokens], self._lengths[at]
        self._count -= 1
        return position
