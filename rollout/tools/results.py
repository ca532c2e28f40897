"""Converts a tool's answer into the text that the policy reads. Pure, except for the tokenizer."""

import json
import re
from collections.abc import Iterable
from os.path import commonprefix
from typing import Any

from rollout.text.chat_rendering import tokens
from rollout.vllm.model_files import TokenizerLike

MAX_CHARACTERS = 1 << 16
"""Characters of a result, before it is cut to tokens."""
CUT = "\n[The rest is cut.]"
_MARKER = re.compile(r"[<\[].+[>\]]", re.DOTALL)


def text_of_result(content: Iterable[Any], structured: Any) -> str:
    """Return the text of a result's MCP blocks. A block without text becomes its kind in brackets.
    A result without blocks becomes `structured` as JSON."""
    texts = [_text(block) for block in content]
    if not texts and structured is not None:
        return json.dumps(structured, ensure_ascii=False)
    return "\n".join(texts)


def _text(block: Any) -> str:
    text = getattr(getattr(block, "resource", block), "text", None)
    return text if isinstance(text, str) else f"[{block.type}]"


def marker_pattern(markers: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for the first character of each spelled added token of the tokenizer (such
    as `<|im_end|>`)."""
    by_first: dict[str, list[str]] = {}
    for marker in markers:
        if _MARKER.fullmatch(marker):
            by_first.setdefault(marker[0], []).append(marker[1:])
    # A lookahead, since one marker may begin inside another. Without markers it matches nothing.
    starts = [
        f"{re.escape(first)}(?={_any_of(remainders)})" for first, remainders in by_first.items()
    ]
    return re.compile("|".join(starts) or "(?!)")


def _any_of(texts: list[str]) -> str:
    """Return a pattern that matches at the start of each of `texts`. It holds a shared prefix once:
    a vocabulary may have thousands of markers, and each would be tried at each place."""
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
    """Return `text` with a blank after the first character of each spelled marker. So it cannot end
    its message or speak as another role. Unpaired surrogates are replaced too, since they are no
    valid text."""
    return pattern.sub(r"\g<0> ", text.encode("utf-8", "replace").decode())


async def readable(
    text: str, limit: int, pattern: re.Pattern[str], tokenizer: TokenizerLike
) -> str:
    """Return `text` as the policy reads it, without markers. A longer text is cut to `limit` tokens
    and marked as cut."""
    kept = without_markers(text[:MAX_CHARACTERS], pattern)
    ids = await tokens(kept, tokenizer, add_special_tokens=False)
    if len(ids) > limit:
        kept = tokenizer.decode(
            ids[:limit], skip_special_tokens=False, clean_up_tokenization_spaces=False
        ).rstrip("\N{REPLACEMENT CHARACTER}")
        # A tokenizer that normalises text may have turned similar characters into markers.
        kept = without_markers(kept, pattern)
    return kept + CUT if len(ids) > limit or len(text) > MAX_CHARACTERS else kept
