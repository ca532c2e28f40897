"""A task, one use of one dataset row by a run: its position in the run's order, and its row.

The order of a run is a seeded permutation of each epoch's rows, or the order of the dataset's file.
It is computed here alone, so that gateway, workers, learner and audit agree on it.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class TaskPosition:
    """A task's place in a run's order. Redis has it as text: `position:epoch:rows:index`."""

    position: int
    """Counts the run's tasks from 0, and names the task everywhere else."""
    epoch: int
    rows: int
    """Rows of the dataset in that epoch."""
    index: int
    """The place within the epoch."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`. Raises ValueError for anything else."""
        position, epoch, rows, index = map(int, text.split(":"))
        return cls(position, epoch, rows, index)

    def __str__(self) -> str:
        return f"{self.position}:{self.epoch}:{self.rows}:{self.index}"

    def row(self, seed: int | None) -> int:
        """Index of the dataset row, in a run with this `RLConfig.order_seed`."""
        if seed is None:
            return self.index
        return int(_permutation(seed, self.epoch, self.rows)[self.index])


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, rows: int) -> npt.NDArray[np.int64]:
    # PCG64 by name: numpy promises its stream, not that of default_rng.
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    return generator.permutation(rows)
