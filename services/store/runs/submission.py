"""What `submit.lua` writes for a new run: its fields, and the order of its tasks. Pure."""

import json
from dataclasses import dataclass
from typing import Any

from services.contracts.config.data import Data
from services.contracts.records import RunRecord
from services.contracts.rows.mixture import Mixture, prompt_mixture

ORDER = ("position", "epoch", "rows", "index")
"""The cursor of a run's order: the parts of its next task's `TaskPosition`."""


@dataclass(frozen=True)
class RowNotes:
    """What a run has noted of its rows."""

    filters: dict[bytes, bytes]
    """See `filter_prompt.lua`."""
    pass_rates: dict[bytes, bytes]


@dataclass(frozen=True)
class EndedRun:
    """What a run that continues another one takes over."""

    run: str
    step: int
    checkpoint: str | None
    order: dict[str, int]
    """By the names in ORDER; empty where the run never sampled."""
    lineages: list[str]
    open: list[str]
    """Tasks that have not ended."""


def is_live_run(record: RunRecord) -> bool:
    """Whether it trains on sessions that applications open, and has no dataset."""
    return bool(record.config["data"].get("source") == "sessions")


def submission(
    record: RunRecord, rows: int, ended: EndedRun | None, noted: RowNotes | None
) -> list[str]:
    """The arguments of `submit.lua`. `rows`: of an epoch. `noted`: what the run that is continued
    has noted of these rows; None where it had others."""
    config = record.config
    fields: dict[str, Any] = record.model_dump(mode="json")
    if not record.dataset_rows:
        fields["dataset"] = config["data"]["dataset"]
    order: dict[str, int] = {}
    returned: list[str] = []
    cancelled: list[str] = []
    lineages: list[str] = []
    notes: dict[str, str] = {}
    rates: dict[str, str] = {}
    if record.kind == "rl":
        batch = config["algorithm"]["prompts_per_step"]
        fields |= {name: config["rollout"][name] for name in ("max_staleness", "stream_bytes")}
        fields["batch"] = batch
        order = dict(zip(ORDER, (0, 0, rows, 0), strict=True))
        if ended is not None and ended.order:
            # Positions go on, so that they name one task of the whole lineage.
            order["position"] = ended.order["position"]
            lineages = ended.lineages
            if noted is None:
                # What was open points into rows of another dataset.
                cancelled = ended.open
            else:
                order, returned = dict(ended.order), ended.open
                notes = {row.decode(): note.decode() for row, note in noted.filters.items()}
                rates = {row.decode(): rate.decode() for row, rate in noted.pass_rates.items()}
        order |= {
            "dataset_rows": rows,
            "batch": batch,
            "base_position": order["position"],
            "base_step": record.committed_step,
            "last_finished": order["position"],
            "filtered_prompts": sum(note.endswith(":1") for note in notes.values()),
        }
        if record.dataset_rows:
            order["mixed_rows"] = sum(record.dataset_rows)
        if is_live_run(record):
            order["live"] = 1
        if dynamic := config["algorithm"].get("dynamic_sampling"):
            order["filtered_limit"] = dynamic["max_filtered"] * batch
    written = {name: text_of(value) for name, value in fields.items() if value is not None}
    return [
        json.dumps(written),
        json.dumps({name: str(value) for name, value in order.items()}),
        json.dumps(returned),
        json.dumps(cancelled),
        f"run {record.resume_from} used other rows",
        json.dumps(lineages),
        json.dumps(notes),
        json.dumps(rates),
    ]


def order_of(record: RunRecord) -> Mixture:
    """The order of the prompts of a run on several datasets."""
    data = Data.model_validate(record.config["data"])
    return prompt_mixture(data, record.dataset_rows, record.config["training"]["seed"])


def same_mixture(before: RunRecord, record: RunRecord) -> bool:
    """Whether two runs on several datasets have the same order, but for their seeds."""
    amounts = [
        [(one.dataset, one.repeats, one.weight) for one in data.components]
        for data in (Data.model_validate(run.config["data"]) for run in (before, record))
    ]
    return before.dataset_rows == record.dataset_rows and amounts[0] == amounts[1]


def text_of(value: Any) -> str:
    """A field's value as Redis keeps it."""
    if isinstance(value, bool):
        return str(int(value))
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
