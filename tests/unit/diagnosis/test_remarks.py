"""The other parts of a diagnosis: remarks, and the holder of a lock."""

from services.contracts.records import HeldTask
from services.contracts.why import (
    Situation,
)
from services.diagnosis.diagnose import diagnose
from services.store.insight import lock_token, parse_hold
from tests.unit.diagnosis.situations import LEARNER, NOW, event, run, step, worker


def test_remarks_are_the_newest_warnings_and_errors_of_run_and_workers() -> None:
    troubled = worker(error="scoring waits", oldest=HeldTask(
        task=1, stage="scoring", leased_seconds=9, stage_seconds=4
    ))  # fmt: skip
    why = diagnose(
        Situation(
            NOW, run(), learner=LEARNER, workers=[troubled],
            events=[
                event("warning", 300, message="every reward of step 2 is 0"),
                event("state", 200, state="paused", reason="the disk is full"),
                step(2),
            ],
        )
    )  # fmt: skip
    assert [(r.seconds_ago, r.source, r.text) for r in why.remarks] == [
        (1.0, "w", "scoring waits"),
        (200.0, "run", "paused: the disk is full"),
        (300.0, "run", "every reward of step 2 is 0"),
    ]
    assert (why.last_step_seconds_ago, why.heard) == (2.0, {"w": 1.0})


def test_the_end_of_a_run_is_the_verdict_and_no_remark() -> None:
    ended = run(state="failed", reason="no disk")
    states = (("cancelling", "after its present step"), ("failed", "no disk"))
    events = [event("state", 2, state=state, reason=reason) for state, reason in states]
    why = diagnose(Situation(NOW, ended, events=events))
    assert (why.words, why.remarks) == ("it failed: no disk", [])


def test_remarks_leave_out_the_errors_of_workers_of_another_run() -> None:
    workers = [
        worker("other", run="r2", error="r2 needs a GPU"),
        worker("idle", run=None, error="Redis: away"),
    ]
    remarks = diagnose(Situation(NOW, run(), workers=workers)).remarks
    assert [remark.source for remark in remarks] == ["idle"]


def test_a_batch_without_any_reward_is_remarked_on_as_long_as_it_lasts() -> None:
    """The alarm is an event of an earlier step, which may be long ago. It blames the verifier only
    if the answers were whole."""

    def remarks(all_zero: float, truncated: float = 0.25) -> list[str]:
        events = [
            step(4, **{"step": 6, "reward/all_zero": 1.0}),
            step(2, **{"reward/all_zero": all_zero, "response/truncated": truncated}),
        ]
        return [remark.text for remark in diagnose(Situation(NOW, run(), events=events)).remarks]

    (text,) = remarks(1.0)
    assert text.startswith("every reward of step 7 is 0: check the verifier")
    for truncated, which in ((1.0, "all its answers"), (0.75, "75% of its answers")):
        (text,) = remarks(1.0, truncated)
        assert text.startswith(f"every reward of step 7 is 0: {which} were cut off before they end")
    assert remarks(0.0) == []


def test_the_warning_of_a_step_without_any_reward_is_shown_once() -> None:
    events = [step(2, **{"reward/all_zero": 1.0})]
    (remark,) = diagnose(Situation(NOW, run(), events=events)).remarks
    events.append(event("warning", 1, message=remark.text))

    assert diagnose(Situation(NOW, run(), events=events)).remarks == [remark]


def test_a_lock_names_its_holder_and_since_when() -> None:
    hold = parse_hold(lock_token("box", 7, NOW - 60), seconds_left=8.5, now=NOW)
    assert (hold.host, hold.pid, hold.held_seconds, hold.prolonged_seconds_ago) == (
        *("box", 7, 60.0),
        1.5,
    )
    foreign = parse_hold("elsewhere", 10.0, NOW)
    assert (foreign.host, foreign.pid, foreign.held_seconds) == ("elsewhere", None, None)
