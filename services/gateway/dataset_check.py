"""Whether the datasets that a submission names exist, and have rows that its run can use."""

from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from services.contracts.config.base import keys_of
from services.contracts.config.data import MOST_DATASETS, numbered
from services.contracts.config.evaluation import Evaluation
from services.contracts.records import DatasetRecord
from services.contracts.rows.preference import PAIR, preferred
from services.contracts.scores import ReferenceRow
from services.datasets import DatasetReader
from services.gateway.dependencies import Dependencies, missing_dataset
from services.gateway.model_check import Problems
from services.runtime.logs import get_logger

log = get_logger(__name__)

CHECKED_ROWS = 5
"""Rows of a dataset whose references are read, evenly spaced."""

Datasets = dict[str, DatasetRecord]
"""The datasets of a submission by the keys that name them, like `data.dataset`."""


async def check_datasets(
    deps: Dependencies, raw: dict[str, Any], problems: Problems
) -> tuple[dict[str, Any], Datasets]:
    """`raw` with its datasets by id, since another dataset may have the name by the time a run is
    resumed; and their records."""
    records: Datasets = {}
    for section in ("data", "evaluation"):
        part = raw.get(section)
        if not isinstance(part, dict):
            continue
        # A run on live sessions names no dataset.
        if isinstance(name := part.get("dataset"), str) and name:
            record = await _dataset(deps, raw, f"{section}.dataset", name, problems)
            if record is not None:
                part = {**part, "dataset": record.id}
                records[f"{section}.dataset"] = record
        # More datasets of a mixture, and more held-out ones.
        for name in ("mix", "more"):
            if isinstance(more := part.get(name), list):
                key = f"{section}.{name}"
                part = {**part, name: await _mixed(deps, raw, key, more, problems, records)}
        raw = {**raw, section: part}
    raw = _named_held_out(_named(raw, records), records)
    validation = raw.get("validation")
    named = validation.get("datasets") if isinstance(validation, dict) else None
    if isinstance(validation, dict) and isinstance(named, list):
        sets = [{"dataset": entry} if isinstance(entry, str) else entry for entry in named]
        by_id = await _mixed(deps, raw, "validation.datasets", sets, problems, records)
        raw = {**raw, "validation": {**validation, "datasets": by_id}}
    return raw, records


async def _mixed(
    deps: Dependencies,
    raw: dict[str, Any],
    key: str,
    mix: list[Any],
    problems: Problems,
    records: Datasets,
) -> list[Any]:
    """Name the datasets of a list by id, and add their records to `records`. Other entries stay as
    they are."""
    by_id: list[Any] = []
    # More are refused when the config is parsed, and not looked up.
    if len(mix) > MOST_DATASETS:
        return mix
    for i, part in enumerate(mix):
        name = part.get("dataset") if isinstance(part, dict) else None
        if isinstance(name, str):
            record = await _dataset(deps, raw, f"{key}.{i}.dataset", name, problems)
            if record is not None:
                part = {**part, "dataset": record.id}
                records[f"{key}.{i}.dataset"] = record
        by_id.append(part)
    return by_id


def _named(raw: dict[str, Any], records: Datasets) -> dict[str, Any]:
    """`raw`, in which each dataset of a mixture of prompts has a name for metrics."""
    data = raw.get("data")
    if raw.get("type", "rl") != "rl" or not isinstance(data, dict):
        return raw
    if not (isinstance(mix := data.get("mix"), list) and mix):
        return raw
    keys = [f"{key}.dataset" for key in keys_of("data", "mix", len(mix))]
    if not all(key in records for key in keys):
        return raw
    parts = [data, *mix]
    names = numbered(
        [part.get("name") or records[key].name for key, part in zip(keys, parts, strict=True)]
    )
    first, *others = [{**part, "name": name} for part, name in zip(parts, names, strict=True)]
    return {**raw, "data": {**first, "mix": others}}


def _named_held_out(raw: dict[str, Any], records: Datasets) -> dict[str, Any]:
    """`raw`, in which each of several held-out datasets has its name for metrics: two of one name
    would be one evaluation."""
    evaluation = raw.get("evaluation")
    if not isinstance(evaluation, dict):
        return raw
    if not (isinstance(more := evaluation.get("more"), list) and more):
        return raw
    keys = [f"{key}.dataset" for key in keys_of("evaluation", "more", len(more))]
    parts = [
        {**part, "name": part.get("name") or records[key].name} if key in records else part
        for key, part in zip(keys, [evaluation, *more], strict=True)
    ]
    return {**raw, "evaluation": {**parts[0], "more": parts[1:]}}


async def _dataset(
    deps: Dependencies, raw: dict[str, Any], key: str, name: str, problems: Problems
) -> DatasetRecord | None:
    record = await deps.store.datasets.find(name)
    if record is None:
        problems.append((key, missing_dataset(name, await deps.store.datasets.list())))
        return None
    if record.damage:
        problems.append((key, f"{record.damage}: delete it, and upload it again"))
        return None
    for segment in record.segments:
        # The volume may be away for a while: an OSError ends no chain.
        deps.volume.path(segment.file).stat()
    if raw.get("type") == "sft" and (problem := _unlearnable(deps, raw, record)):
        problems.append((key, problem))
        return None
    return record


def _unlearnable(deps: Dependencies, raw: dict[str, Any], record: DatasetRecord) -> str | None:
    """Explain why the first row of a dataset cannot be learned. Return None if it can, or if other
    checks explain more."""
    if _compares(raw):
        return _uncomparable(deps, record)
    data = raw.get("data")
    train_on = data.get("train_on", "assistant") if isinstance(data, dict) else "assistant"
    row = DatasetReader(deps.volume, record).row(0)
    chat = row.prompt if isinstance(row.prompt, list) else []
    answered = row.answer is not None or any(turn.get("role") == "assistant" for turn in chat)
    if answered or train_on == "all":
        return None
    return (
        f"the rows of {record.name} have no answers to imitate: upload it with a column mapping "
        "that names the answer, or set data.train_on to all for plain text"
    )


def _compares(raw: dict[str, Any]) -> bool:
    """Whether a supervised run compares two answers of each row."""
    objective = raw.get("objective")
    return isinstance(objective, dict) and objective.get("type") == "dpo"


def _uncomparable(deps: Dependencies, record: DatasetRecord) -> str | None:
    """Why the first row of a dataset has no two answers to compare."""
    row = DatasetReader(deps.volume, record).row(0)
    try:
        for which in PAIR:
            preferred(row, which)
    except ValueError as error:
        return f"the rows of {record.name} cannot be compared (objective.type dpo): row 0 {error}"
    return None


async def check_categories(
    deps: Dependencies, evaluation: Evaluation | None, datasets: Datasets
) -> list[str]:
    """Warnings for held-out sets without the column by which their results are to be given."""
    sets = evaluation.sets if evaluation else []
    keys = keys_of("evaluation", "more", len(sets) - 1)
    wanted = {
        key: held_out.category
        for key, held_out in zip(keys, sets, strict=False)
        if held_out.category
    }
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
    dataset: str
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
            rows.append(SampleRow(key, record.name, index, reference))
    return rows
