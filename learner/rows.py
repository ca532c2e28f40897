"""From dataset rows to token sequences to imitate. Pure but for the tokenizer that is handed in.

A row becomes prompt + answer + end of sequence. Prompts must come out exactly as rollout workers
render them, or what midtraining teaches is not what sampling asks.
"""

from dataclasses import dataclass
from typing import Any

import torch

from learner.errors import RunCannotGoOn
from services.contracts.config.run import MidtrainData
from services.contracts.dataset import Row


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
    asked = row.prompt
    if isinstance(asked, str):
        asked = data.template.replace("{prompt}", asked)
    prompt = _prompt_tokens(asked, tokenizer)
    answer_text = str(row.answer)
    answer = list(tokenizer(answer_text, add_special_tokens=False)["input_ids"])
    answer.append(tokenizer.eos_token_id)
    tokens = torch.tensor(prompt + answer)
    if tokenizer.unk_token_id is not None and bool((tokens == tokenizer.unk_token_id).any()):
        raise UnusableRow(
            f"dataset row {index} holds characters that the tokenizer does not know: "
            f"{_unknown(str(asked) + answer_text, tokenizer)}; add them to "
            "model.tokenizer.alphabet"
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


def _prompt_tokens(asked: str | list[dict[str, Any]], tokenizer: Any) -> list[int]:
    if tokenizer.chat_template:
        chat = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        return list(
            tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )
    text = asked if isinstance(asked, str) else "\n\n".join(str(m["content"]) for m in asked)
    return list(tokenizer(text)["input_ids"])


def _unknown(text: str, tokenizer: Any) -> str:
    known = tokenizer.get_vocab()
    return ", ".join(sorted({repr(character) for character in text if character not in known}))
