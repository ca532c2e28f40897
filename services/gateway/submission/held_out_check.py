"""Whether a run trains on the rows that it measures itself by."""

import anyio.to_thread

from services.contracts.records import DatasetRecord
from services.datasets import shared_rows
from services.gateway.dependencies import Dependencies
from services.gateway.submission.dataset_check import Datasets

MEASURES = {
    "evaluation": "accuracy will look better",
    "validation": "the loss will look lower",
}
"""By section of a config: what held-out rows that are trained change."""


async def check_held_out(deps: Dependencies, datasets: Datasets) -> list[str]:
    """Warnings for evaluations and validations that measure on rows that are trained."""
    return await anyio.to_thread.run_sync(_warnings, deps, datasets)


def _warnings(deps: Dependencies, datasets: Datasets) -> list[str]:
    trained = {key: dataset for key, dataset in datasets.items() if key.startswith("data.")}
    return [
        _warning(held, measured, shared, f"{key} is {dataset.name}")
        for held, measured in datasets.items()
        if held.partition(".")[0] in MEASURES
        for key, dataset in trained.items()
        if (shared := shared_rows(deps.volume, measured, dataset))
    ]


def _warning(held: str, measured: DatasetRecord, shared: int, where: str) -> str:
    return (
        f"{held}: the run also trains on {shared:,} of the {measured.rows:,} rows of "
        f"{measured.name} ({where}), so {MEASURES[held.partition('.')[0]]} than it is: upload "
        "held-out rows as a dataset of their own"
    )
