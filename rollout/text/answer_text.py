"""Decodes an answer's tokens as verifiers and clients read them, and finds the part of an answer
that its prompt already has."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

from rollout.vllm.model_files import TokenizerLike
from services.contracts.thoughts import is_tag, prefill_of

PREFILL_TOKENS = 64
"""More tokens than the tags of an empty thought have, even if a tokenizer splits them into
characters."""
_kept: WeakKeyDictionary[TokenizerLike, dict[int, str]] = WeakKeyDictionary()


def text_of(tokenizer: TokenizerLike, token_ids: Any) -> str:
    """Return the text of tokens without special tokens. The tags of thoughts stay: without them a
    thought reads like an answer."""
    kept = _tags(tokenizer)
    if not kept:
        (text,) = tokenizer.batch_decode([token_ids], skip_special_tokens=True)
        return text
    # Tokens between two tags are decoded together: some have no text of their own.
    pieces = groupby(map(int, token_ids), kept.get)
    return "".join(
        tag * len(list(ids))
        if tag
        else tokenizer.batch_decode([list(ids)], skip_special_tokens=True)[0]
        for tag, ids in pieces
    )


def prefill(
    tokenizer: TokenizerLike, prompt: Sequence[int], message: Mapping[str, Any] | None = None
) -> str:
    """Return the beginning of the answer that the prompt ends with: the tags of a thought. Empty if
    a reasoning parser has removed the thought from the answer's `message`."""
    if message is not None and (message.get("reasoning") or message.get("reasoning_content")):
        return ""
    end = list(prompt[-PREFILL_TOKENS:])
    text = tokenizer.decode(end, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return prefill_of(text)


def before_stop(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """Return `text` up to the first of `stops` in it, and that stop; '' if it has none."""
    ends = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    at, stop = min(ends, default=(len(text), ""))
    return text[:at], stop


def _tags(tokenizer: TokenizerLike) -> dict[int, str]:
    """Return the special tokens that are tags of thoughts, by id."""
    if tokenizer not in _kept:
        added = tokenizer.get_added_vocab()
        _kept[tokenizer] = {
            number: tag
            for tag, number in added.items()
            if is_tag(tag) and not tokenizer.decode([number], skip_special_tokens=True)
        }
    return _kept[tokenizer]
