"""Finds the value in a text that was marked as the answer, or in a text without a mark. Linear
time.

A marked answer is read from its beginning: `18 eggs in 3 days` is 18, `5, not 4` and `not 4 but 5`
are 5. A unit or a remark may follow the value. A text without a mark is read from its end. These
functions cut text; the caller finds out whether a piece has a value.
"""

import re
from collections.abc import Iterator

from reward.verifiers.math.contrasts import BOUNDED, CONCLUDED, GIVEN_INSTEAD, TAKEN_BACK, is_denied
from reward.verifiers.math.number_words import scaled, words_as_digits
from reward.verifiers.math.plain_number import SIGN_UNIT
from reward.verifiers.math.units import UNIT_NAMES

# A product of variables: `mgh`, `GMm`, `abc`. Most words have a vowel and no capital within.
_PRODUCT = (
    r"(?!(?:[A-Z]+s?|[Mm]rs|[Hh]mm|[Nn]th|mph|kph|rpm|pcs|lbs|hrs|yds|tsp|tbsp)(?![A-Za-z]))"
    r"(?:[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ]{3,4}|[a-z]{1,3}[A-Z]{1,3}|[A-Z]{2,3}[a-rt-z]"
    r"|[A-Z][a-z][A-Z]|[abc]{3}|abcd|def|uvw|[wxyz]{3,4}|ijk)(?![A-Za-z])"
)
# Two letters are a product (`xy`), unless they are an English word. Letters of other scripts,
# except Greek, are words too.
PROSE = re.compile(
    rf"(?<![\\A-Za-z])(?!{_PRODUCT})(?:[A-Za-z]{{3,}}|"
    r"(?i:am|an|as|at|be|by|do|go|he|if|in|is|it|me|my|no|of|on|or|so|to|up|us|we)(?![A-Za-z])"
    r"|(?<=\s)(?:al|de|di|du|el|en|er|es|et|il|je|la|le|se|un|zu)(?=\s))"
    r"(?:'[a-z]{1,2}(?![A-Za-z]))?"
    # A single letter of an alphabet that stands at a number is a symbol.
    r"|(?!(?:(?<=\d)[\u0080-\u08ff]|(?:(?<=\d)|(?<=\d ))(?:е|пи))(?![^\W\d_]))"
    r"[^\W\d_\x00-\x7f\u0370-\u03ff\u2100-\u214f]+"
)
COMMAND = re.compile(
    r"\\(?:text|mathrm|operatorname|mbox|begin|end|color|textcolor)\s*\{[^{}]*\}|\\[A-Za-z]+"
)
FUNCTIONS = frozenset(
    re.findall(
        r"\w+",
        """arcsin arccos arctan sin cos tan cot sec csc log exp sqrt lim max min gcd lcm mod det
        inf infty and or union sinh cosh tanh""",
    )
)
# The two currency signs of `$5 and not $4` enclose text, not a formula.
FORMULA = re.compile(
    r"\$\$(.+?)\$\$|(?<!\\)\$(?! )([^$\n]+?)(?<!\\)\$(?!\d)|(?<!\\)\$ ([^$\n]+) \$|\\\((.+?)\\\)"
    r"|\\\[(.+?)\\\]",
    re.DOTALL,
)
# No answer needs a longer line.
MOST = 2000
_TEXT = re.compile(r"\\(?:text|mbox)(?:bf|it|rm|normal)?\s*\{([^{}]*)\}")
_NUMBER_AHEAD = r"(?=\s*[-+]?\s*(?:[$\u20ac\u00a3(\[]\s*)*-?[\d.\\])"
# `72 or 73`: undecided, as a list. With a unit after the first value it is a second way to say it.
_SEVERAL = re.compile(rf"(?<=[\d)}}\]%$])\s*,?\s+(?:and|or|&)\s+{_NUMBER_AHEAD}", re.IGNORECASE)
_UNIT_IN_SUM = re.compile(
    r"(?<=[\d}])\s*(?!(?:when|where|if|for|with|and|or|of|at|since|because|as|so|that|which|in|is)\b)"
    r"[A-Za-z]{2,}(?:\s[A-Za-z]{2,}){0,2}"
    r"(?=\s*[+*/=\u00d7-]\s*(?:[$\u20ac\u00a3]\s*)?[\d(\\])"
)
_CALCULATED = re.compile(r"<<[^<>]{0,80}>>")
_WORKING = r"(?:[=\d\s.,+*/^x\u00d7-]|\\times|\\cdot)+"
_REMARK = re.compile(
    rf"(?<=[\w}}%$])\s+[(\[{{](?:{_WORKING}|[^()\[\]{{}}]*[A-Za-z]{{2}}[^()\[\]{{}}]*)[)\]}}].*",
    re.DOTALL,
)
_SPACES = re.compile(r"(?:(?:\\[ ,;:]|~)\s*)+")
_MONEY = re.compile(r"(\d+) dollars? and (\d{1,2}) cents?\b", re.IGNORECASE)
_START = re.compile(
    r"(?:[A-Za-z](?:_\{?\w\}?)?\s*=\s*)?(?<![\w.])[-+(\[]*\s*(?:US)?[$\u20ac\u00a3\u00a5]?\s*-?"
    r"(?:\d|\.\d)"
    r"|(?:[A-Za-z]\s*=\s*)?[-+(\[]*\\(?!text|mbox)[A-Za-z{]|(?<!\\)\$"
)
_SAID = re.compile(
    r"\b(?:is|are|was|were|be|equals?|has|have|had|gets?|needs?|takes?|costs?)\b:?\s*"
    r"(?:(?:now|still|only|just|about|approximately|exactly|equal to|a total of)\s+)*"
    rf"(?={_START.pattern})",
    re.IGNORECASE,
)
_UNITS_ONLY = re.compile(
    r"(?!(?:as|at|because|but|by|each|for|from|if|in|is|not|of|on|per|since|so|that|to|was|when|"
    r"where|which|while|with)\b)[^\W\d_]+(?:[ /-][^\W\d_]+){0,2}\W*",
    re.IGNORECASE,
)
_MEASURE = rf"(?!in\s+\d)(?:{UNIT_NAMES}|[mghs])\b\.?"
_COMPOUND = re.compile(
    rf"\s*[\d.,]+\s*{_MEASURE}(?:,?\s*(?:and\s+)?[\d.,]+\s*{_MEASURE})+", re.IGNORECASE
)
_EXCLAIMED = re.compile(r"[\d.,]+!")
_SHARE = re.compile(
    r"(?:^\W*|\s)(\d+)\s+(?:out\s+of\s+(?:every\s+)?(\d+)\b[^\d=]*|in\s+(\d+)(?:\s+(?:chances?|odds))?\W*)$",
    re.IGNORECASE,
)
_RESTATED = re.compile(
    rf"(?:\W{{0,3}}[\d.,]+\s*[A-Za-z]{{2,}}(?:\s[A-Za-z]+){{0,2}}|{_COMPOUND.pattern})\s*=",
    re.IGNORECASE,
)
_OPERATIONS = (
    (re.compile(r"(?<=\d)\s+(?:multiplied by|times)" + _NUMBER_AHEAD, re.IGNORECASE), " * "),
    (re.compile(r"(?<=\d)\s+plus" + _NUMBER_AHEAD, re.IGNORECASE), " + "),
    (re.compile(r"(?<=\d)\s+minus" + _NUMBER_AHEAD, re.IGNORECASE), " - "),
    (re.compile(r"(?<=\d)\s+(?:divided by|over)" + _NUMBER_AHEAD, re.IGNORECASE), " / "),
    (re.compile(r"(?<=\d)\s+squared\b", re.IGNORECASE), "^2"),
    (re.compile(r"(?<=\d)\s+cubed\b", re.IGNORECASE), "^3"),
    (re.compile(r"(?<=\d)\s+to(?: the)?" + _NUMBER_AHEAD, re.IGNORECASE), " : "),
)
_WHOLE_WITH_REMARK = re.compile(rf"\W{{0,3}}[\d.,]+%?\s+[(\[{{]{_WORKING}[)\]}}]\W*")
_ARROW = re.compile(
    r",?\s+(?:i\.e|e\.g|viz)\b|\s*(?:\u2192|\u21d2|[-=]>|\\(?:to|rightarrow|Rightarrow|implies)\b)"
)
_CUTS = (re.compile(r"[.;:!?](?:\s|$)|\s[-\u2014]+\s"), re.compile(r",(?:\s|$)"))
_LIST = re.compile(r",\s|;|(?<=\S):\s")
_HANGING = re.compile(r"\s(?:[AaI]|and|or|[-+*=])$|\s?/$")
_JOINT = re.compile(r"\s*(?:,?\s*\b(?:and|or)\b|,)\s*(?=[$\\])")
_PERCENT = re.compile(r"\s*(?:\\?%|percent\b|pct\b)")
_AROUND = " \t\n*_`\"'=\u2014"
_PUNCTUATION = re.compile(r"(?<![.,;:])\s*[.,;:?]+(?<!\.\.)$")
_RUN = re.compile(
    r"(?<![A-Za-z_^{])(?:[$\u20ac\u00a3\u00a5(\[]|-)*(?:\d|\.\d)"
    r"(?:[\d.,:^!%)\]$\u20ac\u00a3+*/=\u00d7\u00f7\u00b7-]"
    r"|[ \t]+(?=[\d+*/=\u00d7\u00f7\u00b7^(%-])|\((?=\d|-))*"
)
# A letter or sign at a number: a factor, unless it is a sign of a unit.
_SYMBOL = re.compile(
    r"[\u0080-\u08ff](?<=[^\W\d_])(?![^\W\d_])| (?:е|пи)(?![^\W\d_])|_"
    r"|[\u2030\u2070-\u209f\u2100-\u218f\u2200-\u23ff\u2669-\u266f\u27c0-\u2bff]"
)
_LAST_REMARK = re.compile(
    r"(?:(?<=\d)\s?%?(?:\s[A-Za-z]{1,20})?\s\(|\s\((?=(?:see|cf|by|from|using|since|because|as)\b))[^()]{0,200}[A-Za-z]{2}[^()]{0,200}\)\W{0,3}$"
)
_LONGEST_LEAD = 200


