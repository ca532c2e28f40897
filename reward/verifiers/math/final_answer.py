"""Finds the final answer in a text. Pure text, linear time. It recognises an expression and
understands no mathematics.

The forms are, strongest first: `\\boxed{…}` (the last complete box, with other boxes joined to it),
an `<answer>` tag, the rest of the line after `####` (GSM8K's form), the words after "the answer is"
or "answer:". If a form occurs several times, the last occurrence counts. A bare value that another
form announces after the last box replaces the box, which held an intermediate result. Other
sentences about an answer leave the box. A text without any form is unmarked: a parser has to find
its last number or expression.
"""

import re
from typing import NamedTuple

from reward.verifiers.math.contrasts import correction, correction_within, is_negated
from reward.verifiers.math.math_text import is_expression, is_words
from reward.verifiers.math.value_in_answer import takes_back

# Characters. An answer is short. Longer answers are not read: parsing time grows faster than the
# length.
MAX_CHARS = 2000
CUT_OFF = "the completion was cut off, and marks no answer"
"""The detail of a verdict on a truncated completion, whose last words are not its answer."""
MAX_DEPTH = 40

# `\boxed 12`, as some solutions of MATH have it.
_BARE_BOX = re.compile(r"\\boxed +([^\s{$][^\s$]*?)(?=\.?(?:[\s$]|$))")
_BRACES = re.compile(r"\\[{}]|\\boxed\s*\{|[{}]")
# Text between two boxes that are parts of one answer: `and`, `,`, `\quad \text{or} \quad`, `or x
# =`.
_JOINT = re.compile(
    r"(?:[\s$,]|\\[,;!)\](\[]|\b(?:and|or)\b|\\(?:text|mbox)\{[^{}]{0,20}\}|\\q?quad\b)*"
    r"(?:[A-Za-z](?:_\{?\w\}?)?\s*=\s*)?"
)
# A sentence may have these words before a value, and a unit after it, but no clause about the
# value.
_ABOUT = re.compile(r"(?:approximately|about|exactly|equal to)\s+")
_UNIT = re.compile(
    r"(?<![\s,;:])(?:\s+(?!(?:as|because|but|by|for|if|is|not|since|so|that|was|when|where|which|while)"
    r"\b)[A-Za-z]+(?:/[A-Za-z]+)?){1,3}$"
)
_DOLLAR = re.compile(r"(?<!\\)\$")
_SPECIAL = re.compile(r"<\|\w{1,40}\|>")
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
# "The answer is" in the languages that most models speak, including languages without spaces.
_NOUNS = (
    "answers?|ans|respuesta|réponse|antwort|risposta|resposta|antwoord|odpowiedź|odpověď|svar|svaret|cevap"
    "|yanıt|jawaban|jawabannya|đáp.án|đáp.số|câu.trả.lời|ответ|відповідь|απάντηση|الجواب|الإجابة|התשובה|پاسخ|उत्तर"
)
_VERBS = (
    "is|are|was|were|er|es|est|ist|lautet|è|é|este|to|brzmi|je|är|adalah|là|это|равен|равна|είναι"
    "|هو|هي|היא|है"
)
_PHRASE = re.compile(
    rf"""(?<!wrong\ )(?<!incorrect\ )(?<!false\ )\b(?:{_NOUNS})\b
    (?:\s+(?:to|in|for|of)\s+[^.\n:]{{1,60}}?|\s+(?:final|finale|correcta?|correcte|correta|corretta|richtige|đúng|الصحيحة|النهائية))?\**\s*
    (?:[:=]|\b(?:(?:should|must|would|will|could|can|ca(?=n't)|wo(?=n't))(?=\ ?n[o']t\b|\s)
            (?:\s+be\b)?
        |(?:{_VERBS})(?=n't|\b)))\**:?
    | (?:答案|答え|解答|正解|정답|답|คำตอบ)\**\s*
      (?:应该是|應該是|应为|應為|等于|等於|就是|是|为|為|は|が|은|는|คือ|:|[】\]]
        |(?=【|不|\ is\ not\b))\**:?""",
    re.IGNORECASE | re.VERBOSE,
)
_MOST_PHRASES = 50
# "If the answer is 4" supposes an answer.
_SUPPOSED = re.compile(
    r"\b(?:if|suppose|supposing|assum(?:e|ing)|whether|unless|not\s+(?:true|the\s+case)|I\s+doubt)\s+(?:that\s+)?(?:(?:the|our|my|this)\s+)?"
    r"(?:\w{1,12}\s+)?$",
    re.IGNORECASE,
)
# A sentence ends at a full stop before white space, unless digits stand on both sides.
_SENTENCE = re.compile(r"\n|(?<!\d)\.\s|\.\s+(?=[A-Z])|(?<=!)\s+(?=[A-Z][a-z])|\.\s*$")


class FinalAnswer(NamedTuple):
    """A piece of the text, and the form that marked it as the answer."""

    text: str
    form: str


def without_special_tokens(text: str) -> str:
    """Return `text` with a new line for each special token, such as the tokens around a tool's
    calls. The texts on both sides of a token thus stay apart."""
    return _SPECIAL.sub("\n", text)


