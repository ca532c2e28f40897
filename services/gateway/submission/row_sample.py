"""The rows of each dataset that a submission looks at. They are read once, for all checks."""

import random
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headrace.config_keys import keys_of
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.data import PromptOptions
from services.contracts.config.episodes import Sessions
from services.contracts.config.model import ScratchModel
from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.datasets import DatasetReader, rows_with_parts
from services.volume import Volume

MOST_ROWS = 2000
"""Rows of a dataset that are read. To count one takes a fraction of a millisecond."""
MOST_BYTES = 8 << 20
"""Bytes of the rows of a dataset that are read."""
PART_ROWS = 50
"""Rows with each part of a chat that a template may leave out. They are read first."""
PLAIN = PromptOptions().template


class DatasetOptions(NamedTuple):
    """How a run asks the rows of one dataset."""

    template: str
    system: str | None
    max_tokens: int
    """Longest answer; 0 for a supervised run."""
    is_counted: bool
    """Whether the run renders its prompts, with a chat template and a tokenizer that are known."""
    chat_template: str | None = None
    """None: the run's."""


class RowSample(NamedTuple):
    """Rows of one dataset."""

    record: DatasetRecord
    options: DatasetOptions
    rows: dict[int, Row]
    """By their indices, in no order."""

    @property
    def words(self) -> str:
        """`40 rows of sums`, or `40 rows of sums that were looked at` for a sample."""
        looked_at = " that were looked at" if len(self.rows) < self.record.rows else ""
        return f"{len(self.rows):,} rows of {self.record.name}{looked_at}"


def read_rows(
    config: RLConfig | SFTConfig, datasets: Mapping[str, DatasetRecord], volume: Volume
) -> dict[str, RowSample]:
    """Read rows of each dataset, by the section that names it: rows with a part of a chat that a
    template may leave out, and as many others as the limits allow."""
    return {
        section: RowSample(record, options, _read(DatasetReader(volume, record)))
        for section, options in options_by_section(config).items()
        if (record := datasets.get(f"{section}.dataset")) is not None
    }


def options_by_section(config: RLConfig | SFTConfig) -> dict[str, DatasetOptions]:
    """How the run asks each of its datasets, by the section that names it."""
    data, is_made = config.data, isinstance(config.model, ScratchModel)
    mixed = keys_of("data", "mix", len(config.data.mix))
    if isinstance(config, SFTConfig):
        held_out = keys_of("validation", "datasets", len(config.validation.datasets))[1:]
        same = DatasetOptions(data.template, data.system, 0, not is_made)
        return dict.fromkeys([*mixed, *held_out], same)
    longest = config.sampling.max_tokens
    renders = not (is_made or isinstance(config.rollout.episode, Sessions))
    options = {
        section: DatasetOptions(
            part.data.template,
            part.data.system,
            part.sampling.max_tokens,
            renders,
            part.data.chat_template if part.data.chat_template != data.chat_template else None,
        )
        for section, part in zip(mixed, config.datasets.values(), strict=True)
    }
    for section, part in (config.evaluation.by_key if config.evaluation else {}).items():
        template, system = part.template or data.template, part.system or data.system
        options[section] = DatasetOptions(template, system, part.max_tokens or longest, renders)
    return options


def _read(reader: DatasetReader) -> dict[int, Row]:
    first = [int(i) for rows in rows_with_parts(reader).values() for i in rows[:PART_ROWS]]
    # In any order but that of the file: counting ends early if it takes too long.
    others = random.Random(0).sample(range(len(reader)), min(len(reader), MOST_ROWS))
    rows, size = dict[int, Row](), 0
    for index in dict.fromkeys([*first, *others]):
        row = reader.row(index)
        size += len(msgspec.json.encode(row))
        if rows and (size > MOST_BYTES or len(rows) >= MOST_ROWS):
            break
        rows[index] = row
    return rows
