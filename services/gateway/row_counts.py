"""Choose the rows of a submission that are counted, and say what their counts mean: rows that are
too long, hold unknown characters, or have parts that the model would not read."""

import random
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.data import PromptDataset
from services.contracts.config.episodes import OwnEpisode, Sessions, Tools
from services.contracts.config.model import ScratchModel
from services.contracts.preview import AskedRow, CountedRows, RowCounts
from services.contracts.records import DatasetRecord
from services.datasets import DatasetReader, rows_with_parts
from services.gateway.model_check import Problems
from services.gateway.row_check import asked_of
from services.volume import Volume

MOST_ROWS = 2000
"""Rows of a dataset that are counted. A row takes a fraction of a millisecond."""
MOST_BYTES = 8 << 20
"""Bytes of the rows of a dataset that are counted."""
PART_ROWS = 50
"""Rows with each part of a chat that a template may leave out. They are counted first."""
_UNREAD = (
    "that the model's chat template leaves out, so the model would not read them: take a template "
    "that writes them (data.chat_template), or write them into the turns' contents"
)
LEFT_OUT = {
    "assistant": f"earlier answers (turns of the role `assistant`) {_UNREAD}",
    "tool_calls": f"calls of tools (`tool_calls`) {_UNREAD}",
    "tool": f"results of tools (turns of the role `tool`) {_UNREAD}",
    "tools": "a column `tools`, which this run does not describe to the model: set "
    "rollout.episode.type to tools, with MCP servers that have the tools, or describe them in a "
    "system message",
}


class RowLimits(NamedTuple):
    """Tokens that a row may have. None: nobody knows."""

    most: int | None
    roomy: int | None
    """Longest prompt that leaves an answer `sampling.max_tokens`."""
    words: str
    """The key or the model that sets the limit."""


def rows_to_count(
    config: RLConfig | SFTConfig,
    datasets: Mapping[str, DatasetRecord],
    volume: Volume,
    positions: int | None,
) -> dict[str, CountedRows]:
    """Choose rows of each dataset whose prompts the run renders itself. `positions`: the model's
    longest sequence."""
    if isinstance(config.model, ScratchModel) or (
        isinstance(config, RLConfig) and isinstance(config.rollout.episode, Sessions)
    ):
        return {}
    asked = asked_of(config)
    if isinstance(config, SFTConfig):
        asked = {key.removesuffix(".dataset"): asked["data"] for key in datasets}
    return {
        f"{key}.dataset": _chosen(config, key, options, record, volume, positions)
        for key, options in asked.items()
        if (record := datasets.get(f"{key}.dataset")) is not None
        and not _has_own_chat_template(config, key)
    }


def limits_of(config: RLConfig | SFTConfig, key: str, positions: int | None) -> RowLimits:
    """The limits for the dataset of the section `key`."""
    if isinstance(config, SFTConfig):
        longest, name = _lower("data.max_seq_len", config.data.max_seq_len, positions)
        return RowLimits(longest, None, f"{name}, which prompt and answer share")
    wanted = config.rollout.vllm.max_model_len
    context, name = _lower("rollout.vllm.max_model_len", wanted, positions)
    if context is None:
        return RowLimits(None, None, "")
    words = f"{name} {context:,}, which prompt and answer share"
    cuts = config.data.long_prompts == "cut"
    return RowLimits(None if cuts else context - 1, context - _max_tokens(config, key), words)


def _lower(key: str, wanted: int | None, positions: int | None) -> tuple[int | None, str]:
    """The lower one of a key's value and a model's positions, and what it is called."""
    if wanted is None or (positions is not None and positions < wanted):
        return positions, "the model's positions"
    return wanted, key


def count_problems(
    config: RLConfig | SFTConfig,
    datasets: Mapping[str, DatasetRecord],
    counts: Mapping[str, RowCounts],
    positions: int | None,
) -> tuple[Problems, list[str]]:
    """Problems and warnings that the counts of each dataset make."""
    problems: Problems = []
    warnings: list[str] = []
    for key, count in counts.items():
        name, rows = datasets[key].name, count.rows + count.unusable
        of = f"{rows:,} rows of {name}"
        of += " that were counted" if rows < datasets[key].rows else ""
        limits = limits_of(config, key.removesuffix(".dataset"), positions)
        for refused, text in (
            _unusable(config, count, name, of),
            _too_long(config, count, of, limits),
        ):
            problems += [(key, text)] if refused else []
            warnings += [f"{key}: {text}"] if text and not refused else []
        warnings += [f"{key}: {text}" for text in _unread(count, of)]
    return problems, warnings


def _unusable(
    config: RLConfig | SFTConfig, count: RowCounts, name: str, of: str
) -> tuple[bool, str]:
    """Whether the run cannot use the dataset, and a sentence about rows that cannot be rendered; ''
    for none. A supervised run would fail at any of them, a run of RL leaves it out."""
    if count.first_unusable is None:
        return False, ""
    row, problem = count.first_unusable
    # The learner's reason begins with the row, too.
    reason = problem.removeprefix(f"dataset row {row}").removeprefix(":").strip()
    it = "it " if reason.startswith(("has ", "is ", "holds ")) else ""
    message = f"row {row} of {name} cannot be used: {it}{reason}"
    if count.unusable > 1:
        message += f"; so it is with {count.unusable:,} of the {of}"
    if isinstance(config, SFTConfig) or not count.rows:
        return True, message
    return False, f"{message}; the run will leave such rows out"


