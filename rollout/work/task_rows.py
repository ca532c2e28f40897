"""Finds a task's dataset and row, how prompts of that dataset are sampled, and reads its rows. A
dataset may grow while it is read."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rollout.episodes import load_episode
from rollout.work.run_context import RunContext
from services.contracts.config.episodes import Sessions
from services.contracts.records import RunRecord
from services.contracts.rows.dataset import Row
from services.contracts.rows.mixture import Mixture, prompt_mixture
from services.contracts.rows.task import TaskPosition
from services.datasets.stored_rows import DatasetReader
from services.store import Store
from services.volume import GatewayAway, Volume


class MissingDataset(ValueError):
    """The run's dataset does not exist."""


class RowsAway(OSError):
    """A dataset's files cannot be read on this host now. A retry may succeed, and no row is to
    blame."""


class Rows:
    def __init__(self, store: Store, volume: Volume, name: str) -> None:
        self._store = store
        self._volume = volume
        self._name = name
        self._reader: DatasetReader | None = None
        """Knows only segments whose files are on this host."""
        self._looking = asyncio.Lock()
        self.count = 0
        """Rows known here. The dataset may have more by now."""

    async def row(self, index: int) -> Row:
        """Return the row at `index`. Looks for newer segments if `index` is beyond the known ones.
        Raises MissingDataset, IndexError, DamagedFile, GatewayAway, and RowsAway if a file cannot
        be read or is gone."""
        try:
            return (await self._with(index)).row(index)
        except GatewayAway:
            raise
        except OSError as error:
            # The next call looks for all files again.
            self._reader = None
            raise RowsAway(
                f"the files of dataset {self._name} cannot be read on this host: {error}"
            ) from error

    async def _with(self, index: int) -> DatasetReader:
        """Return a reader that knows the row, if the dataset has it."""
        if self._reader is not None and index < len(self._reader):
            return self._reader
        # One fetch at a time. The waiting calls then find the files, or fetch again themselves.
        async with self._looking:
            if self._reader is not None and index < len(self._reader):
                return self._reader
            record = await self._store.datasets.find(self._name)
            if record is None:
                raise MissingDataset(f"there is no dataset {self._name!r}")
            self.count = record.rows
            reader = self._reader or DatasetReader(self._volume, record)
            await reader.fetch(record)
            self._reader = reader
            return reader


@dataclass(frozen=True)
class DatasetWork:
    name: str
    """The name in metrics; '' in a run with one dataset."""
    number: int
    """Its index in the run's mixture."""
    context: RunContext
    """The run's context with this dataset's template, rewards, limits and episode."""
    rows: Rows


@dataclass(frozen=True)
class TaskRow:
    dataset: DatasetWork
    index: int

    @property
    def place(self) -> str:
        """The row's name in messages."""
        return f"{self.index} of {self.dataset.name}" if self.dataset.name else str(self.index)

    def __str__(self) -> str:
        return f"dataset row {self.place}"

    @property
    def key(self) -> str:
        """Names the row in the run, in the store's records about it."""
        return f"{self.dataset.number}/{self.index}" if self.dataset.name else str(self.index)

    @property
    def prompt_key(self) -> str:
        """Names the prompt, also in a run that continues this one with another mixture."""
        return f"{self.dataset.context.config.data.dataset}/{self.index}"


class TaskRows:
    def __init__(
        self, datasets: Sequence[DatasetWork], seed: int | None, mixture: Mixture | None = None
    ) -> None:
        """`seed`: see `RLConfig.order_seed`. `mixture`: the order of several datasets, made with
        this seed; None for one dataset."""
        self._datasets, self._seed, self._mixture = datasets, seed, mixture

    @property
    def count(self) -> int:
        """Rows known here, of all datasets."""
        return sum(dataset.rows.count for dataset in self._datasets)

    def of(self, task: TaskPosition) -> TaskRow:
        if self._mixture is None:
            return TaskRow(self._datasets[0], task.row(self._seed))
        number, index = self._mixture.place(task.epoch * self._mixture.epoch_rows + task.index)
        return TaskRow(self._datasets[number], index)


def task_rows(run: RunRecord, context: RunContext, store: Store, volume: Volume) -> TaskRows:
    """Return the rows of the tasks of `run`. Raises UnusableEpisode."""
    config, seed = context.config, context.config.training.seed
    datasets = []
    for number, (name, section) in enumerate(config.datasets.items()):
        own_context = context
        if name:
            assert not isinstance(section.rollout.episode, Sessions), "not of a mixture"
            episode = load_episode(
                section.rollout.episode,
                context.tokenizer,
                context.tool_servers,
                context.rewards,
            )
            own_context = replace(context, config=section, episode=episode)
        datasets.append(
            DatasetWork(name, number, own_context, Rows(store, volume, section.data.dataset))
        )
    rows = run.dataset_rows
    mixture = prompt_mixture(config.data, rows, seed) if rows else None
    return TaskRows(datasets, config.order_seed, mixture)
