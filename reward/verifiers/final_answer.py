"""Where in a text the final answer stands. Pure text, linear time; understands no mathematics.

The forms, strongest first: `\\boxed{…}` (the last complete one, with others joined to it), an
`<answer>` tag, the rest of the line after `####` (GSM8K's form), what follows "the answer is" or
"answer:". Within a form the last one counts. Without any of them the text is *unanchored*, and what
its last number or expression is must be found by whoever can read expressions.
"""

import re
from typing import NamedTuple

# An answer is short. Longer ones are not read: parsing time grows faster than their length.
MAX_CHARS = 2000
MAX_DEPTH = 40

_BRACES = re.compile(r"\\[{}]|\\(?:boxed|fbox)\s*\{|[{}]")
_JOINT = re.compile(
    r"[\s$]*(?:,|,?\s*(?:and|or)\b|\\(?:text|quad|qquad)\b(?:\{[^{}]{0,20}\})?)?[\s$,]*"
)
_SPECIAL = re.compile(r"<\|\w{1,40}\|>")
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_PHRASE = re.compile(
    r"\banswers?\b(?:\s+to\s+[^.\n:]{1,60})?\**\s*(?::|=|\b(?:is|are)\b)\**:?", re.IGNORECASE
)
# A sentence ends at a full stop before white space, unless digits stand on both sides.
_SENTENCE = re.compile(r"\n|(?<!\d)\.\s|\.\s+(?=[A-Z])|\.\s*$")


class FinalAnswer(NamedTuple):
    """A piece of the text, and the form that marked it as the answer."""

    text: str
    form: str


def after_thinking(text: str) -> str:
    """What is said behind the last `</think>`; all of it where there is none. What is tried out in
    thoughts is no answer, whichever form it has."""
    return text.rpartition("</think>")[2]


def without_special_tokens(text: str) -> str:
    """`text` with a new line for each special token, such as those around a tool's calls: what
    stands beside one is not joined to it."""
    return _SPECIAL.sub("\n", text)


def find_answer(text: str) -> FinalAnswer | None:
    """The marked final answer in `text`, or None if nothing marks one.

    The piece may be empty (`\\boxed{}`, a tag with nothing in it).
    """
    boxed = _boxed(text) if "\\boxed" in text or "\\fbox" in text else None
    if boxed is not None:
        return FinalAnswer(boxed, "\\boxed")
    content = tagged(text)
    if content is not None:
        return find_answer(content) or FinalAnswer(content, "<answer>")
    mark = text.rfind("####")
    if mark >= 0:
        return FinalAnswer(text[mark:].lstrip("#").strip().partition("\n")[0].strip(), "####")
    phrases = list(_PHRASE.finditer(text))
    # A phrase at the very end was cut off before its answer: then the one before it counts.
    for phrase in reversed(phrases):
        piece = _sentence(text[phrase.end() :])
        if piece:
            return FinalAnswer(piece, "answer is")
    return None


def last_line(text: str) -> str:
    """The last line of `text` that is not empty."""
    return text.rstrip().rpartition("\n")[2].strip()


def too_deep(text: str) -> bool:
    """Whether brackets nest beyond what any answer needs (parsers recurse on them)."""
    depth = 0
    for character in text:
        if character in "({[":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif character in ")}]":
            depth = max(0, depth - 1)
    return False


def tagged(text: str) -> str | None:
    """The content of the last complete `<answer>` tag; None if there is none."""
    opened, content = -1, None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened = tag.end()
        elif opened >= 0:
            content, opened = text[opened : tag.start()].strip(), -1
    return content


def _sentence(text: str) -> str:
    text = text[: 4 * MAX_CHARS].strip()
    for opening, closing in (("$$", "$$"), ("\\[", "\\]")):
        if text.startswith(opening) and closing in text[2:]:
            return text[: text.index(closing, 2) + 2]
    end = _SENTENCE.search(text)
    return (text[: end.start()] if end else text).strip().strip("*").strip()


def _boxed(text: str) -> str | None:
    """The content of the last complete box; of several joined by commas or "and", all of it."""
    spans: list[tuple[int, int, int]] = []
    stack: list[tuple[bool, int, int]] = []
    for token in _BRACES.finditer(text):
        mark = token.group()
        if mark in ("\\{", "\\}"):
            continue
        if mark != "}":
            stack.append((mark != "{", token.start(), token.end()))
        elif stack:
            is_box, start, inside = stack.pop()
            if is_box:
                # A box around boxes takes their place: the outer one is the answer.
                while spans and spans[-1][0] > start:
                    spans.pop()
                spans.append((start, inside, token.start()))
    if not spans:
        return None
    pieces = [text[spans[-1][1] : spans[-1][2]].strip()]
    for before, after in zip(reversed(spans[:-1]), reversed(spans), strict=False):
        gap = text[before[2] + 1 : after[0]]
        if len(gap) > 30 or not gap.strip(" $\n") or not _JOINT.fullmatch(gap):
            break
        pieces.append(text[before[1] : before[2]].strip())
    return ", ".join(reversed(pieces))
