"""The phase of a run in a few words."""

from typing import Any

import pytest

from services.contracts.records import RunState, RunSummary, WorkerRecord
from services.diagnosis.phase import phase, seconds_left
from tests.unit.diagnosis.situations import run as full_run
from tests.unit.diagnosis.situations import said, worker


def a_run(state: str, **fields: Any) -> RunSummary:
    values = {"kind": "rl", "step": 0, "max_steps": 200} | fields
    return RunSummary(id="r", name="r", pool="p", created=0.0, state=RunState(state), **values)


def a_worker(state: str, **fields: Any) -> WorkerRecord:
    values = {"run": "r"} | fields
    return WorkerRecord(id=f"w-{state}", pool="p", host="h", pid=1, state=state, **values)


STARTS = a_worker("starting", starting_seconds=40.2, usual_start_seconds=109.8)
FIRST_START = a_worker("starting", starting_seconds=12.0)


@pytest.mark.parametrize(
    ("run", "workers", "words"),
    [
        (a_run("queued", queue_position=1), [], "next in its queue"),
        (a_run("queued", queue_position=3), [], "waits, number 3 in its queue"),
        (a_run("starting"), [], "the learner loads the model"),
        (
            a_run("starting"),
            [STARTS],
            "the learner loads the model; vLLM starts, 40 of about 110 s",
        ),
        (a_run("starting", kind="sft"), [STARTS], "the learner loads the model"),
        (a_run("running"), [STARTS], "vLLM starts, 40 of about 110 s"),
        (a_run("running"), [FIRST_START, a_worker("silent")], "vLLM starts, 12 s so far"),
        (a_run("running"), [a_worker("starting")], "vLLM is about to start"),
        (a_run("running"), [], "waits for a worker"),
        (a_run("running"), [a_worker("unhealthy")], "waits for a worker"),
        (a_run("running"), [a_worker("idle", run=None)], "waits for a worker"),
        (a_run("running", step=11), [STARTS, a_worker("generating")], "trains step 12 of 200"),
        (a_run("running", step=11, kind="sft"), [], "trains step 12 of 200"),
        (a_run("running", step=11, max_steps=None, kind="sft"), [], "trains step 12"),
        (
            a_run("running", step=200),
            [a_worker("idle")],
            "ends: last evaluation and checkpoint",
        ),
        (a_run("running", max_steps=0), [a_worker("evaluating")], "evaluates"),
        (a_run("paused", step=3), [], "paused at step 3 of 200"),
        (
            a_run("paused", step=3, paused_by="ann"),
            [],
            "paused at step 3 of 200, on request of ann",
        ),
        (a_run("running", step=3, paused_by="ann"), [], "pauses after its present step"),
        (a_run("starting", paused_by="ann"), [], "the learner loads the model; then it pauses"),
        (a_run("cancelling", step=3), [], "ends after its present step"),
        (a_run("succeeded", step=200), [], "succeeded after 200 steps"),
        (a_run("succeeded", max_steps=0), [], "succeeded"),
        (a_run("failed", step=3), [], "failed at step 3 of 200"),
        (a_run("failed"), [], "failed before its first step"),
    ],
)
def test_the_phase_of_a_run_is_a_few_words(
    run: RunSummary, workers: list[WorkerRecord], words: str
) -> None:
    assert phase(run, workers) == words


@pytest.mark.parametrize(
    ("run", "seconds"),
    [
        (a_run("running", step=190, step_seconds=2.5), 25.0),
        (a_run("running", step=190), None),
        (a_run("running", step=190, step_seconds=2.5, max_steps=None), None),
        (a_run("paused", step=190, step_seconds=2.5), None),
    ],
)
def test_the_time_left_is_that_of_the_remaining_steps_of_a_run_that_trains(
    run: RunSummary, seconds: float | None
) -> None:
    assert seconds_left(run) == seconds


def test_why_says_how_far_the_start_of_vllm_is() -> None:
    starts: dict[str, Any] = {"starting_seconds": 40.2, "usual_start_seconds": 109.8}
    starting = worker(state="starting", run="r1", **starts)
    _, words = said(workers=[starting], events=[])
    assert words.endswith("no worker has its vLLM ready yet (w: vLLM starts, 40 of about 110 s)")
    _, words = said(run=full_run(state="starting"), workers=[starting], events=[])
    assert words.endswith("; meanwhile vLLM starts, 40 of about 110 s")
