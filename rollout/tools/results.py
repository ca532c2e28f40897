"""From a tool's answer to the text that the policy reads. Pure, except for the tokenizer."""

import json
import re
from collections.abc import Iterable
from os.path import commonprefix
from typing import Any

from rollout.vllm.chat_rendering import tokens
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


def marker_pattern(markers: Iterable[str]) -> re.Pattern[str]:
    """The first character of each of the tokenizer's added tokens (`<|im_end|>`), wherever one is
    spelled."""
    by_first: dict[str, list[str]] = {}
    for marker in markers:
        if _MARKER.fullmatch(marker):
            by_first.setdefault(marker[0], []).append(marker[1:])
    # It looks ahead, as one marker may begin inside another. No marker: it matches nothing.
    starts = [f"{re.escape(first)}(?={_any_of(rest)})" for first, rest in by_first.items()]
    return re.compile("|".join(starts) or "(?!)")


def _any_of(texts: list[str]) -> str:
    """A pattern that matches where one of `texts` begins. It holds a beginning that several share
    once: a vocabulary may have thousands, and each would be tried at each place."""
    if "" in texts:
        return ""
    by_first: dict[str, list[str]] = {}
    for text in texts:
        by_first.setdefault(text[0], []).append(text)
    branches = []
    for group in by_first.values():
        shared = commonprefix(group)  # noqa: RUF071 - of texts, not of paths
        branches.append(re.escape(shared) + _any_of([text[len(shared) :] for text in group]))
    return f"(?:{'|'.join(branches)})"


def without_markers(text: str, pattern: re.Pattern[str]) -> str:
    """`text` in which none of the markers of `pattern` is spelled, so that it cannot end its
    message or speak as another role: a blank follows the first character of each. Nor has it halves
    of surrogate pairs, which are no text."""
    return pattern.sub(r"\g<0> ", text.encode("utf-8", "replace").decode())


async def readable(
    text: str, limit: int, pattern: re.Pattern[str], tokenizer: TokenizerLike
) -> str:
    """`text` as the policy reads it, without markers; or its first `limit` tokens, and a mark that
    there were more."""
    kept = without_markers(text[:MAX_CHARACTERS], pattern)
    ids = await tokens(kept, tokenizer, add_special_tokens=False)
    if len(ids) > limit:
        kept = tokenizer.decode(
            ids[:limit], skip_special_tokens=False, clean_up_tokenization_spaces=False
        ).rstrip("\N{REPLACEMENT CHARACTER}")
        # A tokenizer that normalises has made markers of what looked like them.
        kept = without_markers(kept, pattern)
    return kept + CUT if len(ids) > limit or len(text) > MAX_CHARACTERS else kept
