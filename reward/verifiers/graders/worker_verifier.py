"""The part of the verifier `grader` that runs in a worker process, and the form of its verdict."""

from typing import Any

from pydantic import Field

from reward.sandbox.sandbox_host import SandboxOptions
from reward.verifiers.base import Item, Verdict, Verifier
from reward.verifiers.graders.evaluation import GraderEvaluation, names_of
from reward.verifiers.graders.outcome import FLAGS, Outcome
from reward.verifiers.graders.python_grader import PythonGraderSandbox, limits_of
from reward.verifiers.graders.shapes import GraderParams, Multi, StringCheck
from services.contracts.scores import ScoreStatus

NAME = "grader/worker"
"""No item can name it: the service does not list it."""
_FLAG = "!"
"""The beginning of a component that is an error. No grader's name has it."""


class WorkerParams(GraderParams):
    """A grader, and the scores of its parts that were asked for elsewhere."""

    given: dict[str, float] = Field({}, description="Scores by the names of the parts.")


class WorkerGrader(Verifier[WorkerParams]):
    """Computes a grader's score. Its verdict has an error's name as a component."""

    name = NAME
    description = "Computes graders."
    Params = WorkerParams

    def __init__(self, sandbox: SandboxOptions | None = None) -> None:
        self._sandbox = PythonGraderSandbox(sandbox or SandboxOptions())

    def score(self, item: Item, params: WorkerParams) -> Verdict:
        limits = limits_of(params.time_limit, params.timeout, params.memory_mb)
        evaluation = GraderEvaluation(names_of(item), params.given, limits, self._sandbox.grade)
        return packed(evaluation.of(params.grader))


def packed(outcome: Outcome) -> Verdict:
    """Return an outcome as a verdict of a worker."""
    components = dict(outcome.scores)
    for flag in outcome.flags:
        components[f"{_FLAG}{flag}"] = 1.0
    if outcome.kind:
        components[f"{_FLAG}kind/{outcome.kind}"] = 1.0
    if outcome.is_late:
        components[f"{_FLAG}late"] = 1.0
    status = ScoreStatus.ERROR if outcome.score is None else ScoreStatus.SCORED
    return Verdict(status, outcome.score, outcome.detail, components)


def unpacked(verdict: Verdict) -> Outcome:
    """Return the outcome in a verdict of a worker. The pool's own verdicts are errors."""
    marks = [name[1:] for name in verdict.components if name.startswith(_FLAG)]
    flags = {name: verdict.detail for name in marks if name in FLAGS}
    scores = {
        name: value for name, value in verdict.components.items() if not name.startswith(_FLAG)
    }
    late = verdict.status is ScoreStatus.TIMEOUT or "late" in marks
    is_scored = verdict.status is ScoreStatus.SCORED
    if not is_scored and not flags:
        flags = {"unresponsive_reward_error" if late else "other_error": verdict.detail}
    kinds = [mark.removeprefix("kind/") for mark in marks if mark.startswith("kind/")]
    return Outcome(
        verdict.reward if is_scored else None,
        verdict.detail,
        scores,
        flags,
        kinds[0] if kinds else "",
        late,
    )


def verdict_of(grader: Any, outcome: Outcome, on_timeout: float | None) -> Verdict:
    """Return an outcome as the verdict that a run gets."""
    if outcome.score is None:
        if outcome.is_late and on_timeout is not None:
            return Verdict(ScoreStatus.TIMEOUT, on_timeout, outcome.detail)
        return Verdict(ScoreStatus.ERROR, None, outcome.detail)
    status = ScoreStatus.SCORED
    if outcome.flags and not isinstance(grader, Multi):
        status = ScoreStatus.UNPARSABLE
    elif isinstance(grader, StringCheck) or grader.type == "label_model":
        status = ScoreStatus.CORRECT if outcome.score else ScoreStatus.WRONG
    return Verdict(status, outcome.score, outcome.detail, outcome.scores)
