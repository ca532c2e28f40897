"""Makes the arguments of `submit.lua` for a new run: its fields, and the order of its tasks.
Pure."""

import json
from dataclasses import dataclass, field
from typing import Any

from services.contracts.config.data import Data
from services.contracts.records import RunRecord
from services.contracts.rows.mixture import Mixture, prompt_mixture

ORDER = ("position", "epoch", "rows", "index")
"""The cursor of a run's order: the parts of its next task's `TaskPosition`."""


@dataclass(frozen=True)
class RowNotes:
    """A run's notes about its rows."""

    filters: dict[bytes, bytes]
    """The notes of `filter_prompt.lua`."""
    pass_rates: dict[bytes, bytes]


@dataclass(frozen=True)
class ContinuedRun:
    """The parts of a run that its continuation takes over."""

    run: str
    step: int
    checkpoint: str | None
    order: dict[str, int]
    """By the names in ORDER; empty if the run never sampled."""
    lineages: list[str]
    open: list[str]
    """Tasks that have not ended."""
    forked_at: str = ""
    """The newest row of the run's ledger that its fork counts; empty unless the run is forked."""


def is_live_run(record: RunRecord) -> bool:
    """Return whether a run trains on live sessions, and so has no dataset."""
    return bool(record.config["data"].get("source") == "sessions")


@dataclass(frozen=True)
class _Sampling:
    """The initial state of a run that samples; empty for a supervised run."""

    order: dict[str, int] = field(default_factory=dict)
    returned: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    lineages: list[str] = field(default_factory=list)
    noted: RowNotes = field(default_factory=lambda: RowNotes({}, {}))


def submission(
    record: RunRecord, rows: int, ended: ContinuedRun | None, noted: RowNotes | None
) -> list[str]:
    """Return the arguments of `submit.lua`. `rows` is the length of an epoch. `noted` are the notes
    of the continued run about these rows; None if it had other rows."""
    config = record.config
    fields: dict[str, Any] = record.model_dump(mode="json")
    if not record.dataset_rows:
        fields["dataset"] = config["data"]["dataset"]
    begins = _Sampling()
    if record.kind == "rl":
        fields |= {name: config["rollout"][name] for name in ("max_staleness", "stream_bytes")}
        fields["batch"] = config["algorithm"]["prompts_per_step"]
        begins = _sampling(record, rows, ended, noted)
    written = {name: text_of(value) for name, value in fields.items() if value is not None}
    order = {name: str(value) for name, value in begins.order.items()}
    if ended is not None and ended.forked_at:
        order["forked_at"] = ended.forked_at
    return [
        json.dumps(written),
        json.dumps(order),
        json.dumps(begins.returned),
        json.dumps(begins.cancelled),
        f"run {record.resume_from} used other rows",
        json.dumps(begins.lineages),
        json.dumps(_decoded(begins.noted.filters)),
        json.dumps(_decoded(begins.noted.pass_rates)),
    ]


def _sampling(
    record: RunRecord, rows: int, ended: ContinuedRun | None, noted: RowNotes | None
) -> _Sampling:
    """Return the initial state of a run that samples, with the arguments of `submission`."""
    begins = _Sampling(dict(zip(ORDER, (0, 0, rows, 0), strict=True)))
    if ended is not None and ended.order:
        if noted is not None:
            begins = _Sampling(dict(ended.order), ended.open, [], ended.lineages, noted)
        else:
            # Positions go on, so each names one task of all these runs. The open tasks are
            # positions in another dataset.
            order = begins.order | {"position": ended.order["position"]}
            begins = _Sampling(order, [], ended.open, ended.lineages)
    order, algorithm = begins.order, record.config["algorithm"]
    batch = algorithm["prompts_per_step"]
    filtered = (note.endswith(b":1") for note in begins.noted.filters.values())
    order |= {
        "dataset_rows": rows,
        "batch": batch,
        "base_position": order["position"],
        "base_step": record.committed_step,
        "last_finished": order["position"],
        "filtered_prompts": sum(filtered),
    }
    if record.dataset_rows:
        order["mixed_rows"] = sum(record.dataset_rows)
    if is_live_run(record):
        order["live"] = 1
    if dynamic := algorithm.get("dynamic_sampling"):
        order["filtered_limit"] = dynamic["max_filtered"] * batch
    return begins


def _decoded(notes: dict[bytes, bytes]) -> dict[str, str]:
    return {row.decode(): note.decode() for row, note in notes.items()}


def order_of(record: RunRecord) -> Mixture:
    """Return the order of the prompts of a run on several datasets."""
    data = Data.model_validate(record.config["data"])
    return prompt_mixture(data, record.dataset_rows, record.config["training"]["seed"])


def same_mixture(before: RunRecord, record: RunRecord) -> bool:
    """Return whether two runs on several datasets have the same order except for their seeds."""
    amounts = [
        [(component.dataset, component.repeats, component.weight) for component in data.components]
        for data in (Data.model_validate(run.config["data"]) for run in (before, record))
    ]
    return before.dataset_rows == record.dataset_rows and amounts[0] == amounts[1]


def text_of(value: Any) -> str:
    """Return a field's value as Redis keeps it."""
    if isinstance(value, bool):
        return str(int(value))
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