def find_answer(text: str) -> FinalAnswer | None:
    """Return the marked final answer in `text`, or None without a mark. The piece may be empty
    (`\\boxed{}`, an empty tag)."""
    text = _BARE_BOX.sub(r"\\boxed{\1}", text.replace("\\fbox", "\\boxed"))
    boxed = _boxed(text) if "\\boxed" in text else None
    if boxed is not None:
        content, end = boxed
        replaced = "" if end == 0 else correction(text, end)
        if replaced == "":
            announced = _announced(text)
            return announced if end == 0 and announced else FinalAnswer(f"not {content}", "\\boxed")
        if replaced:
            return FinalAnswer(replaced, "\\boxed")
        later = _announced(text[end:])
        return later if later and _replaces(later, content) else FinalAnswer(content, "\\boxed")
    return _announced(text)


def _announced(text: str) -> FinalAnswer | None:
    """Return the final answer in a text without a complete box."""
    content = tagged(text)
    if content is not None:
        return find_answer(content) or FinalAnswer(_corrected(content, content), "<answer>")
    mark = text.rfind("####")
    if mark >= 0:
        return FinalAnswer(text[mark:].lstrip("#").strip().partition("\n")[0].strip(), "####")
    phrases = list(_PHRASE.finditer(text))
    denied = None
    # A phrase at the very end was cut off before its answer, and "the answer is not 4" gives no
    # answer. Then the phrase before it counts.
    for phrase in reversed(phrases[-_MOST_PHRASES:]):
        rest = text[phrase.end() : phrase.end() + 4 * MAX_CHARS]
        piece = _sentence(rest)
        if _SUPPOSED.search(text, max(phrase.start() - 40, 0), phrase.start()):
            if piece and "\n" not in text[phrase.end() :].strip():
                denied = denied or f"not {piece}"
            continue
        piece = _corrected(piece, rest.lstrip())
        if piece and not takes_back(piece):
            return FinalAnswer(piece, "answer is")
        denied = denied or piece
    return FinalAnswer(denied, "answer is") if denied else None


def _corrected(piece: str, rest: str) -> str:
    """Return the answer `piece`, with which `rest` begins, or the value that replaces it: 5 for `4?
    No, it is 5`."""
    replaced = correction_within(rest[:400], min(len(piece) + 6, 200))
    if replaced is None:
        return piece
    return replaced or f"not {piece}"


def _replaces(later: FinalAnswer, boxed: str) -> bool:
    """Tell whether an announcement after a box replaces the box: the announcement must be a bare
    value. Names are the only words that are values after "the answer is", which also begins
    sentences about an answer."""
    text = later.text.strip("*_ ").removesuffix(".")
    if len(text) > MAX_CHARS:
        return False
    if is_words(text):
        words = text.split()
        return later.form != "answer is" or (
            all(word[0].isupper() for word in words) and boxed not in words
        )
    text = _ABOUT.sub("", text, count=1)
    value = _UNIT.sub("", text)
    if not re.search(r"[\d\\]", value):
        # Only text with a digit can have a unit to leave out: `C`, `x = y`, but not `a`.
        value = text
    balanced = len(re.findall(r"[(\[{]", value)) == len(re.findall(r"[)\]}]", value))
    return balanced and is_expression(value) and bool(re.search(r"[\d\\A-Z=]", value))


def last_line(text: str) -> str:
    """Return the last line of `text` that is not empty."""
    return text.rstrip().rpartition("\n")[2].strip()


def too_deep(text: str) -> bool:
    """Tell whether brackets nest deeper than an answer needs (parsers recurse on them)."""
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
    """Return the content of the last complete `<answer>` tag, or None without a tag."""
    opened, content = -1, None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened = tag.end()
        elif opened >= 0:
            content, opened = text[opened : tag.start()].strip(), -1
    return content


def _sentence(text: str) -> str:
    text = text.strip()
    for opening, closing in (("$$", "$$"), ("\\[", "\\]")):
        if text.startswith(opening) and closing in text[2:]:
            return text[: text.index(closing, 2) + 2]
    end = _SENTENCE.search(text)
    return (text[: end.start()] if end else text).strip().strip("*【】").strip()


def _boxed(text: str) -> tuple[str, int] | None:
    """Return the content of the last complete box without a "not" before it, and the place of
    its end. If "not" stands before each box, return the last box and 0. Boxes that commas or "and"
    join count as one box."""
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
                # The outer one of nested boxes is the answer.
                while spans and spans[-1][0] > start:
                    spans.pop()
                spans.append((start, inside, token.start()))
    if not spans:
        return None
    stated = [span for span in spans if not is_negated(text, span[0])]
    if not stated:
        return text[spans[-1][1] : spans[-1][2]], 0
    spans = stated
    pieces = [spans[-1]]
    for before, after in zip(reversed(spans[:-1]), reversed(spans), strict=False):
        gap = text[before[2] + 1 : after[0]]
        if len(gap) > 60 or not gap.strip(" $\n") or not _JOINT.fullmatch(gap):
            break
        pieces.append(before)
    contents = [_without_delimiters(text[start:end]) for _, start, end in reversed(pieces)]
    return ", ".join(contents), spans[-1][2] + 1


def _without_delimiters(text: str) -> str:
    """Return `text` without the dollar signs of formulas. A single sign means money: `$5`."""
    return text.strip() if len(_DOLLAR.findall(text)) == 1 else _DOLLAR.sub("", text).strip()
