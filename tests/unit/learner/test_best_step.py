"""The best step of a supervised run, and the checkpoint of that step."""

import math
from dataclasses import replace

import pytest

from learner.assembly import gone_on
from learner.coordinate.sft_coordinator import describe_best_step
from learner.sft import judged
from learner.state import SupervisedProgress, TrainingProgress
from services.contracts.records import RunRecord, RunState
from services.models.path import run_with_step

RUN = TrainingProgress(
    "r", 10, 10, [], "m", supervised=SupervisedProgress([9], best_step=4, best_loss=0.5)
)


@pytest.mark.parametrize(
    ("best", "end", "said"),
    [
        (None, 10, None),
        (10, 10, None),
        (4, 10, "lowest at step 4 (0.5): run:r@4 starts from there"),
        (0, 10, "training has not improved the model"),
        (0, 20, "the run ends early, and training has not improved the model"),
    ],
)
def test_a_run_that_was_best_before_its_first_step_says_that_nothing_improved(
    best: int | None, end: int, said: str | None
) -> None:
    assert RUN.supervised is not None
    message = describe_best_step(
        replace(RUN, supervised=replace(RUN.supervised, best_step=best)), end
    )
    assert (message is None) == (said is None)
    assert (said or "") in (message or "")


def test_the_fewest_bits_per_byte_are_called_so() -> None:
    said = "the bits per byte were lowest at step 4 (0.5): run:r@4 starts from there"
    assert describe_best_step(RUN, 10, "bits_per_byte") == said


def record(id: str, committed: int, before: str | None = None) -> RunRecord:
    return RunRecord(
        id=id,
        name=id,
        pool="default",
        kind="sft",
        state=RunState.SUCCEEDED,
        created=0.0,
        committed_step=committed,
        resume_from=before,
        config={},
    )


@pytest.mark.parametrize(
    ("step", "run"), [(None, "c"), (30, "c"), (21, "c"), (20, "b"), (11, "b"), (10, "a"), (3, "a")]
)
async def test_a_step_from_before_a_run_was_resumed_is_found_in_the_run_that_trained_it(
    step: int | None, run: str
) -> None:
    runs = {"a": record("a", 10), "b": record("b", 20, "a"), "c": record("c", 30, "b")}

    async def get(id: str) -> RunRecord | None:
        return runs.get(id)

    assert (await run_with_step(runs["c"], step, get)).id == run
    del runs["a"]
    assert (await run_with_step(runs["b"], 3, get)).id == "b"


async def test_a_run_that_resumed_an_earlier_step_has_the_later_ones_itself() -> None:
    before = record("a", 40)
    run = record("b", 45, "a").model_copy(update={"resume_step": 20})

    async def get(id: str) -> RunRecord | None:
        return before

    assert [(await run_with_step(run, step, get)).id for step in (20, 30, 40)] == ["a", "b", "b"]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_nan_loss_is_never_the_best(broken: float) -> None:
    def after(*losses: float) -> SupervisedProgress:
        progress = replace(RUN, step=0, supervised=SupervisedProgress([9]))
        for loss in losses:
            progress = replace(judged(progress, loss), step=progress.step + 1)
        assert progress.supervised is not None
        return progress.supervised

    nothing = after(broken)
    assert (nothing.best_step, nothing.best_loss, nothing.since_best) == (None, None, 1)
    found = after(broken, 2.0, 1.0, broken, 1.5)
    assert (found.best_step, found.best_loss, found.since_best) == (2, 1.0, 2)


def test_a_run_that_resumes_one_whose_patience_ended_has_patience_again() -> None:
    assert RUN.supervised is not None
    impatient = replace(RUN, supervised=replace(RUN.supervised, since_best=3))
    assert gone_on(impatient, "r") == impatient
    assert gone_on(impatient, "other") == replace(RUN, run="other")
