"""Rewrites a formula, as people write it, into the LaTeX that the parser of math-verify reads.

Only the spelling changes: `\\frac12`, `sqrt(8)`, `x**2`, `\\left(`, `\\varnothing`, `\\mathrm{e}`.
The library's own normaliser also deletes quotes, `\\ldots`, and final letters that look like units;
a part of a formula then stands for the whole. Linear time, except for nested fractions.
"""

import re

from reward.verifiers.math.math_text import COLOR, CROSS, SIZES, STYLES, is_date
from reward.verifiers.math.number_words import SCALES
from reward.verifiers.math.signs import plain_signs
from reward.verifiers.math.units import UNIT_NAMES

# The letters of Greek that have a name in LaTeX.
_GREEK = {
    **dict(
        zip(
            "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ",
            re.findall(
                r"\w+",
                """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho
                sigma tau upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi
                Psi Omega""",
            ),
            strict=True,
        )
    ),
    "\u00b5": "mu", "\u03d1": "theta", "\u03d5": "phi", "\u03f5": "epsilon", "\u2126": "Omega",
}  # fmt: skip
_SIGNS = str.maketrans(
    {sign: rf"\{name} " for sign, name in _GREEK.items()}
    | {
        "\u00d7": r"\times ",
        "\u00f7": r"\div ",
        "\u00b7": r"\cdot ",
        "\u22c5": r"\cdot ",
        "\u221e": r"\infty ",
        "\u2264": r"\le ",
        "\u2265": r"\ge ",
        "\u2260": r"\ne ",
        "\u2208": r"\in ",
        "\u222a": r"\cup ",
        "\u2229": r"\cap ",
        "\u2205": r"\emptyset ",
        "\u00b1": r"\pm ",
        "\u00b0": r"^\circ ",
        "\u27e8": "(",
        "\u27e9": ")",
        "\u20ac": "",
        "\u00a3": "",
        "\u00a5": "",
    }
)
_FUNCTION = re.compile(
    r"(?<![\\A-Za-z{])(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|infty|sqrt)"
    r"(?![A-Za-z])"
)
_NAMED = re.compile(
    STYLES + r"\s*\{\s*(arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|log|ln|exp)\s*\}"
)
_LETTER = re.compile(STYLES.replace("|mathbb", "") + r"\s*\{\s*([A-Za-z0-9]|\\[a-z]+)\s*\}")
_OLD_LETTER = re.compile(STYLES.replace("|mathbb", "") + r"\s+([A-Za-z0-9])(?![A-Za-z])")
_WRITTEN = (
    (re.compile(r"\\(?:left|right)?(?:langle|lgroup)(?![A-Za-z])"), "("),
    (re.compile(r"\\(?:left|right)?(?:rangle|rgroup)(?![A-Za-z])"), ")"),
    (re.compile(r"\\(?:varnothing|O)(?![A-Za-z])"), r"\\emptyset "),
    (re.compile(r"\\mathbb\s+([A-Z])"), r"\\mathbb{\1}"),
    (re.compile(r"\\tg(?![A-Za-z])"), r"\\tan "),
    (re.compile(r"\\ctg(?![A-Za-z])"), r"\\cot "),
    (re.compile(r"\\lg(?![A-Za-z])"), r"\\log "),
    (re.compile(r"\\(?:ast|bullet|star)(?![A-Za-z])"), r"\\cdot "),
    (re.compile(r"\\(?:lbrack)(?![A-Za-z])"), "["),
    (re.compile(r"\\(?:rbrack)(?![A-Za-z])"), "]"),
    (re.compile(r"\\(?:[dtcs]|nice)frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\[dt]binom(?![A-Za-z])"), r"\\binom"),
    (re.compile(r"\\infin(?![A-Za-z])|(?<![\\A-Za-z])infinity(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?"), r"^\\circ "),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(\^|_)\s*([-+]\s*(?:\d+|[A-Za-z](?![A-Za-z])|\\[a-z]+))"), r"\1{\2}"),
    (re.compile(r"(?<=\d)(?:\{,\}|\\[,!;:]\s*,?|,\\!\s*)(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\log_\s?(\d)\s?(\d+)"), r"\\log_{\1}{\2}"),
    (re.compile(r"(?<![\d.])\.(?=\d)"), "0."),
    (re.compile(r"(?<=\d)e(?=[-+]?\d)"), "E"),
    (re.compile(r"\{\s*\}"), ""),
)  # fmt: skip
_SPACE = re.compile(r"(?<!\\)\\ |[~\n\t]")
_DELIMITERS = re.compile(r"\\[()\[\]](?![a-zA-Z0-9]*\\\\)|(?<!\\)\$|\\\$")
# Separators in words count too: `x = 1 or x = 2`, `1 \text{ and } 2`.
_AND_OR = re.compile(
    r"\s*,?\s*(?:\\text\s*\{\s*(?:,|,?\s*(?:and|or)\s*,?)\s*\}"
    r"|(?<![\\A-Za-z{])(?:and|or)(?![A-Za-z}]))\s*,?\s*"
)
# `{x | 1 < x < 2}` is what its condition says.
_SET_OF_ALL = re.compile(
    r"\s*\\?\{\s*([a-z])\s*(?:\\in\s*\\mathbb\s*\{?\s*R\s*\}?\s*)?(?:\\?\||:|\\mid(?![a-z]))"
    r"(?=[^|:]*\1)(.*(?:[<>]|\\(?:[lg](?:eq?|t)|neq?)(?![a-z])).*?)\\?\}[\s.]*"
)
_UNION = re.compile(
    r"(?<=[)\]])\s*,?\s*(?:\\text\s*\{\s*)?(?:\b(?:or|union)\b|\bU\b|(?P<both>\band\b))\s*\}?\s*(?=[(\[])"
)
_SCALE = re.compile(
    r"(?<=[\d}])\s*\\(?:text|mathrm|mbox|textrm)\s*\{\s*"
    rf"({'|'.join(SCALES)})(?![^\W\d_])[^{{}}]*\}}",
    re.IGNORECASE,
)
_DEGREES = re.compile(r"\s*(?:\^\s*\{?\s*\\(?:circ|degree)\s*\}?|\\text\s*\{\s*degrees?\s*\})\s*$")
_UNIT = re.compile(
    r"(?<=[\d})\]A-Za-z])\s*(?:(?:[/*]|\\cdot|\\times|\\,)?\s*\\(?:text|mathrm|mbox|textrm|rm)\s*"
    r"\{(?:(?!\s*(?:[eid]|or|and|[A-Z])\s*\})[A-Za-z\s./\u00b0%-]+|\s*[kcdm]?m\^[23])\}(?:\^\{?-?\d\}?|\^\\circ\s*)?)+\s*$"
)
# `2\pi hr` and `\frac12 mg` are products.
_PLAIN_UNIT = re.compile(
    rf"(?<=[\d}})\]i])\s+(?!(?:hr|mg|ms)\b)(?:{UNIT_NAMES}|mph)(?:\^\{{?[23]\}}?)?\s*$"
)
_END = re.compile(r"(?<![.,;])[.,;]$")
# The parser takes exponential time in the number of signs in a chain.
_MOST_EQUATIONS = 12
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
# The parser reads these and drops them.
_WORDS_IN_TEXT = r"\\(?:text|mbox|mathrm|textrm|textbf|textit)\s*\{[^{}]*[A-Za-z]{2}[^{}]*\}"
# The parser takes quadratic time for a run of signs, and for ever for `1e99999999` and `x_x_x_x_x`.
_ENDLESS = re.compile(
    r"(?:[-+|!^_]\s?){9}|\d[eE][-+]?\d{5}|(?:_ ?(?:[A-Za-z0-9]|\\[A-Za-z]+) ?(?=_)){3}"
)
# `0x10` is 16 for programs, and no product.
_HEXADECIMAL = re.compile(r"(?<![\w.])0(?:[xX][0-9a-fA-F]+|[bB][01]+|[oO][0-7]+)(?!\w)")
_SEVERAL_POINTS = re.compile(r"\d\.\d+\.\d")
_DROPPED = re.compile(
    r"\d\s*_|\^\s*(?:\{[^{}]*\}|\w)\s*_|'|\\phantom|\\[vh]space|\\vrule"
    r"|\\(?:arc)?(?:sin|cos|tan|sec|csc|cot)h?\s*_|\\(?:ln|exp|det|gcd|lcm|max|min)\s*_"
    # Words as factors, and ratios of three.
    rf"|\\text\s*\{{[^{{}}]*\d[^{{}}]*\}}|[\w)}}]\s*{_WORDS_IN_TEXT}|{_WORDS_IN_TEXT}\s*[\w\\]|:[^:=]*:"
    # Derivatives of letters are 0.
    r"|\\frac\s*\{\s*(?:d|\\partial)[^{}]*\}\s*\{\s*(?:d\s*[a-zA-Z]|\\partial)"
)
_TRANSPOSED = re.compile(
    r"\^\s*\{?\s*(?:\\(?:mathsf|mathrm|mathbf|mathit|text|rm)\s*\{?\s*)?"
    r"(?:T|\\top|\\intercal)(?![A-Za-z])\s*\}{0,2}"
)
# A vector is a row and a column.
_VECTOR = re.compile(r"\s*[(\[]([^()\[\]]*,[^()\[\]]*)[)\]]\s*$")
# `]3, 5[`, as in France, is (3, 5).
_OUTWARD = re.compile(r"([\[\]])([^\[\]()]*[,;][^\[\]()]*)([\[\]])")
_MEMBER = re.compile(r"^\s*[A-Za-z]\s*\\in(?![A-Za-z])\s*(?=[\[(\\])")
# `[1; 2]` is [1, 2] if a comma is the decimal point, and a column in programs.
_SEMICOLON = re.compile(r"(\s*[\[(][^\[\]();,]*);([^\[\]();,]*[\])]\s*)")
_ROW = r"\[([^\[\]();]*)\]"
_ROWS = re.compile(rf"\s*\[\s*{_ROW}(?:\s*,\s*{_ROW})+\s*\]\s*")
_CODE_ROWS = re.compile(r"\s*\[([^\[\]();]+(?:;[^\[\]();]+)+)\]\s*")
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq|doteq)(?![A-Za-z])|\u2248|~=")
_NAME = re.compile(r"\s*[A-Za-z](?:_\{?\w+\}?)?\s*")
_COMMAND = re.compile(r"\\[A-Za-z]+")
# The parser takes `I_0` for i, and does not read `E_0`.
_NAMED_CONSTANT = re.compile(r"(?<![\\A-Za-z])([EeI])\s*(?=_)")
_SPARE = {"E": r"\varsigma ", "e": r"\varrho ", "I": r"\varpi "}
# `x = y = 1` gives several values; `a = b = c` gives none.
_EQUAL_NAMES = re.compile(r"\s*((?:[A-Za-z]\s*=\s*){2,})([^=]*)")
_ARGUMENTS = re.compile(r"\\(frac|binom|sqrt)(?![A-Za-z])\s*")
_POWER = re.compile(r"\^\s*\(")