def is_compound(text: str) -> bool:
    """Tell whether `text` begins with several measures that are one value: `5 ft 10 in`."""
    text = _MONEY.sub(_dollars, _TEXT.sub(r" \1 ", text))
    return _COMPOUND.match(text) is not None


def is_sum(text: str) -> bool:
    """Tell whether `text` has no words, even within `\\text{}`."""
    return "\\text" not in text and not any(
        word.lower() not in FUNCTIONS for word in PROSE.findall(COMMAND.sub("", text))
    )


def is_bound(text: str) -> bool:
    """Tell whether `text` begins with a bound of a value: `at least 15`, `15 or more`."""
    text = _TEXT.sub(r" \1 ", text)
    return BOUNDED.match(text) is not None and not CONCLUDED.search(text)


def other_readings(text: str) -> list[str]:
    """Return further meanings of `text`.

    `5!` may end a sentence. `3 out of 10` is 3, and 3/10. `1 hour = 60 minutes` says one value
    twice."""
    text = _TEXT.sub(r" \1 ", text)
    if _EXCLAIMED.fullmatch(text):
        return [text.rstrip("!")]
    share = _SHARE.search(words_as_digits(text))
    if share:
        return [f"{share[1]}/{share[2] or share[3]}"]
    return text.split("=") if _RESTATED.match(text) else []


