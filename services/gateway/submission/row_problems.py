"""The rows of a submission that are counted, and what their counts mean: rows that are
too long, hold unknown characters, or have parts that the model would not read."""

from collections.abc import Mapping
from typing import NamedTuple

from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.episodes import OwnEpisode, Tools
from services.contracts.preview import AskedRow, CountedRows, RowCounts
from services.datasets.findings import SameAnswer
from services.gateway.reference_checks import COLUMN
from services.gateway.submission.model_check import Problems
from services.gateway.submission.row_sample import DatasetOptions, RowSample

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


def same_answers(samples: Mapping[str, RowSample]) -> list[str]:
    """Warn for each dataset whose rows all have the same answer. `samples`: by the sections that
    name their datasets."""
    warnings = []
    for section, sample in samples.items():
        same = SameAnswer()
        for row in sample.rows.values():
            same.add(row.answer)
        if sentence := same.sentence(sample.words):
            warnings.append(f"{section}.dataset: {sentence}: {COLUMN}")
    return warnings


def rows_to_count(
    config: RLConfig | SFTConfig, samples: Mapping[str, RowSample], positions: int | None
) -> dict[str, CountedRows]:
    """The rows of each dataset whose prompts the run renders itself, by the key that names it.
    `positions`: the model's longest sequence."""
    return {
        f"{section}.dataset": _asked(config, sample, limits_of(config, sample.options, positions))
        for section, sample in samples.items()
        if sample.options.is_counted
    }


def _asked(config: RLConfig | SFTConfig, sample: RowSample, limits: RowLimits) -> CountedRows:
    rows = []
    for index, row in sample.rows.items():
        asked = AskedRow(index=index, prompt=row.prompt)
        if isinstance(config, SFTConfig):
            asked.answer, asked.columns = row.answer, row.columns
        # A run with tools or an episode of its own describes them itself.
        elif not isinstance(config.rollout.episode, Tools | OwnEpisode):
            asked.columns = {"tools": row.columns.get("tools")}
        rows.append(asked)
    return CountedRows(
        template=sample.options.template,
        system=sample.options.system,
        chat_template=sample.options.chat_template,
        rows=rows,
        most=limits.most,
        roomy=limits.roomy,
    )


def limits_of(
    config: RLConfig | SFTConfig, options: DatasetOptions, positions: int | None
) -> RowLimits:
    """The limits for the rows of a dataset."""
    if isinstance(config, SFTConfig):
        longest, name = _lower("data.max_seq_len", config.data.max_seq_len, positions)
        return RowLimits(longest, None, f"{name}, which prompt and answer share")
    wanted = config.rollout.vllm.max_model_len
    context, name = _lower("rollout.vllm.max_model_len", wanted, positions)
    if context is None:
        return RowLimits(None, None, "")
    words = f"{name} {context:,}, which prompt and answer share"
    cuts = config.data.long_prompts == "cut"
    return RowLimits(None if cuts else context - 1, context - options.max_tokens, words)


def _lower(key: str, wanted: int | None, positions: int | None) -> tuple[int | None, str]:
    """The lower one of a key's value and a model's positions, and what it is called."""
    if wanted is None or (positions is not None and positions < wanted):
        return positions, "the model's positions"
    return wanted, key


def count_problems(
    config: RLConfig | SFTConfig,
    samples: Mapping[str, RowSample],
    counts: Mapping[str, RowCounts],
    positions: int | None,
) -> tuple[Problems, list[str]]:
    """Problems and warnings that the counts of each dataset make."""
    problems: Problems = []
    warnings: list[str] = []
    for key, count in counts.items():
        record, options, _ = samples[key.removesuffix(".dataset")]
        name, rows = record.name, count.rows + count.unusable
        of = f"{rows:,} rows of {name}"
        of += " that were counted" if rows < record.rows else ""
        limits = limits_of(config, options, positions)
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