def has_degrees(latex: str) -> bool:
    """Tell whether the angles in `latex` are in degrees, and a function is taken of them."""
    return "^\\circ" in latex and _TRIGONOMETRIC.search(latex) is not None


def has_both_cases(latex: str) -> bool:
    """Tell whether `latex` has a letter in both cases, as in `R^2-r^2`. Else case is a matter of
    taste: `N+1` is n+1."""
    letters = set(_COMMAND.sub("", latex))
    return any(letter.islower() and letter.upper() in letters for letter in letters)


def readings(text: str) -> list[str]:
    """Return `text` as LaTeX for the parser, once for each way to understand it.

    Empty if the parser would drop a part."""
    if (
        is_date(text)
        or _SEVERAL_POINTS.search(text)
        or _HEXADECIMAL.search(text)
        or _ENDLESS.search(text)
        or CROSS.search(text)
        or text.count("=") > _MOST_EQUATIONS
    ):
        return []
    text = _SPACE.sub(" ", plain_signs(text).translate(_SIGNS))
    text = plain_signs(SIZES.sub(" ", COLOR.sub("", text)))
    text = _DELIMITERS.sub("", text).replace("\\%", "%")
    approximately = _APPROXIMATELY.search(text)
    if approximately:
        # The exact value stands before the sign; a name before the sign has its value after it.
        before, after = text[: approximately.start()], text[approximately.end() :]
        if not before.strip() or _NAME.fullmatch(before):
            before = f"{before}={after}" if before.strip() else after
        text = before
    if set_of_all := _SET_OF_ALL.fullmatch(text):
        text = set_of_all[2]
    text = _SCALE.sub(lambda match: rf" \cdot {SCALES[match[1].lower()]} ", text)
    if text.lstrip().startswith("]") or text.rstrip().endswith("["):
        text = _OUTWARD.sub(_inward, text)
    transposed = _TRANSPOSED.search(text)
    if transposed and (vector := _VECTOR.match(text[: transposed.start()])):
        text = f"({vector[1]}){text[transposed.end() :]}"
    text = _MEMBER.sub("", text)
    union = _UNION.search(text)
    spellings: list[str | None] = [*_matrix(text)]
    if _DEGREES.search(text):
        # An angle in degrees is a number of radians, too.
        spellings.append(_latex(rf"\frac{{\pi}}{{180}}\cdot({_DEGREES.sub('', text)})"))
    if union and (not union["both"] or "[" in text or "infty" in text):
        spellings.append(_latex(_UNION.sub(r"\\cup ", text)))
    if chain := _EQUAL_NAMES.fullmatch(text):
        if chain[2].strip().isalpha():
            return []
        names = chain[1].split("=")[:-1]
        spellings.append(_latex(", ".join(f"{name} = {chain[2]}" for name in names)))
    if pair := _SEMICOLON.fullmatch(text):
        spellings.append(_latex(f"{pair[1]},{pair[2]}"))
    spellings.append(_latex(_AND_OR.sub(", ", text)))
    return [latex for latex in spellings if latex is not None]


