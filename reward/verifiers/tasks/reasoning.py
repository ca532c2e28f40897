"""The `reasoning_gym` verifier: the score that reasoning-gym gives an answer to one of its tasks.

The library is optional (`pip install 'headrace-server[tasks]'`), and its version is pinned, because
rows must be made and scored by the same version. Some of its tasks evaluate an answer as Python
(`eval`, sympy's `parse_expr`), which is unsafe for a model's answers. So these modules get
replacements that evaluate only literals and arithmetic.
"""

import ast
import importlib
import importlib.util
import re
from functools import cache
from importlib.metadata import version
from tokenize import TokenError
from typing import Any

from headrace.nearest import did_you_mean
from reward.errors import brief
from reward.verifiers.base import (
    BadReferenceError,
    Item,
    Verdict,
    Verifier,
    VerifierParams,
    correct,
    failed,
    shown,
)
from reward.verifiers.math.final_answer import tagged
from services.contracts.scores import ScoreStatus

PACKAGE = "reasoning_gym"
VERSION = "0.1.25"
"""The version in pyproject.toml. For a new version, find out which of its modules evaluate
answers."""
EVALUATING = (
    "algorithmic.binary_matrix",
    "algorithmic.number_sorting",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "arithmetic.bitwise_arithmetic",
    "games.n_queens",
)
"""Modules whose scoring calls `eval`."""
PARSING = {
    "algebra.intermediate_integration": "sympy",
    "algebra.polynomial_multiplication": "sp",
    "algebra.simple_integration": "sympy",
    "games.countdown": "",
    "games.puzzle24": "",
}
"""Modules whose scoring calls `parse_expr`, and the name under which each has sympy (empty: the
module has the function itself)."""
MAX_CHARACTERS = 2000
# The pattern is possessive, so that a long text is refused in no time.
_ARITHMETIC = re.compile(r"(?:0x[0-9a-fA-F]++|\d++|[-+*/&|^~<>()\s])++")
_FUNCTIONS = (
    "sqrt|exp|log|ln|sin|cos|tan|sec|csc|cot|asin|acos|atan|sinh|cosh|tanh|erf|Abs|pi|E|I|C"
)
# Attributes and strings are refused, and all names of more than a letter except these functions.
_FORMULA = re.compile(rf"(?:\b(?:{_FUNCTIONS}|[A-Za-z])\b|\d++(?:\.\d++)?(?![\w.])|[-+*/^(),\s])++")


class ReasoningGymVerifier(Verifier[VerifierParams]):
    """Scores answers with reasoning-gym."""

    name = "reasoning_gym"
    description = (
        "The score of reasoning-gym for an answer (in <answer> tags) to a row that it made."
    )
    Params = VerifierParams

    def probe(self) -> None:
        if importlib.util.find_spec(PACKAGE) is None:
            self.available, self.lacks_extra = False, True
            self.notice = (
                "reasoning-gym is not installed here: pip install 'headrace-server[tasks]'"
            )
        elif (installed := version("reasoning-gym")) != VERSION:
            self.available = False
            self.notice = f"reasoning-gym {installed} is installed, and {VERSION} is needed"

    def check_reference(self, item: Item, params: VerifierParams) -> None:
        _entry(item)

    def score(self, item: Item, params: VerifierParams) -> Verdict:
        entry = _entry(item)
        answer = tagged(item.after_thoughts)
        if answer is None or not answer.strip():
            return failed(ScoreStatus.NO_ANSWER, "the completion has no <answer> tags")
        try:
            reward = float(scorer(entry["metadata"]["source_dataset"])(answer.strip(), entry))
        except Exception as error:  # The library raises exceptions of any kind.
            return failed(ScoreStatus.UNPARSABLE, f"{shown(answer)}: {brief(error)}")
        if reward >= 1:
            return correct(f"{shown(answer)} is right")
        status = ScoreStatus.PARTIAL if reward > 0 else ScoreStatus.WRONG
        return Verdict(
            status, reward, f"{shown(answer)}, and one answer is {shown(entry['answer'])}"
        )


@cache
def scorer(task: str) -> Any:
    """Return the function that scores (answer, row) of `task`, with evaluation made safe. Raises
    ValueError for an unknown task."""
    gym = safe_library()
    names = importlib.import_module(f"{PACKAGE}.factory").DATASETS
    if task not in names:
        raise ValueError(f"reasoning-gym has no task {task!r}{did_you_mean(task, names)}")
    return gym.get_score_answer_fn(task)


@cache
def safe_library() -> Any:
    """Return the library with all evaluation of Python replaced."""
    gym = importlib.import_module(PACKAGE)
    for name in EVALUATING:
        importlib.import_module(f"{PACKAGE}.{name}").eval = evaluated  # type: ignore[attr-defined]
    for name, sympy in PARSING.items():
        module: Any = importlib.import_module(f"{PACKAGE}.{name}")
        if sympy:
            setattr(module, sympy, _Sympy())
        else:
            module.parse_expr = parsed
    return gym


def evaluated(text: str) -> Any:
    """Evaluate a literal of Python, or arithmetic. Raises ValueError and SyntaxError."""
    if len(text) <= MAX_CHARACTERS and _ARITHMETIC.fullmatch(text) and "**" not in text:
        return eval(text, {"__builtins__": {}})
    return ast.literal_eval(text)


def parsed(text: str, *arguments: Any, **options: Any) -> Any:
    """Return a formula as sympy reads it. Raises ValueError for anything more than a formula."""
    from sympy.parsing.sympy_parser import parse_expr

    if len(text) > MAX_CHARACTERS or not _FORMULA.fullmatch(text):
        raise ValueError("this is no formula")
    try:
        return parse_expr(text, *arguments, **options)
    except TokenError as error:
        raise ValueError(f"this is no formula: {error}") from None


class _Sympy:
    """The module sympy, with `parsed` in the place of its `parse_expr`."""

    parse_expr = staticmethod(parsed)

    def __getattr__(self, name: str) -> Any:
        import sympy

        return getattr(sympy, name)


def _entry(item: Item) -> dict[str, Any]:
    """Return the row as reasoning-gym made it. Raises BadReferenceError."""
    given = item.answer if isinstance(item.answer, dict) else item.columns
    metadata = given.get("metadata")
    task = metadata.get("source_dataset") if isinstance(metadata, dict) else None
    if not isinstance(task, str):
        raise BadReferenceError(
            "the row has no metadata.source_dataset: make the dataset with `headrace datasets "
            "gym TASK`, or upload reasoning-gym's rows with the mapping reasoning_gym"
        )
    try:
        scorer(task)
    except ValueError as error:
        raise BadReferenceError(str(error)) from None
    question = item.prompt if isinstance(item.prompt, str) else ""
    return {"question": question, "answer": given.get("answer"), "metadata": metadata}