def has_remark(text: str) -> bool:
    """Tell whether `text` is a number with its working in parentheses: `18 (9 + 9)`, which means
    18."""
    return _WHOLE_WITH_REMARK.fullmatch(_SPACES.sub(" ", text)) is not None


def takes_back(text: str) -> bool:
    """Tell whether `text`, an announced answer, only says what the answer is not: `not 4`."""
    text = text[:_LONGEST_LEAD]
    start = _START.search(text)
    lead = text[: start.start()] if start else text
    return bool(TAKEN_BACK.search(lead)) and not GIVEN_INSTEAD.search(text, len(lead))


def beginnings(text: str) -> Iterator[str]:
    """Return the pieces of `text`, a marked answer, that may be its value, the longest first. Each
    begins at the first value in `text`. The first readable piece is the answer."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and "\\begin" not in text and not text.lstrip().startswith(("$$", "\\[")):
        # The text is work with the result below it, or a result with a remark below it.
        yield lines[0]
        yield lines[-1]
        text = " ".join(lines)
    text = _SPACES.sub(" ", _CALCULATED.sub("", text.replace('\\"', '"')))
    text = _MONEY.sub(_dollars, words_as_digits(_TEXT.sub(r" \1 ", text)))
    for pattern, sign in _OPERATIONS:
        text = pattern.sub(sign, text)
    text = _trimmed(_SEVERAL.sub(", ", _UNIT_IN_SUM.sub("", text)))
    start = _START.search(text)
    prose = PROSE.search(text)
    if start is None:
        return
    lead = text[: start.start()]
    if (prose is None or start.start() < prose.start()) and not TAKEN_BACK.search(lead):
        # A formula may begin with letters (`2x = y`, `x^2 + 1`): no prose stands before its digits.
        yield from _values(text)
        return
    verb = _SAID.search(text)
    if verb and (verb.end() > start.end() or not TAKEN_BACK.search(lead)):
        # `The largest $n$ is 34`, `not 4, it is 5`: a sentence says the value after its verb.
        yield from _values(text[verb.end() :])
    elif not TAKEN_BACK.search(lead):
        yield from _values(text[start.start() :])
    elif instead := GIVEN_INSTEAD.search(text, start.start()):
        yield from beginnings(text[instead.end() :])


def _values(text: str) -> Iterator[str]:
    formula = FORMULA.match(text)
    if formula:
        yield _formulas(text)
        return
    text = _ARROW.split(_REMARK.sub("", text), maxsplit=1)[0]
    prose = next((word for word in PROSE.finditer(text) if word[0].lower() not in FUNCTIONS), None)
    head = text[: prose.start()] if prose else text
    rest = text[prose.start() :] if prose else ""
    head = _trimmed(_balanced(head))
    head = _trimmed(_HANGING.sub("", head))
    first = _cut(head, _LIST)
    if first != head and rest and (head[len(first)] != "," or not _UNITS_ONLY.fullmatch(rest)):
        # `18, 6 for each`: the comma begins a remark.
        head = first
    yield head
    # `!` and ` - ` end a sentence only if words follow; else they are signs of a formula.
    for cut in _CUTS if rest else ():
        head = _trimmed(_cut(head, cut))
        yield head


def _cut(text: str, pattern: re.Pattern[str]) -> str:
    """Return `text` up to the first match of `pattern` outside brackets."""
    depth = start = 0
    for match in pattern.finditer(text):
        between = text[start : match.start()]
        depth += sum(map(between.count, "([{")) - sum(map(between.count, ")]}"))
        start = match.start()
        if depth <= 0:
            return text[:start]
    return text


def _dollars(match: re.Match[str]) -> str:
    return f"{match[1]}.{match[2]:0>2} dollars"


def _trimmed(text: str) -> str:
    """Return `text` without punctuation and emphasis around it. An ellipsis stays."""
    return _PUNCTUATION.sub("", text.lstrip(_AROUND + ",;:").rstrip(_AROUND)).rstrip(_AROUND)


def _formulas(text: str) -> str:
    """Return the formulas at the beginning of `text`, joined by commas if only `,`, "and" or "or"
    is between them."""
    formulas, position = [], 0
    while match := FORMULA.match(text, position):
        formulas.append(next(group for group in match.groups() if group).strip().rstrip(".,;"))
        position = match.end()
        joint = _JOINT.match(text, position)
        if joint is None:
            break
        position = joint.end()
    return ", ".join(formulas) + ("%" if _PERCENT.match(text, position) else "")


def _balanced(text: str) -> str:
    """Return `text` up to the first bracket that is never closed."""
    stack: list[int] = []
    for position, sign in enumerate(text):
        if sign in "([{":
            stack.append(position)
        elif sign in ")]}" and stack:
            stack.pop()
    return text[: stack[0]] if stack else text


def endings(text: str) -> Iterator[str]:
    """Return the pieces of `text`, which marks no answer, that may be its value: the last formula
    or number, in its longest form first."""
    line = text.rstrip().rpartition("\n")[2].strip()
    if len(line) <= MOST and (share := _SHARE.search(line)):
        yield share[1]
    remark = _LAST_REMARK.search(line) if len(line) <= MOST else None
    if remark:
        # `The total is 6 (2 dogs and 4 cats).`
        text = line = line[: remark.start()]
    if len(line) <= MOST:
        line = words_as_digits(line)
        # The text after the last word, or a formula between words: `5\\sqrt{2} units`.
        last, tail, start = 0, "", 0
        words = PROSE.finditer(COMMAND.sub(lambda match: " " * len(match[0]), line))
        ends = [(word.start(), word.end()) for word in words if word[0].lower() not in FUNCTIONS]
        for position, end in [*ends, (len(line), 0)]:
            between = line[last:position].strip(" \t,;:")
            if re.search(r"\\[A-Za-z]|[\u221a\u03c0]" if end else r"[\d\\]", between):
                tail, start = between, line.index(between, last)
            last = end
        if tail and not is_denied(line, start, start + len(tail)):
            yield tail
    tail = scaled(text[-MOST:])
    value = ""
    position = -1
    for formula in FORMULA.finditer(tail):
        value, position = formula[0], formula.end()
    for run in _RUN.finditer(tail, max(position, 0)):
        is_factor = _SYMBOL.match(tail, run.end()) and not SIGN_UNIT.match(tail, run.end())
        if not is_factor and not is_denied(tail, run.start(), run.end()):
            value = run[0]
    if value:
        yield value
        yield _trimmed(re.split(r",\s", _trimmed(value))[-1])
    elif not re.search(r"\d", tail):
        yield from _RUN.findall(words_as_digits(tail))[-1:]