def _inward(match: re.Match[str]) -> str:
    """Return an interval with parentheses for brackets that face outward."""
    return f"{'(' if match[1] == ']' else '['}{match[2]}{')' if match[3] == '[' else ']'}"


def _matrix(text: str) -> list[str]:
    """Return the LaTeX of a matrix in a program's notation (`[[1, 2], [3, 4]]`, `[1 2; 3 4]`), or
    an empty list if `text` is none."""
    if _ROWS.fullmatch(text):
        rows = [row.split(",") for row in re.findall(_ROW, text)]
    elif code := _CODE_ROWS.fullmatch(text):
        rows = [re.split(r"\s*,\s*|\s+", row.strip()) for row in code[1].split(";")]
    else:
        return []
    if len({len(row) for row in rows}) > 1 or len(rows[0]) < 2:
        return []
    content = r" \\ ".join(" & ".join(row) for row in rows)
    return [_with_braces(rf"\begin{{pmatrix}}{content}\end{{pmatrix}}")]


def _latex(text: str) -> str | None:
    text = _PLAIN_UNIT.sub("", _UNIT.sub("", _END.sub("", text.strip())))
    for _ in range(2):
        text = _LETTER.sub(r"\1 ", _NAMED.sub(r"\\\1 ", text))
    text = _FUNCTION.sub(r"\\\1 ", _OLD_LETTER.sub(r" \1 ", text))
    text = _NAMED_CONSTANT.sub(lambda match: _SPARE[match[1]], text)
    for pattern, written in _WRITTEN:
        text = pattern.sub(written, text)
    text = re.sub(r"(?:\u221b|(?<![\\A-Za-z])cbrt)\s*", r"\\sqrt[3] ", text)
    text = re.sub("\u221a\\s*", r"\\sqrt ", text)
    if (
        _DROPPED.search(text)
        or CROSS.search(text)
        or (_TRANSPOSED.search(text) and "matrix" not in text)
    ):
        return None
    return _with_braces(text)


