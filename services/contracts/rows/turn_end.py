"""The tokens by which a chat template ends the assistant's turns. Pure, except for the tokenizer.

Supervised training teaches these tokens, so completions must end at them, whatever token the
tokenizer calls its end of sequence: a base model's is often `<|endoftext|>`, and its template ends
turns with `<|im_end|>`.
"""

from collections.abc import Sequence
from typing import Any

from services.contracts.rows.messages import Chat
from services.contracts.rows.rendering import chat_text

MARK = "headrace"
"""The answer, and the argument of a call, of the turns that are rendered to see how they end."""
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
