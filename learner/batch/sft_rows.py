"""From dataset rows to token sequences for supervised training. Pure but for the tokenizer.

A row becomes prompt + answer + end of sequence, the prompt as rollout workers render it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from learner.errors import RunCannotGoOn
from services.contracts.config.data import PromptOptions, SFTData
from services.contracts.dataset import Row
from services.contracts.rendering import Chat, chat_text, compose, plain_text, render


class UnusableRow(RunCannotGoOn):
    """A dataset row cannot be trained on; the message names it."""


@dataclass(frozen=True)
class Example:
    """One row in tokens."""

    tokens: torch.Tensor
    """[t]."""
    loss_mask: torch.Tensor
    """[t] bool: tokens the loss counts; never the first."""
    spells: torch.Tensor
    """[t] bool: counted tokens that spell the row's text; end of sequence, special tokens and those
    of the chat template do not. Bits per byte are over these."""
    text_bytes: int
    """UTF-8 bytes of the text that they spell."""
    sampling_mask: torch.Tensor | None = None
    experts: torch.Tensor | None = None
    """None, both: as of a `Sample` from the whole vocabulary without recorded routing."""


def example(row: Row, index: int, data: SFTData, tokenizer: Any, context: int | None) -> Example:
    """Row `index` as an example. Raises UnusableRow: no answer, unknown characters, too long."""
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
    loss_mask = torch.ones(len(tokens), dtype=torch.bool)
    loss_mask[: len(prompt) if data.train_on == "answer" else 1] = False
    sizes: list[int | None] = [None] * len(prompt)
    if data.train_on == "all" and tokenizer.is_fast:
        sizes = text_bytes(asked, data, tokenizer)
    own = [size is not None for size in sizes] + [True] * (len(answer) - 1) + [False]
    # The first token is never counted.
    size = sum(size or 0 for size in sizes[1:]) + len(answer_text.encode())
    return Example(tokens, loss_mask, torch.tensor(own) & loss_mask, size)


def text_bytes(asked: str | Chat, options: PromptOptions, tokenizer: Any) -> list[int | None]:
    """[t] UTF-8 bytes of the row's own text that each token of its rendered prompt spells; None for
    special tokens and those that only the chat template adds, which spell none of it."""
    if options.chat_template == "auto" and tokenizer.chat_template:
        chat = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        whole = chat_text(chat, tokenizer)
        parts, special = [str(turn["content"]).strip() for turn in chat], False
    else:
        whole = plain_text(asked)
        parts, special = [whole], True
    own, end = [False] * len(whole), 0
    for part in parts:
        # A template that changes a message hides it: then its tokens count as the template's.
        if (start := whole.find(part, end)) >= 0:
            end = start + len(part)
            own[start:end] = [True] * len(part)
    encoded = tokenizer(whole, add_special_tokens=special, return_offsets_mapping=True)
    sizes: list[int | None] = []
    done = 0
    for start, end in encoded["offset_mapping"]:
        # Several tokens may share one character; its bytes count once.
        new = "".join(whole[i] for i in range(max(start, done), end) if own[i])
        sizes.append(len(new.encode()) if any(own[start:end]) else None)
        done = max(done, end)
    return sizes


def divided(
    examples: Sequence[tuple[Example, int]], share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Training and validation examples, from (example, how often it counts). A `share` of the
    examples, the last of a seeded permutation, is for validation: each once, none to train on."""
    generator = np.random.Generator(np.random.PCG64(seed))
    shuffled = [examples[i] for i in generator.permutation(len(examples))]
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
