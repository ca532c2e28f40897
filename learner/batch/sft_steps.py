"""Choose the rows of each step of a supervised run. Pure: lengths in, places out.

The next step depends only on the position in the run's order and on the conversations that wait to
be packed. Checkpoints hold both, so a run resumes exactly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from learner.batch.best_fit import BestFit, Placed
from services.contracts.config.sft import SFTConfig, check_packed_rows
from services.contracts.rows.mixture import Mixture

BLOCK = 4096
"""Positions of the order that are read at a time."""
MANY = 1 << 16
"""Positions that are read at a time to count steps."""
ROWS_PER_STEP = 128


class StepRow(NamedTuple):
    component: int
    row: int
    tokens: int
    """Tokens of the row in the step, from the row's start; for a pair, the tokens of both answers.
    """


@dataclass(frozen=True)
class SFTStep:
    uses: list[StepRow]
    lost: int
    """Tokens of its rows that were cut off."""
    padded: int
    """Padding in its packed rows."""
    skipped: int
    """Rows that were skipped before or within this step."""
    position: int
    """The next position in the order."""
    waiting: list[int]
    """Earlier positions whose rows still wait to be packed."""

    @property
    def tokens(self) -> int:
        """Tokens of its rows that are trained."""
        return sum(use.tokens for use in self.uses)

    @property
    def done(self) -> int:
        """Rows of the order that are trained or skipped by now."""
        return self.position - len(self.waiting)


class Lengths(NamedTuple):
    """Token counts of the rows of one dataset."""

    tokens: npt.NDArray[np.int32]
    """[n] tokens; for a pair, the tokens of both answers."""
    first: npt.NDArray[np.int32]
    """[n] first token in the loss; for a pair, the later one of its two answers."""
    longer: npt.NDArray[np.int32] | None = None
    """[n] tokens of the longer answer of a pair, with its prompt. None: a row has one answer."""

    def longest(self, row: int) -> int:
        """Tokens of the longest sequence of `row`."""
        return int((self.tokens if self.longer is None else self.longer)[row])

    def taken(
        self, rows: npt.NDArray[np.int64] | slice, limit: int | None, crops: bool
    ) -> npt.NDArray[np.int32]:
        """[n] tokens of each of `rows` in a step if a sequence may have at most `limit` tokens. A
        skipped row has 0."""
        tokens = self.tokens[rows]
        if limit is None:
            return tokens
        longest = tokens if self.longer is None else self.longer[rows]
        cropped = np.where(self.first[rows] < limit, limit + np.minimum(tokens - longest, limit), 0)
        return np.where(longest <= limit, tokens, cropped if crops else 0).astype(np.int32)


class _Places(NamedTuple):
    """The rows at consecutive positions of the order."""

    components: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    taken: npt.NDArray[np.int64]
    """Tokens in a step; 0 if the row is skipped."""


class SFTSteps:
    def __init__(
        self,
        config: SFTConfig,
        mixture: Mixture,
        lengths: Sequence[Lengths],
        longest: int | None,
        position: int = 0,
        waiting: Sequence[int] = (),
    ) -> None:
        """`longest`: the longest sequence allowed in tokens, or None for any. The steps begin at
        `position`, with the rows at the `waiting` positions still to be packed. Raises ValueError
        for packed rows that do not make up a step."""
        self._mixture, self._lengths, self._longest = mixture, lengths, longest
        self._overlong = config.data.overlong
        self._rows = config.training.rows_per_step or ROWS_PER_STEP
        self._end = _end(config, mixture)
        self._position, self._skipped, self._lost = position, 0, 0
        self._block = 0, _Places(*(np.zeros(0, np.int64) for _ in range(3)))
        self._places: dict[int, tuple[int, int]] = {}
        """Dataset and row of positions that were read and are not in a step yet."""
        self._fit: BestFit | None = None
        if packing := config.packing:
            if longest is None:
                raise ValueError(
                    "the model's config names no longest sequence, so packed rows have no length: "
                    "set data.max_seq_len"
                )
            self._rows = check_packed_rows(packing, longest)
            self._fit = BestFit(longest, packing.buffer, packing.cropped)
            self._fit.put((at, self._taken(at)[0]) for at in waiting)

    @property
    def rows(self) -> int:
        """Rows of a step. With packing: packed rows."""
        return self._rows

    def __iter__(self) -> Iterator[SFTStep]:
        while (step := self.next()) is not None:
            yield step

    def count(self) -> int:
        """Count the steps until the run's epochs end. Uses up the rows that wait to be packed."""
        assert self._end is not None, "a run of max_steps has no end"
        blocks = (
            self._read(start, start + MANY).taken
            for start in range(self._position, self._end, MANY)
        )
        trained = (taken[taken > 0] for taken in blocks)
        if self._fit is None:
            rows = sum(map(len, trained))
        else:
            following = enumerate(chain.from_iterable(taken.tolist() for taken in trained))
            rows = 0
            while self._fit.row(following):
                rows += 1
        return -(-rows // self._rows)

    def run_on(self) -> None:
        """Let the order have no end: the run's steps were raised beyond those of its epochs."""
        self._end = None

    def next(self) -> SFTStep | None:
        self._skipped = self._lost = 0
        placed: list[Placed] = []
        padded = 0
        for _ in range(self._rows):
            row = self._row()
            if not row:
                break
            placed += row
            if self._fit is not None:
                assert self._longest is not None
                padded += self._longest - sum(placement.tokens for placement in row)
        if not placed:
            return None
        lost = self._lost + sum(placement.lost for placement in placed)
        uses = [
            StepRow(*self._places.pop(placement.position), placement.tokens) for placement in placed
        ]
        waiting = self._fit.waiting if self._fit is not None else []
        return SFTStep(uses, lost, padded, self._skipped, self._position, waiting)

    def _row(self) -> list[Placed]:
        if self._fit is not None:
            return self._fit.row(iter(self._following, None))
        following = self._following()
        return [] if following is None else [Placed(*following)]

    def _following(self) -> tuple[int, int] | None:
        """Return position and tokens of the next row that can be trained."""
        while self._end is None or self._position < self._end:
            at, self._position = self._position, self._position + 1
            tokens, lost = self._taken(at)
            if tokens:
                self._lost += lost
                return at, tokens
            del self._places[at]
            self._skipped += 1
        return None

    def _taken(self, position: int) -> tuple[int, int]:
        """Return the tokens of the row at `position` that are trained, and the tokens that are
        lost. Both are 0 for a skipped row."""
        start, block = self._block
        if not start <= position < start + len(block.rows):
            start = position - position % BLOCK
            block = self._read(start, start + BLOCK)
            self._block = start, block
        at = position - start
        component, row = int(block.components[at]), int(block.rows[at])
        self._places[position] = component, row
        taken = int(block.taken[at])
        return taken, int(self._lengths[component].tokens[row]) - taken if taken else 0

    def _read(self, start: int, stop: int) -> _Places:
        """Read the positions from `start` to `stop`, or to the run's end."""
        stop = stop if self._end is None else min(stop, self._end)
        components, rows = self._mixture.block(start, stop)
        taken = np.zeros(len(rows), np.int64)
        for component, lengths in enumerate(self._lengths):
            selected = components == component
            taken[selected] = lengths.taken(rows[selected], self._longest, self._overlong != "skip")
        return _Places(components, rows, taken)


def _end(config: SFTConfig, mixture: Mixture) -> int | None:
    """Return the position at which the run ends. None: the run ends after `max_steps` steps."""
    if config.training.max_steps is not None:
        return None
    return max(round((config.training.epochs or 1) * mixture.epoch_rows), 1)


def step_count(
    config: SFTConfig, mixture: Mixture, lengths: Sequence[Lengths], longest: int | None
) -> int:
    """Count the steps of a whole run: `max_steps`, or the steps of its epochs. Counting fills all
    packed rows, which takes seconds for a few million conversations. Raises as `SFTSteps` does."""
    if config.training.max_steps is not None:
        return config.training.max_steps
    return SFTSteps(config, mixture, lengths, longest).count()
