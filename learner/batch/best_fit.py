"""Pack conversations into rows by best fit, from a buffer of the conversations that come next.
Pure.

Rows are filled as nanochat's data loaders fill them: the longest conversation that still fits comes
next; among equally long conversations, the one that came first. If no conversation fits, the rest
of the row stays empty (`pad`), or a conversation fills it and loses its end (`crop`): the shortest
conversation, or the one that came first.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Literal, NamedTuple

Crop = Literal["shortest", "first"]
"""The buffered conversation that is cropped."""


class Placed(NamedTuple):
    position: int
    """The conversation's position in the run's order."""
    tokens: int
    """Tokens of the conversation in this row."""
    lost: int = 0
    """Tokens cut off its end. They are in no row."""


class BestFit:
    """Fills rows of `length` tokens. No conversation may be longer than a row."""

    def __init__(self, length: int, buffer: int, crop: Crop | None) -> None:
        """`crop` None: the rest of a row stays empty."""
        self._length, self._buffer, self._crop = length, buffer, crop
        self._of_length: dict[int, deque[int]] = {}
        """Positions of the buffered conversations, by token count, in order of arrival. Many
        conversations have the same length, so `_lengths` stays short."""
        self._lengths: list[int] = []
        """The keys of `_of_length`, sorted."""
        self._count = 0

    @property
    def waiting(self) -> list[int]:
        """Positions of the buffered conversations, in the order in which they came."""
        return sorted(chain.from_iterable(self._of_length.values()))

    def put(self, arrived: Iterable[tuple[int, int]]) -> None:
        """Buffer conversations, given as (position, tokens) in order of arrival."""
        for position, tokens in arrived:
            if tokens not in self._of_length:
                self._of_length[tokens] = deque()
                insort(self._lengths, tokens)
            self._of_length[tokens].append(position)
            self._count += 1

    def row(self, following: Iterator[tuple[int, int]]) -> list[Placed]:
        """Return the conversations of the next row, each with its tokens in the row and those that
        a crop cut off. `following` yields (position, tokens) of the conversations that come next.
        Return an empty list if no conversation remains."""
        placed: list[Placed] = []
        free = self._length
        while free:
            self.put(islice(following, self._buffer - self._count))
            if not self._count:
                break
            fits = bisect_right(self._lengths, free) - 1
            if fits >= 0:
                tokens = self._lengths[fits]
                placed.append(Placed(self._take(fits), tokens))
            elif self._crop:
                at = 0 if self._crop == "shortest" else self._first()
                lost = self._lengths[at] - free
                placed.append(Placed(self._take(at), free, lost))
            else:
                break
            free -= placed[-1].tokens
        return placed

    def _first(self) -> int:
        """Return the index in `_lengths` of the conversation that came first."""
        return min(range(len(self._lengths)), key=lambda at: self._of_length[self._lengths[at]][0])

    def _take(self, at: int) -> int:
        """Remove the first conversation that has `_lengths[at]` tokens. Return its position."""
        tokens = self._lengths[at]
        same = self._of_length[tokens]
        position = same.popleft()
        if not same:
            del self._of_length[tokens], self._lengths[at]
        self._count -= 1
        return position
