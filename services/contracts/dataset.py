"""A dataset row as every process sees it, and where it sits in a run's order.

The order of a run is a seeded permutation of each epoch's rows; a *draw* is a position in it.
Both are pure functions here, so that gateway, workers, learner and audit agree on them.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt


class Row(msgspec.Struct, kw_only=True):
    """One prompt. Chat prompts are lists of {"role", "content"}; `answer` is the verifier's
    reference as it stood in the source (text, number or JSON), `meta` the unmapped columns."""

    prompt: str | list[dict[str, Any]]
    answer: Any = None
    meta: dict[str, Any] = {}


@dataclass(frozen=True)
class Position:
    """Where a draw lies: the epoch, its number of rows, and the index within the epoch."""

    epoch: int
    rows: int
    index: int


def row_of(position: Position, seed: int) -> int:
    """The dataset row that `position` stands for, in a run with this `seed`."""
    return int(_permutation(seed, position.epoch, position.rows)[position.index])


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, rows: int) -> npt.NDArray[np.int64]:
    # PCG64 by name: numpy promises its stream, not that of default_rng.
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    return generator.permutation(rows)
