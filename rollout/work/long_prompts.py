"""Cuts prompts that leave too little space for an answer (`data.long_prompts`). Pure, except for
the tokenizer.

The longest text of a prompt loses its beginning, since questions mostly come last. The chat
template is then rendered again: a prompt cut by tokens would begin in the middle of a message.
"""

from dataclasses import dataclass
from typing import Any

from rollout.vllm.model_files import PromptTooLong, TokenizerLike, answer_tokens
from services.contracts.config.data import PromptOptions
from services.contracts.rows.messages import Chat, for_template
from services.contracts.rows.rendering import render

TRIES = 8
"""Renderings of a shortened prompt. A cut text may have a few more tokens than it had as a part."""


@dataclass(frozen=True)
class Rendered:
    tokens: list[int]
    lost: int = 0
    """Tokens that were cut off."""


def rendered(
    prompt: str | Chat,
    options: PromptOptions,
    tokenizer: TokenizerLike,
    tools: list[dict[str, Any]] | None,
    context: int,
    longest: int | None,
) -> Rendered:
    """Return `prompt` in tokens, cut to `longest` tokens (None: never cut). Raises PromptTooLong if
    it leaves no token for an answer in `context`, or if its template alone is too long; and
    ValueError as `render` does."""
    tokens = render(prompt, options, tokenizer, tools)
    whole = len(tokens)
    if longest is not None:
        for _ in range(TRIES):
            if len(tokens) <= longest:
                break
            shorter = without_beginning(prompt, len(tokens) - longest, tokenizer)
            if shorter is None:
                break
            prompt = shorter
            tokens = render(prompt, options, tokenizer, tools)
        if len(tokens) > longest:
            raise PromptTooLong(
                f"the prompt has {whole} tokens, and {len(tokens)} after it was cut: the most that "
                f"leaves room for an answer is {longest} (rollout.vllm.max_model_len less "
                "max_tokens)"
            )
    answer_tokens(tokens, context)
    return Rendered(tokens, whole - len(tokens))


def cut_event(row: str, lost: int, left: int) -> str:
    """Describe, for an event, a prompt that has lost `lost` tokens and has `left` tokens."""
    return (
        f"a prompt is cut (data.long_prompts): {row} has lost {lost:,} of {lost + left:,} tokens, "
        "at the beginning of its longest text"
    )


def without_beginning(
    prompt: str | Chat, tokens: int, tokenizer: TokenizerLike
) -> str | Chat | None:
    """Return `prompt` whose longest text has lost its first `tokens`. Return None if the text is
    shorter."""
    if isinstance(prompt, str):
        return _shortened(prompt, tokens, tokenizer)
    messages = for_template(prompt)
    texts = [str(message.get("content") or "") for message in messages]
    at = max(range(len(texts)), key=lambda number: len(texts[number]))
    text = _shortened(texts[at], tokens, tokenizer)
    if text is None:
        return None
    return [*messages[:at], {**messages[at], "content": text}, *messages[at + 1 :]]


def _shortened(text: str, tokens: int, tokenizer: TokenizerLike) -> str | None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokenizer.decode(ids[tokens:]) if len(ids) > tokens else None
