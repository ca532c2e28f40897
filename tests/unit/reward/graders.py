"""Grader objects for tests, and how one scores an answer without a service."""

from typing import Any

from reward.sandbox.limits import Limits
from reward.verifiers.base import Item
from reward.verifiers.graders.evaluation import GraderEvaluation, names_of
from reward.verifiers.graders.outcome import Outcome
from reward.verifiers.graders.python_grader import limits_of
from reward.verifiers.graders.shapes import GraderParams

SAME = {
    "type": "string_check",
    "name": "same",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}


def multi(formula: str, **graders: Any) -> dict[str, Any]:
    """Return a `multi` grader."""
    return {"type": "multi", "name": "all", "graders": graders, "calculate_output": formula}


def item(completion: str, answer: Any = "62", **columns: Any) -> Item:
    return Item("grader", "", completion, answer, {}, columns)


def graded(grader: dict[str, Any], answer: Item, python: float = 0.5, **given: float) -> Outcome:
    """Return the outcome of a grader. A Python grader in it scores `python`."""

    def run(source: str, names: dict[str, Any], limits: Limits) -> float:
        return python

    limits = limits_of(5, 60, 512)
    params = GraderParams.model_validate({"grader": grader})
    return GraderEvaluation(names_of(answer), given, limits, run).of(params.grader)