def _too_long(
    config: RLConfig | SFTConfig, count: RowCounts, of: str, limits: RowLimits
) -> tuple[bool, str]:
    """Whether the run cannot use the dataset, and a sentence about long rows; '' for none."""
    tokens = f"they have {count.fewest_tokens:,} to {count.most_tokens:,} tokens"
    if count.fewest_tokens == count.most_tokens:
        tokens = f"they have {count.most_tokens:,} tokens"
    if isinstance(config, SFTConfig):
        how = config.data.overlong
        # The learner says how many rows it crops.
        if not count.too_long or how == "crop":
            return False, ""
        refused = how == "refuse" or count.too_long == count.rows
        return refused, (
            f"{count.too_long:,} of the {of} are longer than the {limits.most:,} tokens that a row "
            f"may have ({limits.words}): {tokens}; raise the limit, upload shorter rows, or set "
            "data.overlong to crop or skip"
        )
    shorter = "raise the limit, upload shorter prompts, or set data.long_prompts to cut"
    if count.too_long == count.rows > 0:
        return True, (
            f"none of the {of} fits: {tokens}, and a prompt may have {limits.most:,} "
            f"({limits.words}); {shorter}"
        )
    if count.too_long:
        return False, (
            f"{count.too_long:,} of the {of} are too long, and the run will leave such rows out: "
            f"{tokens}, and a prompt may have {limits.most:,} ({limits.words}); {shorter}"
        )
    if count.crowded and config.data.long_prompts == "cut":
        return False, (
            f"{count.crowded:,} of the {of} have more than {limits.roomy:,} tokens: they will be "
            "cut (data.long_prompts)"
        )
    if count.crowded:
        return False, (
            f"the prompts of {count.crowded:,} of the {of} leave their answers fewer tokens than "
            f"sampling.max_tokens: {tokens} ({limits.words})"
        )
    return False, ""


def _unread(count: RowCounts, of: str) -> list[str]:
    """Warnings for what the model would not read of its prompts."""
    warnings = []
    if count.unknown:
        named = ", ".join(map(repr, count.unknown_characters))
        named = f" ({named})" if named else ""
        warnings.append(
            f"{count.unknown:,} of the {of} hold characters that the model's tokenizer does not "
            f"know{named}: the model reads an unknown token instead, so change the prompts, "
            "data.template, or the model"
        )
    for part, rows in count.left_out.items():
        warnings.append(f"{rows:,} of the {of} have {LEFT_OUT[part]}")
    if count.special:
        named = ", ".join(map(repr, count.special_tokens))
        warnings.append(
            f"{count.special:,} of the {of} hold text of special tokens ({named}), which the model "
            "reads as the ends of turns and the like: if a chat template has been written into the "
            "prompts, upload them without it, or set data.chat_template to none"
        )
    return warnings


def _chosen(
    config: RLConfig | SFTConfig,
    key: str,
    asked: tuple[str, str | None],
    record: DatasetRecord,
    volume: Volume,
    positions: int | None,
) -> CountedRows:
    reader = DatasetReader(volume, record)
    parts = rows_with_parts(reader)
    # A run with tools or an episode of its own describes them itself.
    has_tools = isinstance(config, RLConfig) and not isinstance(
        config.rollout.episode, Tools | OwnEpisode
    )
    first = [int(i) for rows in parts.values() for i in rows[:PART_ROWS]]
    most = min(len(reader), MOST_ROWS)
    # In any order but that of the file: the count ends early if it takes too long.
    others = random.Random(0).sample(range(len(reader)), most)
    rows, size = list[AskedRow](), 0
    for index in dict.fromkeys([*first, *others]):
        row = reader.row(index)
        size += len(msgspec.json.encode(row))
        if rows and (size > MOST_BYTES or len(rows) >= MOST_ROWS):
            break
        learned = {"answer": row.answer, "columns": row.columns}
        described = {"columns": {"tools": row.columns.get("tools")}} if has_tools else {}
        rows.append(
            AskedRow(
                index=index,
                prompt=row.prompt,
                **(learned if isinstance(config, SFTConfig) else described),
            )
        )
    limits = limits_of(config, key, positions)
    template, system = asked
    return CountedRows(
        template=template, system=system, rows=rows, most=limits.most, roomy=limits.roomy
    )


def _max_tokens(config: RLConfig, key: str) -> int:
    """The longest answer of the dataset of the section `key`."""
    section, *place = key.split(".")
    if section == "evaluation":
        assert config.evaluation is not None
        held_out = config.evaluation.sets[int(place[1]) + 1 if place else 0]
        return held_out.max_tokens or config.sampling.max_tokens
    part = _part(config, key)
    return getattr(part, "max_tokens", None) or config.sampling.max_tokens


def _has_own_chat_template(config: RLConfig | SFTConfig, key: str) -> bool:
    """Whether a further dataset of a mixture has another chat template than the run."""
    if not isinstance(config, RLConfig) or not key.startswith("data."):
        return False
    return getattr(_part(config, key), "chat_template", None) is not None


def _part(config: RLConfig, key: str) -> PromptDataset:
    place = key.split(".")[2:]
    return config.data.components[int(place[0]) + 1 if place else 0]
