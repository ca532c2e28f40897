"""Diagnoses of runs that wait, start or are over: one situation, one sentence."""

from services.contracts.records import RunState
from tests.unit.diagnosis.situations import event, run, said


def test_a_queued_run_waits_for_the_one_that_its_pool_works_on() -> None:
    other = run(id="r0", name="first", step=3)
    cause, words = said(
        run=run(state=RunState.QUEUED), queued=True, active=other, ahead=["r8", "r9"]
    )
    assert cause == "queued"
    assert (
        words
        == "it waits for first (r0), which is running at step 3 of 20, and 2 more in the queue"
    )


def test_a_queued_run_says_how_long_the_run_before_it_still_takes() -> None:
    other = run(id="r0", name="first", step=8, step_seconds=200.0)
    _, words = said(run=run(state=RunState.QUEUED), queued=True, active=other)
    assert words == (
        "it waits for first (r0), which is running at step 8 of 20 and has about 40 min left"
    )


def test_a_queued_run_without_a_learner_says_so_first() -> None:
    cause, words = said(run=run(state=RunState.QUEUED), queued=True, learner=None)
    assert (cause, words) == (
        "no_learner",
        "it is queued, and no learner serves pool 'default'",
    )


def test_a_queued_run_that_is_next_waits_for_nobody() -> None:
    cause, words = said(run=run(state=RunState.QUEUED), queued=True)
    assert (cause, words) == ("queued", "it is next: the learner takes it up within a second")


def test_a_run_that_stands_in_no_queue_has_to_be_submitted_again() -> None:
    _, words = said(run=run(state=RunState.QUEUED))
    assert words.startswith("it stands in no queue: the gateway died")


def test_a_starting_run_says_for_how_long() -> None:
    cause, words = said(
        run=run(state=RunState.STARTING), events=[event("state", 12, state="starting", reason="")]
    )
    assert cause == "starting"
    assert words.endswith("publishes the first weights, for 12 s now")


def test_a_paused_run_has_a_reason() -> None:
    assert said(run=run(state=RunState.PAUSED, reason="the disk is full")) == (
        "paused",
        "it is paused: the disk is full",
    )
    asked = {"reason": "on request of ann", "paused_by": "ann"}
    assert said(run=run(state=RunState.PAUSED, **asked)) == (
        "paused",
        "it is paused: on request of ann. `headrace resume r1` lets it go on",
    )
    assert said(run=run(paused_by="ann")) == (
        "paused",
        "it pauses after its present step, on request of ann; workers finish their groups",
    )


def test_a_run_that_is_over_says_why() -> None:
    failed = run(state=RunState.FAILED, reason="there is no dataset 'd'")
    assert said(run=failed, learner=None, workers=[]) == (
        "over",
        "it failed: there is no dataset 'd'",
    )
    assert said(run=run(state=RunState.SUCCEEDED)) == ("over", "it succeeded")


def test_a_running_run_without_a_learner_goes_on_when_there_is_one() -> None:
    cause, words = said(learner=None)
    assert cause == "no_learner"
    assert words.startswith("no learner serves pool 'default'")


def test_a_run_that_was_asked_to_end_ends_after_its_step() -> None:
    assert said(run=run(state=RunState.CANCELLING))[0] == "cancelling"
