"""From a tool's answer to the text that the policy reads. Pure, except for the tokenizer."""

import json
import re
from collections.abc import Collection, Iterable
from typing import Any

from rollout.vllm.model_files import TokenizerLike

MAX_CHARACTERS = 1 << 16
"""Of a result, before it is cut to tokens."""
CUT = "\n[The rest is cut.]"
_MARKER = re.compile(r"[<\[].+[>\]]", re.DOTALL)


def text_of_result(content: Iterable[Any], structured: Any) -> str:
    """The text of a result's blocks, as MCP has them, and the kind of those without text. Without
    any block `structured` counts."""
    texts = [_text(block) for block in content]
    if not texts and structured is not None:
        return json.dumps(structured, ensure_ascii=False)
    return "\n".join(texts)


def _text(block: Any) -> str:
    text = getattr(getattr(block, "resource", block), "text", None)
    return text if isinstance(text, str) else f"[{block.type}]"


def without_markers(text: str, markers: Collection[str]) -> str:
    """`text` in which none of the tokenizer's added tokens (`<|im_end|>`) is spelled, so that it
    cannot end its message or speak as another role: a blank follows the first character of each.
    Nor has it halves of surrogate pairs, which are no text."""
    text = text.encode("utf-8", "replace").decode()
    for marker in markers:
        if _MARKER.fullmatch(marker):
            text = text.replace(marker, f"{marker[0]} {marker[1:]}")
    return text


def cut_to(text: str, tokens: int, tokenizer: TokenizerLike) -> str:
    """`text`, or its first `tokens` and a mark that there were more."""
    kept = text[:MAX_CHARACTERS]
    ids = list(tokenizer(kept, add_special_tokens=False)["input_ids"])
    if len(ids) > tokens:
        kept = tokenizer.decode(
            ids[:tokens], skip_special_tokens=False, clean_up_tokenization_spaces=False
        ).rstrip("\N{REPLACEMENT CHARACTER}")
    return kept if kept == text else kept + CUT
