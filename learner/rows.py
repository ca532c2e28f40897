"""From dataset rows to token sequences to imitate. Pure but for the tokenizer that is handed in.

A row becomes prompt + answer + end of sequence, the prompt as rollout workers render it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from learner.errors import RunCannotGoOn
from services.contracts.config.data import MidtrainData
from services.contracts.dataset import Row
from services.contracts.rendering import compose, plain_text, render


class UnusableRow(RunCannotGoOn):
    """A dataset row cannot be imitated; the message names it."""


@dataclass(frozen=True)
class Lesson:
    """One row in tokens."""

    tokens: torch.Tensor
    """[t]."""
    wanted: torch.Tensor
    """[t] bool: tokens the loss counts; never the first."""
    text_bytes: int
    """Bytes of the text that the counted tokens spell (for bits per byte)."""


def lesson(row: Row, index: int, data: MidtrainData, tokenizer: Any, context: int | None) -> Lesson:
    """Row `index` as a lesson. Raises UnusableRow: no answer, unknown characters, too long."""
    if not isinstance(row.answer, str | int | float):
        raise UnusableRow(
            f"dataset row {index} has no answer to learn (it is {row.answer!r}): map a column to "
            "`answer` when the dataset is uploaded"
        )
    asked = compose(row, data)
    try:
        prompt = render(asked, data, tokenizer)
    except ValueError as error:
        raise UnusableRow(f"dataset row {index}: {error}") from error
    answer_text = str(row.answer)
    answer = list(tokenizer(answer_text, add_special_tokens=False)["input_ids"])
    answer.append(tokenizer.eos_token_id)
    tokens = torch.tensor(prompt + answer)
    if tokenizer.unk_token_id is not None and bool((tokens == tokenizer.unk_token_id).any()):
        unknown = ", ".join(map(repr, lacking(plain_text(asked) + answer_text, tokenizer)))
        raise UnusableRow(
            f"dataset row {index} holds characters that the tokenizer does not know: {unknown}; "
            "add them to model.tokenizer.alphabet"
        )
    if context is not None and len(tokens) > context:
        raise UnusableRow(
            f"dataset row {index} has {len(tokens)} tokens, the model takes {context}: raise "
            "model.max_length or leave the row out"
        )
    wanted = torch.ones(len(tokens), dtype=torch.bool)
    wanted[: len(prompt) if data.train_on == "answer" else 1] = False
    text = answer_text
    if data.train_on != "answer":
        turns = [asked] if isinstance(asked, str) else [str(turn["content"]) for turn in asked]
        text = "".join(turns) + answer_text
    return Lesson(tokens, wanted, len(text.encode()))


def divided(
    lessons: Sequence[tuple[Lesson, int]], share: float, seed: int
) -> tuple[list[Lesson], list[Lesson]]:
    """What to train on, of (lesson, how often it counts), and what to validate on: a `share` of the
    lessons, the last of a seeded permutation, each once and none of them to train on."""
    generator = np.random.Generator(np.random.PCG64(seed))
    shuffled = [lessons[i] for i in generator.permutation(len(lessons))]
    kept = len(shuffled) - min(round(share * len(shuffled)), len(shuffled) - 1)
    training = [one for one, times in shuffled[:kept] for _ in range(times)]
    return training, [one for one, _ in shuffled[kept:]]


def lacking(text: str, tokenizer: Any) -> list[str]:
    """The characters of `text` that the tokenizer has no token for, in order."""

    def known(character: str) -> bool:
        ids = tokenizer(character, add_special_tokens=False)["input_ids"]
        # Some drop blanks by design, and say them with the word that follows.
        return tokenizer.unk_token_id not in ids and (bool(ids) or character.isspace())

    return sorted(character for character in set(text) if not known(character))
