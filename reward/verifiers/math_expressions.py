"""Reading and comparing mathematical expressions with the math-verify library (and SymPy below it).

Importing this module takes a third of a second: only worker processes do (`Verifier.warm`). The
library's own timeouts are off, since they rest on SIGALRM, which C code can ignore for ever;
nothing here is safe to call outside a process that may be killed.
"""

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import parse, verify
from sympy import Expr, I, Set
from sympy.logic.boolalg import Boolean

from reward.verifiers.final_answer import (
    MAX_CHARS,
    either_as_list,
    is_expression,
    is_words,
    too_deep,
)

# It warns once per process that its timeouts are off, and logs what it could not parse.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)

_ENVIRONMENT = re.compile(r"\$.*\$|\\\(|\\\[|\\boxed", re.DOTALL)
_FUNCTION = re.compile(
    r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|infty)(?![A-Za-z])"
)
_SIGNS = str.maketrans(
    {
        "\u2212": "-",
        "\u00d7": r"\times ",
        "\u00f7": r"\div ",
        "\u00b7": r"\cdot ",
        "\u22c5": r"\cdot ",
        "\u03c0": r"\pi ",
        "\u221e": r"\infty ",
        "\u2264": r"\le ",
        "\u2265": r"\ge ",
        "\u2208": r"\in ",
        "\u222a": r"\cup ",
        "\u2229": r"\cap ",
        "\u2205": r"\emptyset ",
        "\u00b1": r"\pm ",
        "\u00bd": r"\frac{1}{2}",
        "\u00bc": r"\frac{1}{4}",
        "\u00be": r"\frac{3}{4}",
        "\u00b2": "^2",
        "\u00b3": "^3",
        "\u00b0": r"^\circ",
    }
)
# Punctuation of the sentence before the end of a formula; three of them are an ellipsis.
_PUNCTUATED = re.compile(r"(?<![.,;])[.,;](?=\$|\\\)|\\\])")
_ROOT = re.compile(r"\u221a\s*(\d+|[A-Za-z]|\([^()]*\))")


def has_environment(text: str) -> bool:
    """Whether LaTeX marks a formula in `text` (`$…$`, `\\(…\\)`, `\\[…\\]`, `\\boxed`)."""
    return _ENVIRONMENT.search(text) is not None


@lru_cache(maxsize=512)
def read_expressions(text: str, words: bool = False) -> list[Any]:
    """What SymPy makes of `text`: a bare expression, a formula in it, or the last one in prose.

    `words` lets a few words stand for themselves. Empty if nothing can be read. The list is cached,
    since the samples of a group share their reference: do not change it.
    """
    text = text.strip()
    if not text or len(text) > MAX_CHARS or too_deep(text):
        return []
    if has_environment(text):
        return _parse(_PUNCTUATED.sub("", text))
    if words and is_words(text):
        return _parse("\\boxed{\\text{" + text.rstrip(".") + "}}")
    if is_expression(text):
        formula = _as_latex(text.removesuffix("."))
        return _parse("\\boxed{" + formula + "}") or _parse(f"${formula}$") or _parse(text)
    return _parse(text)


def equal(gold: list[Any], given: list[Any], *, places: int, precision: int, strict: bool) -> bool:
    """Whether any reading of the answer equals any reading of the reference. Not symmetric: what
    an assignment or an equation stands for follows the reference's form."""
    compared = [(gold, given)]
    if any(isinstance(one, Set) for one in gold) and any(isinstance(one, Boolean) for one in given):
        # The library takes an interval for an inequality, but no inequality for an interval.
        compared.append((given, gold))
    if _names(gold) | _names(given) == {"i"}:
        compared.append((_complex(gold), _complex(given)))
    return any(
        math_verify_equals(left, right, places=places, precision=precision, strict=strict)
        for left, right in compared
    )


def math_verify_reads(text: str) -> list[Any]:
    """What the library by itself reads in a text, with its defaults."""
    return list(parse(text, parsing_timeout=None))


def math_verify_equals(
    gold: list[Any], given: list[Any], *, places: int, precision: int, strict: bool
) -> bool:
    """The library's own verdict on what `math_verify_reads` returned for reference and answer."""
    return bool(
        verify(
            gold,
            given,
            float_rounding=places,
            numeric_precision=precision,
            strict=strict,
            timeout_seconds=None,
        )
    )


def _names(values: list[Any]) -> set[str]:
    """The variables in expressions."""
    expressions = [one for one in values if isinstance(one, Expr)]
    return {symbol.name for one in expressions for symbol in one.free_symbols}


def _complex(values: list[Any]) -> list[Any]:
    """Expressions in `i` alone, with the imaginary unit in its place."""
    expressions = [one for one in values if isinstance(one, Expr)]
    return [one.subs(dict.fromkeys(one.free_symbols, I)) for one in expressions]


def _parse(text: str) -> list[Any]:
    return list(parse(text, fallback_mode="no_fallback", parsing_timeout=None))


def _as_latex(text: str) -> str:
    text = either_as_list(text)
    text = _ROOT.sub(lambda match: "\\sqrt{" + match[1].strip("()") + "}", text.replace("**", "^"))
    return _FUNCTION.sub(r"\\\1", text.translate(_SIGNS))
