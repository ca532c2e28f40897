"""What a mixture of prompts takes of each dataset: fixed when its run is submitted."""

from dataclasses import dataclass

from pydantic import BaseModel, Field

from services.contracts.config import RLConfig
from services.contracts.config.base import keys_of
from services.contracts.config.data import Data
from services.contracts.records import RunRecord
from services.contracts.rows.mixture import prompt_mixture
from services.gateway.dataset_check import Datasets
from services.gateway.model_check import Problems


class DatasetShare(BaseModel):
    """What an epoch takes of one dataset of a mixture."""

    name: str = Field(description="What the run's metrics call it.")
    rows: int = Field(description="Rows that the run uses.")
    per_epoch: int = Field(description="Prompts of an epoch that are its rows.")
    share: float = Field(description="The same as a share of the epoch.")


@dataclass(frozen=True)
class MixtureShares:
    """The datasets of a mixture; of no mixture, none."""

    rows: list[int]
    shares: list[DatasetShare]

    @property
    def epoch_rows(self) -> int:
        """Prompts of an epoch."""
        return sum(one.per_epoch for one in self.shares)


def mixed_rows(
    config: RLConfig, datasets: Datasets, previous: RunRecord | None, problems: Problems
) -> MixtureShares:
    """The rows of each dataset now; for a run that goes on with the mixture of `previous`, those
    that it had, so that its open tasks name the same prompts. Adds to `problems` where a dataset
    gives an epoch no row."""
    data = config.data
    keys = keys_of("data", "mix", len(data.mix))
    rows = [datasets[f"{key}.dataset"].rows for key in keys]
    if previous is not None and previous.dataset_rows:
        before = Data.model_validate(previous.config["data"])
        if [one.dataset for one in before.components] == [one.dataset for one in data.components]:
            rows = previous.dataset_rows
    try:
        mixture = prompt_mixture(data, rows, config.training.seed)
    except ValueError as error:
        problems.append(("data.mix", str(error)))
        return MixtureShares([], [])
    shares = [
        DatasetShare(
            name=name,
            rows=one.rows,
            per_epoch=one.per_epoch,
            share=one.per_epoch / mixture.epoch_rows,
        )
        for name, one in zip(data.names, mixture.sources, strict=True)
    ]
    return MixtureShares(list(rows), shares)
