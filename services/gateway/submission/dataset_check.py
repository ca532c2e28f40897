"""Whether the datasets that a submission names exist, and have rows that its run can use."""

from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from headrace.config_keys import dataset_names, value_at, with_value
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.data import numbered
from services.contracts.config.objective.supervised import DPO
from services.contracts.records import DatasetRecord, RunRecord
from services.contracts.rows.preference import PAIR, preferred
from services.contracts.scores import ReferenceRow
from services.datasets import DatasetReader
from services.gateway.dependencies import Dependencies, listed_datasets, missing_dataset
from services.gateway.submission.model_check import Problems
from services.volume import Volume

CHECKED_ROWS = 5
"""Rows of a dataset whose references are read, evenly spaced."""

Datasets = dict[str, DatasetRecord]
"""The datasets of a submission by the keys that name them, like `data.dataset`."""


async def find_datasets(
    deps: Dependencies,
    raw: dict[str, Any],
    problems: Problems,
    resumed: RunRecord | None = None,
) -> tuple[dict[str, Any], Datasets]:
    """`raw` with its datasets by id, since another dataset may have the name by the time a run is
    resumed; and their records. `resumed`: the run that is resumed."""
    datasets: Datasets = {}
    for key, name in dataset_names(raw).items():
        record = await deps.store.datasets.find(name)
        if record is None:
            sentence = missing_dataset(name, await deps.store.datasets.list())
            # A user never typed the id that a resumed run brings.
            if resumed is not None and name == dataset_names(resumed.config).get(key):
                sentence = _deleted(key, name, resumed)
            # A dataset of the hub that cannot be had has a problem already.
            problems += [] if key in dict(problems) else [(key, sentence)]
        elif record.damage:
            problems.append((key, f"{record.damage}: delete it, and upload it again"))
        else:
            for segment in record.segments:
                # The volume may be away for a while: an OSError ends no chain.
                deps.volume.path(segment.file).stat()
            datasets[key] = record
            raw = with_value(raw, key, record.id)
    for key, name in _metric_names(raw, datasets).items():
        raw = with_value(raw, key, name)
    return raw, datasets


def with_names(problems: Problems, records: list[DatasetRecord]) -> Problems:
    """Return `problems` with the names of the datasets in the sentence about a run without one."""
    return [
        (key, f"{text}; {listed_datasets(records)}")
        if key == "data.dataset" and text.startswith("is required")
        else (key, text)
        for key, text in problems
    ]


def _deleted(key: str, id: str, run: RunRecord) -> str:
    """Return the sentence about a dataset that was deleted after `run` began with it."""
    name = run.dataset_names.get(key)
    called = f"{name!r} ({id})" if name else f"with the id {id!r}"
    same = "the same name" if name else "the name that it had"
    return (
        f"the dataset {called}, with which run {run.name} ({run.id}) began, was deleted: upload "
        f"the same rows under {same} again, which gives the dataset the same id"
    )


def _metric_names(raw: dict[str, Any], datasets: Datasets) -> dict[str, Any]:
    """The names, by their keys, that metrics have for the datasets of a mixture of prompts and for
    several held-out datasets: two of one name would be one evaluation."""
    names = {
        key: value_at(raw, key.removesuffix("dataset") + "name") or record.name
        for key, record in datasets.items()
    }
    held_out = {key: name for key, name in names.items() if key.startswith("evaluation.")}
    mixed = {key: name for key, name in names.items() if key.startswith("data.")}
    mixed = dict(zip(mixed, numbered(list(mixed.values())), strict=True))
    # The datasets of a supervised run have no names.
    several = [held_out, mixed if raw.get("type", "rl") == "rl" else {}]
    return {
        key.removesuffix("dataset") + "name": name
        for named in several
        for key, name in named.items()
        if len(named) > 1
    }


def unlearnable(config: RLConfig | SFTConfig, datasets: Datasets, volume: Volume) -> Problems:
    """A problem for each dataset whose first row a supervised run cannot learn. Other checks
    explain more."""
    if not isinstance(config, SFTConfig):
        return []
    reasons = {
        key: _unlearnable(config, record.name, DatasetReader(volume, record))
        for key, record in datasets.items()
    }
    return [(key, reason) for key, reason in reasons.items() if reason]


def _unlearnable(config: SFTConfig, name: str, reader: DatasetReader) -> str:
    row = reader.row(0)
    if isinstance(config.objective, DPO):
        try:
            for which in PAIR:
                preferred(row, which)
        except ValueError as error:
            return f"the rows of {name} cannot be compared (objective.type dpo): row 0 {error}"
        return ""
    chat = row.prompt if isinstance(row.prompt, list) else []
    answered = row.answer is not None or any(turn.get("role") == "assistant" for turn in chat)
    if answered or config.data.train_on == "all":
        return ""
    return (
        f"the rows of {name} have no answers to imitate: upload it with a column mapping "
        "that names the answer, or set data.train_on to all for plain text"
    )


async def check_categories(deps: Dependencies, config: RLConfig, datasets: Datasets) -> list[str]:
    """Warnings for held-out sets without the column by which their results are to be given."""
    sets = config.evaluation.by_key if config.evaluation else {}
    wanted = {key: held_out.category for key, held_out in sets.items() if held_out.category}
    named = {key: datasets[f"{key}.dataset"] for key in wanted if f"{key}.dataset" in datasets}
    columns: dict[str, set[str]] = {}
    for row in await anyio.to_thread.run_sync(sample_rows, deps, named):
        columns.setdefault(row.key, set()).update(row.reference.columns)
    return [
        f"{key}.category: none of the rows of {named[key].name} that were looked at has a column "
        f"{wanted[key]!r}, so results have no categories; there is "
        f"{', '.join(sorted(names)) or 'no further column'}"
        for key, names in columns.items()
        if not {wanted[key], wanted[key].partition(".")[0]} & names
    ]


@dataclass(frozen=True)
class SampleRow:
    """A row whose reference is read at a submission, and the key that names its dataset."""

    key: str
    index: int
    reference: ReferenceRow


def sample_rows(deps: Dependencies, datasets: Datasets) -> list[SampleRow]:
    """CHECKED_ROWS rows of each dataset, evenly spaced."""
    rows = []
    for key, record in datasets.items():
        reader = DatasetReader(deps.volume, record)
        last, steps = len(reader) - 1, CHECKED_ROWS - 1
        for index in sorted({last * step // steps for step in range(CHECKED_ROWS)}):
            row = reader.row(index)
            reference = ReferenceRow(answer=row.answer, columns=row.columns)
            rows.append(SampleRow(key, index, reference))
    return rows
