"""Shares of the datasets in a mixture of prompts, fixed when the run is submitted."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field

from headrace.config_keys import keys_of
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.data import Data, numbered
from services.contracts.records import RunRecord
from services.contracts.rows.mixture import Source, prompt_mixture, sources
from services.gateway.submission.dataset_check import Datasets
from services.gateway.submission.model_check import Problems


class DatasetShare(BaseModel):
    """Rows that one dataset of a mixture contributes to an epoch."""

    name: str = Field(description="What the run's metrics call it.")
    rows: int = Field(description="Rows that the run trains on.")
    per_epoch: int = Field(description="Rows of an epoch that are its.")
    share: float = Field(description="The same as a share of the epoch.")


@dataclass(frozen=True)
class MixtureShares:
    """The shares of a mixture's datasets; empty without a mixture."""

    rows: list[int]
    shares: list[DatasetShare]

    @property
    def epoch_rows(self) -> int:
        """Prompts of an epoch."""
        return sum(share.per_epoch for share in self.shares)


def shares_of(
    config: RLConfig | SFTConfig,
    datasets: Datasets,
    previous: RunRecord | None,
    problems: Problems,
) -> MixtureShares:
    """The shares of a run's datasets. Add to `problems` if a dataset gives an epoch no row. A run
    that has problems already gets no shares."""
    if problems or (isinstance(config, RLConfig) and not config.data.mix):
        return MixtureShares([], [])
    if isinstance(config, RLConfig):
        return _of_prompts(config, datasets, previous, problems)
    # The learner counts the rows of a supervised run anew when it begins.
    shares = _of_examples(config, datasets, problems) if previous is None else []
    return MixtureShares([], shares)


def _of_prompts(
    config: RLConfig, datasets: Datasets, previous: RunRecord | None, problems: Problems
) -> MixtureShares:
    """Count the present rows of each dataset. A run that continues the mixture of `previous` keeps
    the rows of `previous`, so that open tasks name the same prompts."""
    data = config.data
    keys = keys_of("data", "mix", len(data.mix))
    rows = [datasets[f"{key}.dataset"].rows for key in keys]
    if previous is not None and previous.dataset_rows:
        before = Data.model_validate(previous.config["data"])
        if [component.dataset for component in before.components] == [
            component.dataset for component in data.components
        ]:
            rows = previous.dataset_rows
    try:
        mixture = prompt_mixture(data, rows, config.training.seed)
    except ValueError as error:
        problems.append(("data.mix", str(error)))
        return MixtureShares([], [])
    return MixtureShares(list(rows), _shares(data.names, mixture.sources))


def _of_examples(config: SFTConfig, datasets: Datasets, problems: Problems) -> list[DatasetShare]:
    components = config.data.components
    records = [datasets[f"{key}.dataset"] for key in keys_of("data", "mix", len(config.data.mix))]
    names = numbered([record.name for record in records])
    called = [
        component.model_copy(update={"dataset": name})
        for component, name in zip(components, names, strict=True)
    ]
    held_out = 0.0 if config.validation.datasets else config.validation.share
    try:
        used = sources(called, [record.rows for record in records], held_out)
    except ValueError as error:
        problems.append(("data", str(error)))
        return []
    return _shares(names, used) if config.data.mix else []


def _shares(names: Sequence[str], used: Sequence[Source]) -> list[DatasetShare]:
    epoch = sum(source.per_epoch for source in used)
    return [
        DatasetShare(
            name=name,
            rows=source.trained,
            per_epoch=source.per_epoch,
            share=source.per_epoch / epoch,
        )
        for name, source in zip(names, used, strict=True)
    ]
