"""How a chat template begins and ends the assistant's turns. Pure, except for the tokenizer and the
model's files.

Supervised training teaches these tokens, so completions must end at them, whatever token the
tokenizer calls its end of sequence: a base model's is often `<|endoftext|>`, and its template ends
turns with `<|im_end|>`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from services.contracts.rows.messages import Chat
from services.contracts.rows.rendering import chat_text

MARK = "headrace"
"""The answer, and the argument of a call, of the turns that are rendered to see how they end."""
MAX_TOKENS = "sampling.max_tokens"
CONFIG = "config.json"
QUESTION: Chat = [{"role": "user", "content": "Say a word."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "say",
        "description": "Say a word.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "The word."}},
            "required": ["word"],
        },
    },
}
CALL = {
    "type": "function",
    "id": "call00000",
    "function": {"name": "say", "arguments": {"word": MARK}},
}
ANSWERS: list[tuple[dict[str, Any], list[dict[str, Any]] | None]] = [
    ({"role": "assistant", "content": MARK}, None),
    ({"role": "assistant", "content": "", "tool_calls": [CALL]}, [TOOL]),
]
"""An answer and a call, each with the tools that the prompt describes."""


def special_texts(tokenizer: Any) -> list[str]:
    """The texts of the tokenizer's special tokens, sorted."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    special = {token.content for token in added if token.special}
    return sorted({*getattr(tokenizer, "all_special_tokens", ()), *special})


def ending(text: str, special: Sequence[str]) -> str | None:
    """The special token that ends `text`, blanks aside. Return None if no special token does."""
    last = text.rstrip()
    return max((token for token in special if last.endswith(token)), key=len, default=None)


def turn_ends(tokenizer: Any) -> dict[str, int]:
    """The special tokens by which the tokenizer's chat template ends an answer or a tool call, with
    their ids. Empty without a template, or if the template ends turns with plain text."""
    if not getattr(tokenizer, "chat_template", None):
        return {}
    special = special_texts(tokenizer)
    ends = set()
    for turn, tools in ANSWERS:
        try:
            whole = chat_text([*QUESTION, turn], tokenizer, tools, answer_follows=False)
        except ValueError:
            # Many templates know no tools.
            continue
        _, mark, rest = whole.rpartition(MARK)
        if mark and (end := ending(rest, special)):
            ends.add(end)
    return {end: int(tokenizer.convert_tokens_to_ids(end)) for end in sorted(ends)}


def eos_token_ids(model: Path, tokenizer: Any) -> list[int]:
    """Return all ids that end a completion: those of generation_config.json, or else of
    config.json, the tokenizer's, and those with which its chat template ends a turn. Ids beyond
    the vocabulary, which vLLM refuses and no model samples, are left out."""
    generation, config = (_object(model / name) for name in ("generation_config.json", CONFIG))
    named = generation.get("eos_token_id")
    named = config.get("eos_token_id") if named is None else named
    ids = {*turn_ends(tokenizer).values(), *(named if isinstance(named, list) else [named])}
    size = config.get("text_config", config).get("vocab_size", sys.maxsize)
    return sorted(id for id in {*ids, tokenizer.eos_token_id} if id is not None and 0 <= id < size)


def _object(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    return content


def no_end(stop_token_ids: Sequence[int]) -> str:
    """Return a warning about a model that names no token that ends an answer."""
    ends = "sampling.stop_token_ids or sampling.max_tokens" if stop_token_ids else MAX_TOKENS
    return (
        "neither tokenizer nor generation config of the model name an end of sequence: only "
        f"{ends} end completions; set eos_token_id in the model's generation_config.json"
    )


def unbegun(tokenizer: Any) -> str:
    """Return what a chat template writes between a prompt and its answer, if prompts lack it:
    a template without `add_generation_prompt`. Return '' if nothing is missing."""
    try:
        prompt = chat_text(QUESTION, tokenizer)
        asked = chat_text(QUESTION, tokenizer, answer_follows=False)
        answer = {"role": "assistant", "content": MARK}
        whole = chat_text([*QUESTION, answer], tokenizer, answer_follows=False)
    except ValueError:
        return ""
    before, mark, _ = whole.partition(MARK)
    # Mistral's template lets the answer follow the question at once.
    if prompt != asked or not mark or not before.startswith(prompt):
        return ""
    return before[len(prompt) :].strip()
