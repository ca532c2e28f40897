"""In which order a run reads the rows of several datasets. Pure; a function of seed and position.

An epoch has a number of rows of each dataset, in one seeded order. Each dataset is read through
permutations of its own, one after another: with half of its rows in an epoch, two epochs have them
all. A share of its rows may be held out, by a permutation that never changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.contracts.config.data import Component, Data

HELD_OUT, ORDER, MIXED = 0, 1, 2
"""The numbers of the random streams of a seed."""
Indices = npt.NDArray[np.int32 | np.int64]


@dataclass(frozen=True)
class Source:
    """The rows of one dataset."""

    rows: int
    held_out: int
    """Rows that are never trained on."""
    per_epoch: int
    """Rows that the dataset contributes to an epoch."""
    split: int | None = None
    """The number of an earlier source of the same dataset whose split this source shares; None: it
    has its own split."""

    @property
    def trained(self) -> int:
        """Rows that are trained on."""
        return self.rows - self.held_out


def sources(components: Sequence[Component], rows: Sequence[int], share: float) -> list[Source]:
    """Return the rows that each dataset contributes to an epoch, given `rows` and the held-out
    `share` (at most all rows but one). Raises ValueError if a dataset is empty, or gives an epoch
    no row."""
    for component, count in zip(components, rows, strict=True):
        if not count:
            raise ValueError(f"dataset {component.dataset} is empty: add rows to it first")
    held = [min(round(share * count), count - 1) for count in rows]
    left = [count - out for count, out in zip(rows, held, strict=True)]
    weights = [component.weight for component in components if component.weight is not None]
    taken = [(component.repeats or 1.0) * n for component, n in zip(components, left, strict=True)]
    if weights:
        taken = [weight / sum(weights) * sum(left) for weight in weights]
    for component, number in zip(components, taken, strict=True):
        if round(number) < 1:
            raise ValueError(
                f"dataset {component.dataset} gives {number:.2g} rows to an epoch: raise its "
                "repeats or weight, or leave it out"
            )
    names = [component.dataset for component in components]
    # A dataset that is in the mixture twice must hold out the same rows both times.
    firsts = [first if (first := names.index(name)) < i else None for i, name in enumerate(names)]
    counted = zip(rows, held, taken, firsts, strict=True)
    return [Source(count, out, round(number), first) for count, out, number, first in counted]


class Mixture:
    """The endless order in which a run takes rows of several datasets."""

    def __init__(self, sources: Sequence[Source], seed: int) -> None:
        self.sources, self._seed = list(sources), seed
        self.epoch_rows = sum(source.per_epoch for source in sources)
        """Rows of an epoch."""
        self._starts = np.cumsum([0, *(source.per_epoch for source in sources)])
        self._kept: dict[tuple[int, int], dict[int, Indices]] = {}
        """The last two permutations of each stream: of five million rows they take 40 MB."""

    def block(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """[n] datasets and [n] rows at the positions from `start` to `stop` of the order."""
        positions = np.arange(start, stop, dtype=np.int64)
        which = np.zeros(len(positions), dtype=np.int64)
        rows = np.zeros(len(positions), dtype=np.int64)
        for epoch in range(start // self.epoch_rows, -(-stop // self.epoch_rows)):
            here = positions // self.epoch_rows == epoch
            order = self._permutation(MIXED, 0, epoch, self.epoch_rows)
            slots = order[positions[here] % self.epoch_rows]
            datasets = np.searchsorted(self._starts, slots, side="right") - 1
            which[here] = datasets
            inside = slots - self._starts[datasets]
            for number, source in enumerate(self.sources):
                mine = np.flatnonzero(here)[datasets == number]
                places = inside[datasets == number] + epoch * source.per_epoch
                rows[mine] = self._rows(number, source, places)
        return which, rows

    def place(self, position: int) -> tuple[int, int]:
        """The dataset and its row at one position of the order."""
        which, rows = self.block(position, position + 1)
        return int(which[0]), int(rows[0])

    def held_out(self, number: int) -> npt.NDArray[np.int64]:
        """Rows of dataset `number` that are never trained on, in their order."""
        source = self.sources[number]
        return np.sort(self._split(number, source)[source.trained :])

    def _rows(self, number: int, source: Source, places: npt.NDArray[np.int64]) -> Indices:
        """The rows at `places` of the permutations of dataset `number`, laid end to end."""
        rows: Indices = np.zeros(len(places), dtype=np.int64)
        rounds = places // source.trained
        for round_ in np.unique(rounds):
            order = self._permutation(ORDER, number, int(round_), source.trained)
            rows[rounds == round_] = order[places[rounds == round_] % source.trained]
        if not source.held_out:
            return rows
        return self._split(number, source)[rows]

    def _split(self, number: int, source: Source) -> Indices:
        """The rows of dataset `number`: first those that are trained, then those held out."""
        first = number if source.split is None else source.split
        return self._permutation(HELD_OUT, first, 0, source.rows)

    def _permutation(self, stream: int, number: int, epoch: int, rows: int) -> Indices:
        kept = self._kept.setdefault((stream, number), {})
        if epoch not in kept:
            if len(kept) == 2:
                del kept[min(kept)]
            # PCG64 by name: numpy promises its stream, not that of default_rng.
            entropy = np.random.SeedSequence([self._seed, stream, number, epoch])
            permutation = np.random.Generator(np.random.PCG64(entropy)).permutation(rows)
            kept[epoch] = permutation.astype(np.int32) if rows < 2**31 else permutation
        return kept[epoch]


def prompt_mixture(data: Data, rows: Sequence[int], seed: int) -> Mixture:
    """Return the order of an RL run's prompts, given the `rows` of each dataset. Raises ValueError
    as `sources` does, with the names that metrics have."""
    called = [
        component.model_copy(update={"dataset": name})
        for component, name in zip(data.components, data.names, strict=True)
    ]
    return Mixture(sources(called, rows, 0.0), seed)