def _with_braces(text: str) -> str:
    """Return `text` with braces around each argument of a fraction, a binomial, a root and a
    power."""
    text = _braced_powers(text)
    position = 0
    while match := _ARGUMENTS.search(text, position):
        start = match.end()
        if match[1] == "sqrt" and text[start : start + 1] == "[":
            start = _closing(text, start) + 1
        for _ in range(1 if match[1] == "sqrt" else 2):
            text, start = _braced(text, start, parentheses=match[1] == "sqrt")
        position = match.end()
    return text


def _braced(text: str, start: int, parentheses: bool) -> tuple[str, int]:
    """Return `text` with braces around the argument at `start`, and the place after the
    argument."""
    while text[start : start + 1] == " ":
        start += 1
    sign = text[start : start + 1]
    if sign == "{":
        return text, _closing(text, start) + 1
    if sign == "(" and parentheses:
        end = _closing(text, start)
        if text[end : end + 1] == ")":
            return f"{text[:start]}{{{text[start + 1 : end]}}}{text[end + 1 :]}", end + 1
    token = re.compile(r"\\[A-Za-z]+|\d+(?:\.\d+)?|." if parentheses else r"\\[A-Za-z]+|.").match(
        text, start
    )
    if token is None:
        return text, start
    return f"{text[:start]}{{{token[0]}}}{text[token.end() :]}", token.end() + 2


def _braced_powers(text: str) -> str:
    position = 0
    while match := _POWER.search(text, position):
        end = _closing(text, match.end() - 1)
        if text[end : end + 1] == ")":
            inner = text[match.end() : end]
            text = f"{text[: match.start()]}^{{{inner}}}{text[end + 1 :]}"
        position = match.start() + 1
    return text


def _closing(text: str, start: int) -> int:
    """Return the place of the bracket that closes the bracket at `start`, or the end of `text`."""
    depth = 0
    for position in range(start, len(text)):
        if text[position] in "([{":
            depth += 1
        elif text[position] in ")]}":
            depth -= 1
            if depth == 0:
                return position
    return len(text)
