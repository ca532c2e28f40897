"""Count a dataset's rows for a model: lengths, unknown characters, parts that the chat template
leaves out. Pure, except for the tokenizer and the clock."""

import time
from statistics import median_low
from typing import Any

from learner.batch.conversations import CALLS
from learner.batch.sft_rows import RowTokenizer, UnusableRow, lacking, unknown_id
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.data import PromptOptions
from services.contracts.preview import AskedRow, CountedRows, PreviewJob, RowCounts
from services.contracts.rows.dataset import Row
from services.contracts.rows.messages import Chat
from services.contracts.rows.preference import PAIR
from services.contracts.rows.rendering import compose, plain_text, render, templated
from services.contracts.rows.turn_end import special_texts

SECONDS = 2.0
"""For the rows of all datasets of a run."""
MOST_CHARACTERS = 10
"""Unknown characters that are named."""
RESULTS = ("tool", "function")
"""Roles of a turn with a tool's result; OpenAI's older one last."""


def counted(job: PreviewJob, config: RLConfig | SFTConfig, tokenizer: Any) -> dict[str, RowCounts]:
    """Return the counts of each dataset of the job. Stop early if the rows take too long."""
    seconds = SECONDS / max(len(job.counted), 1)
    return {
        key: _counts(asked, config, tokenizer, time.monotonic() + seconds)
        for key, asked in job.counted.items()
    }


def _counts(
    asked: CountedRows, config: RLConfig | SFTConfig, tokenizer: Any, until: float
) -> RowCounts:
    changed = {"template": asked.template, "system": asked.system}
    changed["chat_template"] = asked.chat_template or config.data.chat_template
    options = config.data.model_copy(update=changed)
    counts, lengths = RowCounts(), list[int]()
    special = special_texts(tokenizer) if templated(options, tokenizer) else []
    answers = PAIR if isinstance(config, SFTConfig) and config.objective.type == "dpo" else (None,)
    learned = [
        RowTokenizer(tokenizer, config.data, answer)
        for answer in answers
        if isinstance(config, SFTConfig)
    ]
    for row in asked.rows:
        try:
            if isinstance(config, RLConfig):
                lengths.append(_prompt(row, options, tokenizer, counts))
                _count_special(row, special, counts)
            else:
                lengths.append(_row_tokens(row, learned))
        except (ValueError, UnusableRow) as error:
            counts.unusable += 1
            if counts.first_unusable is None or row.index < counts.first_unusable[0]:
                counts.first_unusable = row.index, str(error)
        if time.monotonic() > until:
            break
    counts.rows = len(lengths)
    counts.fewest_tokens, counts.most_tokens = min(lengths, default=0), max(lengths, default=0)
    counts.median_tokens = median_low(lengths) if lengths else 0
    counts.too_long = sum(asked.most is not None and n > asked.most for n in lengths)
    counts.crowded = sum(asked.roomy is not None and n > asked.roomy for n in lengths)
    return counts


def _row_tokens(asked: AskedRow, tokenizers: list[RowTokenizer]) -> int:
    """Tokens of a supervised row with its prompt; of a preference pair, of the longer side with its
    prompt."""
    row = Row(prompt=asked.prompt, answer=asked.answer, columns=asked.columns)
    return max(len(each.row(row, asked.index).tokens) for each in tokenizers)


def _prompt(asked: AskedRow, options: PromptOptions, tokenizer: Any, counts: RowCounts) -> int:
    """Tokens of a prompt. Add the parts that the model would not read to `counts`."""
    prompt = compose(Row(prompt=asked.prompt), options)
    tokens = render(prompt, options, tokenizer)
    unknown = unknown_id(tokenizer)
    if unknown is not None and unknown in tokens:
        counts.unknown += 1
        if len(counts.unknown_characters) < MOST_CHARACTERS:
            named = {*counts.unknown_characters, *lacking(plain_text(prompt), tokenizer)}
            counts.unknown_characters = sorted(named)[:MOST_CHARACTERS]
    for part in _left_out(prompt, tokens, options, tokenizer) if isinstance(prompt, list) else ():
        counts.left_out[part] = counts.left_out.get(part, 0) + 1
    if asked.columns.get("tools"):
        counts.left_out["tools"] = counts.left_out.get("tools", 0) + 1
    return len(tokens)


def _count_special(asked: AskedRow, special: list[str], counts: RowCounts) -> None:
    text = plain_text(asked.prompt)
    if held := [token for token in special if token in text]:
        counts.special += 1
        counts.special_tokens = sorted({*counts.special_tokens, *held})[:MOST_CHARACTERS]


def _left_out(chat: Chat, tokens: list[int], options: PromptOptions, tokenizer: Any) -> list[str]:
    """The parts whose absence, or other value, leaves the tokens of the prompt as they are."""

    def is_same(changed: Chat) -> bool:
        try:
            return changed != chat and render(changed, options, tokenizer) == tokens
        except ValueError:
            # The template refuses a result without a call, so it reads calls.
            return False

    silent = [{key: value for key, value in turn.items() if key not in CALLS} for turn in chat]
    silent = [{"content": "", **turn} for turn in silent]
    calls = [turn for turn in chat if any(turn.get(key) for key in CALLS)]
    results = [_other(turn) if turn.get("role") in RESULTS else turn for turn in chat]
    # Templates may leave out the content of a turn that calls tools.
    answers = [
        _other(turn) if turn.get("role") == "assistant" and turn not in calls else turn
        for turn in chat
    ]
    parts = []
    if is_same(answers):
        parts.append("assistant")
    if calls and is_same(silent):
        parts.append("tool_calls")
    if is_same(results):
        parts.append("tool")
    return parts


def _other(turn: dict[str, Any]) -> dict[str, Any]:
    return {**turn, "content": f"{turn.get('content')} 0"}
