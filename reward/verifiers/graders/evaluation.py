"""Scores a grader: all of its parts that compute, and its formulas. Runs in a worker process.

Parts that ask a model were asked before, and their scores are `given`. If an answer is not JSON, or
lacks a field that a template needs, the part scores 0 and a flag says why: without a score the
loss would skip the answer. Any other failure leaves no score.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from reward.sandbox.limits import Limits
from reward.sandbox.running_program import SandboxError
from reward.verifiers.base import BadReferenceError, Item, shown
from reward.verifiers.graders import formulas
from reward.verifiers.graders.outcome import GraderError, Outcome
from reward.verifiers.graders.shapes import (
    GraderParams,
    Leaf,
    Multi,
    PythonGrader,
    StringCheck,
    TextSimilarity,
    leaves,
    templates_of,
)
from reward.verifiers.graders.similarity import similarity
from reward.verifiers.graders.templates import (
    MissingError,
    TemplatePlace,
    parsed,
    rendered,
    value_of,
)
from services.contracts.scores import MOST_REWARD
from services.contracts.thoughts import answer_of

RunPython = Callable[[str, dict[str, Any], Limits], float]
"""Runs a Python grader: its source, `item` and `sample`, its limits."""
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def names_of(item: Item) -> dict[str, Any]:
    """Return `item` and `sample` as templates and Python graders see them. Thoughts are no part of
    the answer."""
    text = answer_of(item.completion, item.prefill) or ""
    text = text if text == item.completion else text.strip()
    tools = _tool_calls(text)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if tools:
        message["tool_calls"] = tools
    reason = "length" if item.truncated else "tool_calls" if tools else "stop"
    choice = {"index": 0, "finish_reason": reason, "message": message}
    sample = {"output_text": text, "output_tools": tools, "choices": [choice]}
    return {"item": _row(item), "sample": sample | _output_json(text)}


def _row(item: Item) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if item.prompt:
        row["prompt"] = item.prompt
        if isinstance(item.prompt, list):
            row["messages"] = item.prompt
    if item.answer is not None:
        row["answer"] = item.answer
    return row | item.columns


def _output_json(text: str) -> dict[str, Any]:
    """Return `output_json`, or nothing for text that is no JSON."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        return {"output_json": json.loads(text, parse_constant=refuse)}
    except (ValueError, RecursionError):
        return {}


def _tool_calls(text: str) -> list[dict[str, Any]]:
    """Return the tool calls in a text, in the form of chat completions."""
    calls: list[dict[str, Any]] = []
    for part in text.split(_OPEN)[1:]:
        inner, closed, _ = part.partition(_CLOSE)
        try:
            call = json.loads(inner) if closed else None
        except (ValueError, RecursionError):
            continue
        if isinstance(call, dict) and isinstance(call.get("name"), str):
            arguments = call.get("arguments", {})
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            function = {"name": call["name"], "arguments": written}
            calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
    return calls


def check_row(params: GraderParams, item: Item) -> None:
    """Raise BadReferenceError if a template names a field that the row lacks."""
    names = {"item": _row(item)}
    for path, leaf in leaves(params.grader):
        for field, template in templates_of(leaf):
            for place in parsed(template):
                # Each row has a prompt, but a check gets rows without it.
                if (
                    isinstance(place, TemplatePlace)
                    and place.root == "item"
                    and place.steps[0] not in ("prompt", "messages")
                ):
                    try:
                        value_of(place, names)
                    except MissingError as error:
                        raise BadReferenceError(f"{called(leaf, path)}, {field}: {error}") from None


def called(leaf: Leaf, path: str) -> str:
    """Return how errors call a grader."""
    return f"grader {shown(path or leaf.name)}"


def filled(leaf: Leaf, template: str, names: Mapping[str, Any]) -> str:
    """Fill in a template. Raises GraderError, or MissingError if the answer is to blame."""
    try:
        return rendered(template, names)
    except MissingError as error:
        if error.is_answer:
            raise
        raise GraderError("invalid_variable_error", str(error)) from None


class GraderEvaluation:
    """Scores one grader for one answer."""

    def __init__(
        self, names: dict[str, Any], given: Mapping[str, float], limits: Limits, run: RunPython
    ) -> None:
        self.outcome = Outcome()
        self._names, self._given = names, given
        self._limits, self._run = limits, run

    def of(self, grader: Any) -> Outcome:
        """Return the outcome of a grader."""
        try:
            score = self._score(grader, "")
            if abs(score) > MOST_REWARD:
                raise GraderError(
                    "other_error", f"a reward of {score:g}; training takes {MOST_REWARD:g}"
                )
        except GraderError as error:
            self._fail(error, str(error))
        else:
            self.outcome.score = score
            self.outcome.detail = self.outcome.detail or self._summary(grader, score)
        return self.outcome

    def _fail(self, error: GraderError, detail: str) -> None:
        self.outcome.detail = detail
        self.outcome.flags[error.flag] = detail
        self.outcome.kind, self.outcome.is_late = error.kind, error.is_late

    def _score(self, grader: Any, path: str) -> float:
        if isinstance(grader, Multi):
            scores = {
                name: self._score(inner, f"{path}.{name}" if path else name)
                for name, inner in grader.graders.items()
            }
            try:
                score = formulas.value_of(grader.calculate_output, scores)
            except formulas.FormulaError as error:
                message = f"calculate_output of {shown(grader.name)}: {error}"
                raise GraderError("formula_parse_error", message) from None
        else:
            score = self._leaf_score(grader, path)
        if path:
            self.outcome.scores[path] = score
        return score

    def _leaf_score(self, leaf: Leaf, path: str) -> float:
        if path in self._given:
            return self._given[path]
        try:
            return self._computed(leaf)
        except MissingError as error:
            self.outcome.flags["sample_parse_error"] = f"{called(leaf, path)}: {error}"
            self.outcome.detail = self.outcome.flags["sample_parse_error"]
            return 0.0
        except GraderError as error:
            message = f"{called(leaf, path)}: {error}"
            raise GraderError(error.flag, message, error.kind, error.is_late) from None

    def _computed(self, leaf: Leaf) -> float:
        match leaf:
            case StringCheck():
                text = filled(leaf, leaf.input, self._names)
                return float(matches(leaf.operation, text, self._filled_reference(leaf)))
            case TextSimilarity():
                text = filled(leaf, leaf.input, self._names)
                return similarity(leaf.evaluation_metric, text, self._filled_reference(leaf))
            case PythonGrader():
                try:
                    return self._run(leaf.source, self._names, self._limits)
                except SandboxError as error:
                    raise GraderError("python_grader_server_error", str(error), "sandbox") from None
        raise GraderError("other_error", "its model was not asked")

    def _filled_reference(self, leaf: StringCheck | TextSimilarity) -> str:
        return filled(leaf, leaf.reference, self._names)

    def _summary(self, grader: Any, score: float) -> str:
        if isinstance(grader, Multi):
            parts = ", ".join(f"{name} {value:g}" for name, value in self.outcome.scores.items())
            return f"{grader.calculate_output[:200]} = {score:g} with {parts}"
        if isinstance(grader, StringCheck):
            text = shown(filled(grader, grader.input, self._names))
            return f"{text} {grader.operation} {shown(self._filled_reference(grader))}"
        return f"{grader.type} {shown(grader.name)}: {score:g}"


def matches(operation: str, text: str, reference: str) -> bool:
    """Compare two texts as a `string_check` does."""
    match operation:
        case "eq":
            return text == reference
        case "ne":
            return text != reference
        case "like":
            return reference in text
        case _:
            return reference.casefold() in text.casefold()
