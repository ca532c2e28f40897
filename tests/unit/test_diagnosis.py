"""Why a run is slow or stuck, by value: one situation, one cause, one sentence."""

from typing import Any

import pytest

from services.contracts.events import Event
from services.contracts.records import HeldTask, HostLoad, RunRecord, RunState, WorkerRecord
from services.contracts.why import (
    Flow,
    LearnerHold,
    LiveTraffic,
    OldestTask,
    OpenEvaluation,
    Situation,
)
from services.diagnosis.diagnose import diagnose
from services.diagnosis.workers import GIB
from services.store.insight import lock_token, parse_hold

NOW = 1_000.0
LEARNER = LearnerHold(host="box", pid=7, held_seconds=60, prolonged_seconds_ago=1)


def run(**fields: Any) -> RunRecord:
    config = {"algorithm": {"prompts_per_step": 4}, "rollout": {"stragglers": "wait"}}
    given: dict[str, Any] = {
        "id": "r1", "name": "mine", "pool": "default", "kind": "rl", "state": RunState.RUNNING,
        "config": config, "created": 0.0, "step": 7, "max_steps": 20, "version": 7,
    }  # fmt: skip
    return RunRecord(**given | fields)


def worker(id: str = "w", heard: float = 1.0, **fields: Any) -> WorkerRecord:
    given: dict[str, Any] = {
        "id": id, "pool": "default", "host": "h", "pid": 1, "state": "generating", "run": "r1",
        "version": 7,
    }  # fmt: skip
    return WorkerRecord(**given | fields).at(NOW, NOW - heard)


def event(kind: Any, ago: float, **data: Any) -> Event:
    return Event(id=f"{int((NOW - ago) * 1000)}-0", time=0.0, kind=kind, data=data)


def step(ago: float, **data: Any) -> Event:
    return event("step", ago, **{"step": 7, "time/step": 4.0, "bottleneck": "none"} | data)


def said(**fields: Any) -> tuple[str, str]:
    given: dict[str, Any] = {"time": NOW, "run": run(), "learner": LEARNER, "workers": [worker()]}
    why = diagnose(Situation(**given | fields))
    return why.cause, why.words


# --- before and after it runs -------------------------------------------------------------------


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


# --- while steps go on: what the last one measured ------------------------------------------------


def test_the_last_step_names_the_side_that_waited() -> None:
    waiting = {"bottleneck": "rollout", "time/waiting_for_groups": 3.0}
    assert said(events=[step(2, **waiting)])[1].startswith(
        "the learner waits for groups: step 7 took 4.0 s, 3.0 s of it without enough of them"
    )
    admission = {"bottleneck": "learner", "time/workers_waiting_for_admission": 1.5}
    cause, words = said(events=[step(2, **admission)])
    assert cause == "learner"
    assert "workers waited 1.5 s for admission" in words
    assert said(events=[step(2)]) == (
        "none",
        "nothing holds it up: step 7 took 4.0 s, and neither side waited for the other",
    )


def load(idle_cores: float, free_gib: float, worker_gib: float = 7) -> HostLoad:
    return HostLoad(
        cores=4,
        idle_cores=idle_cores,
        free_memory=int(free_gib * GIB),
        memory=int(worker_gib * GIB),
    )


@pytest.mark.parametrize(
    ("hosts", "advice"),
    [
        (
            {"a": load(0.1, 40)},
            "No host has room for another worker (a: 0.1 of 4 cores idle, 40.0 GiB free, and a "
            "worker uses 7.0): a worker on another machine helps, or a higher "
            "rollout.max_staleness",
        ),
        (
            {"a": load(3, 4)},
            "No host has room for another worker (a: 3.0 of 4 cores idle, 4.0 GiB free, and a "
            "worker uses 7.0): a worker on another machine helps, or a higher "
            "rollout.max_staleness",
        ),
        (
            {"a": load(0, 1), "b": load(2, 8)},
            "Another worker helps, there is room for it (b: 2.0 of 4 cores idle, 8.0 GiB free, and "
            "a worker uses 7.0); or a higher rollout.max_staleness",
        ),
        ({"a": None}, "More workers help, or a higher rollout.max_staleness"),
    ],
    ids=["no idle core", "no memory", "room on one of two hosts", "GPUs"],
)
def test_more_workers_are_recommended_only_where_cores_and_memory_are_free(
    hosts: dict[str, HostLoad | None], advice: str
) -> None:
    workers = [worker(host, host=host, host_load=load) for host, load in hosts.items()]
    _, words = said(workers=workers, events=[step(2, bottleneck="rollout")])
    assert words.endswith(f"without enough of them. {advice}")


def test_a_long_step_is_not_a_standstill_before_three_of_its_like() -> None:
    assert said(events=[step(59, **{"time/step": 20.0})])[0] == "none"
    assert said(events=[step(61, **{"time/step": 20.0})])[0] == "rollout"


def test_groups_that_were_filtered_are_named_where_the_learner_waits() -> None:
    waiting = {"bottleneck": "rollout", "time/waiting_for_groups": 3.0}
    words = said(events=[step(2, **waiting, **{"reward/groups_filtered": 0.625})])[1]
    assert "3.0 s of it without enough of them, 62% of all groups were filtered. More" in words
    words = said(workers=[worker(state="generating")], events=[step(40)], flow=Flow(filtered=9))[1]
    assert words.startswith(
        "the learner waits for groups (0 of 4 are there, 9 were filtered for equal "
        "rewards), for 40 s now: "
    )


# --- standing still: who owes the learner its groups ----------------------------------------------


def test_without_a_live_worker_that_is_said_at_once() -> None:
    assert said(workers=[], events=[step(1)]) == (
        "no_worker",
        "the learner waits for groups: no worker is alive",
    )
    assert said(workers=[worker(heard=12)], events=[step(1)]) == (
        "no_worker",
        "the learner waits for groups: no worker is alive (w was heard of 12 s ago)",
    )


def test_a_worker_that_can_sample_is_needed_before_the_last_step_is_believed() -> None:
    admission = step(2, bottleneck="learner", **{"time/workers_waiting_for_admission": 1.5})
    killed, successor = worker("a", heard=8), worker("b", state="starting", run=None)
    cause, words = said(workers=[killed, successor], events=[admission])
    assert (cause, words) == (
        "vllm",
        "the learner waits for groups: no worker has its vLLM ready yet (b is starting, a was "
        "heard of 8 s ago)",
    )
    left = Flow(waiting=4)
    _, words = said(workers=[killed, successor], events=[admission], flow=left)
    assert words.startswith("nothing is sampled: no worker has its vLLM ready yet (b is starting")
    cause, words = said(workers=[killed], events=[admission], flow=left)
    assert (cause, words) == (
        "no_worker",
        "nothing is sampled: no worker is alive (a was heard of 8 s ago)",
    )
    broken = worker("b", state="unhealthy", error="vLLM ended")
    assert said(workers=[killed, broken], events=[admission])[1].endswith("b: vLLM ended")
    assert said(workers=[killed, worker("b")], events=[admission])[0] == "learner"
    # The last step needs no more groups.
    assert said(run=run(step=20), workers=[killed], events=[admission])[0] == "learner"


def test_workers_that_cannot_start_vllm_show_its_error() -> None:
    broken = worker(state="unhealthy", error="vLLM ended with exit code 1")
    cause, words = said(workers=[broken], events=[step(40)])
    assert cause == "vllm"
    assert words == (
        "the learner waits for groups (0 of 4 are there), for 40 s now: no worker is healthy. "
        "w: vLLM ended with exit code 1"
    )


def test_a_drained_worker_shows_why_it_is_drained() -> None:
    drained = worker(state="drained", error="vLLM does not serve version a:7")
    cause, words = said(workers=[drained], events=[step(40)])
    assert cause == "vllm"
    assert words.endswith("no worker is healthy. w: vLLM does not serve version a:7")


def test_a_worker_whose_vllm_starts_is_waited_for() -> None:
    cause, words = said(workers=[worker(state="starting", run="r1")], events=[step(40)])
    assert cause == "vllm"
    assert words.endswith("no worker has its vLLM ready yet (w is starting)")


def test_a_worker_on_old_weights_cannot_be_admitted() -> None:
    old = worker(state="updating", version=5, error="checksum")
    cause, words = said(workers=[old], events=[step(40)])
    assert cause == "weights"
    assert words.endswith("w has version 5 and needs 7: checksum")


def test_groups_that_wait_for_scores_point_at_the_reward_service() -> None:
    held = worker(groups_in_flight=4, scoring=3)
    cause, words = said(workers=[held], flow=Flow(held=4, waiting=1), events=[step(40)])
    assert cause == "reward"
    assert "(1 of 4 are there)" in words
    assert "3 of 4 groups in flight wait for their scores" in words


def test_groups_that_are_being_sampled_are_what_it_waits_for() -> None:
    busy = worker(groups_in_flight=3, tokens_per_second=1250.0)
    cause, words = said(workers=[busy], flow=Flow(held=3), events=[step(40)])
    assert cause == "rollout"
    assert words.endswith("3 groups are being sampled, at 1,250 tokens/s in all")


def test_a_task_of_a_silent_worker_goes_out_again_when_its_lease_lapses() -> None:
    oldest = OldestTask(task=28, place="generating", worker="dead", lease_seconds_left=21.4)
    _, words = said(
        workers=[worker(), worker("dead", heard=9)],
        flow=Flow(held=2), oldest=oldest, events=[step(40)],
    )  # fmt: skip
    assert words.endswith("task 28 is held by dead, which is silent; its lease lapses in 21 s")
    assert said(
        workers=[worker()],
        flow=Flow(held=2), oldest=oldest, events=[step(40)],
    )[1] == words  # fmt: skip


def test_a_planned_batch_waits_for_the_learner() -> None:
    cause, words = said(flow=Flow(planned=4), planned_step=8, events=[step(40)])
    assert (cause, words) == ("learner", "the learner trains step 8, for 40 s now")


def test_enough_groups_for_a_batch_wait_for_the_learner() -> None:
    cause, words = said(flow=Flow(waiting=4), events=[step(40)])
    assert cause == "learner"
    assert words.startswith("4 groups wait, enough for step 8")


def test_a_learner_with_enough_groups_waits_for_stragglers() -> None:
    flow = Flow(waiting=5, held=2)
    cause, words = said(flow=flow, events=[step(40)])
    assert cause == "rollout"
    assert words.startswith(
        "5 groups wait, enough for step 8, and the learner waits for others that would be too stale"
    )
    assert "2 groups are being sampled" in words
    cause, words = said(flow=flow, events=[step(40)], workers=[])
    assert cause == "no_worker"
    resampling = run(
        config={"algorithm": {"prompts_per_step": 4}, "rollout": {"stragglers": "resample"}}
    )
    assert said(run=resampling, flow=flow, events=[step(40)])[0] == "learner"


def test_the_last_step_of_an_earlier_start_says_nothing() -> None:
    starting = worker(state="starting")
    restarted = [step(9), event("state", 5, state="running")]
    cause, words = said(workers=[starting], flow=Flow(held=1), events=restarted)
    assert (cause, "no worker has its vLLM ready yet" in words) == ("vllm", True)
    assert said(flow=Flow(held=1), events=[*restarted, step(1)])[0] == "none"


def test_a_run_whose_workers_only_evaluate_has_nobody_to_sample_for_it() -> None:
    only = worker(evaluation_only=True, state="idle", version=5)
    cause, words = said(workers=[only], events=[step(40)])
    assert cause == "no_worker"
    assert "HEADRACE_EVALUATION_ONLY is set for w. Start one without it" in words
    # Nor is one that evaluates an older version behind.
    both = [only, worker("v", state="waiting_admission")]
    assert said(workers=both, events=[step(40)])[0] == "rollout"


def test_an_open_evaluation_comes_before_training() -> None:
    one = OpenEvaluation(
        id="000007-test", name="test", step=7, version="aaa:7", rows=64, answered=10, held=16,
        workers=["w"], waiting=0,
    )  # fmt: skip
    assert said(evaluation=one, events=[step(40)]) == (
        "evaluation",
        "the evaluation of step 7 on test is open: 10 of 64 rows are answered by version aaa:7, 16 "
        "are being worked on; training gets newer groups after it",
    )
    # With another worker, training does not wait for it.
    elsewhere = one.model_copy(update={"workers": ["v"]})
    assert said(evaluation=elsewhere, events=[step(40)])[0] != "evaluation"
    assert said(evaluation=one, workers=[], events=[step(40)])[0] == "no_worker"
    assert said(evaluation=one, workers=[worker(state="starting")], events=[step(40)]) == (
        "vllm",
        "the evaluation of step 7 on test is open: 10 of 64 rows are answered, and no worker has "
        "its vLLM ready yet "
        "(w is starting)",
    )


def test_supervised_training_has_no_workers_to_wait_for() -> None:
    mid = run(kind="sft", config={})
    assert said(run=mid, workers=[], events=[event("progress", 3)]) == (
        "none",
        "the learner trains: step 7 of 20",
    )
    assert said(run=mid, workers=[], events=[event("progress", 90)])[0] == "learner"


# --- what goes with it --------------------------------------------------------------------------


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


def test_a_batch_without_any_reward_is_remarked_on_as_long_as_it_lasts() -> None:
    """The alarm is an event of the step where it began, which may be long ago."""

    def remarks(all_zero: float) -> list[str]:
        events = [
            step(4, **{"step": 6, "reward/all_zero": 1.0}),
            step(2, **{"reward/all_zero": all_zero}),
        ]
        return [remark.text for remark in diagnose(Situation(NOW, run(), events=events)).remarks]

    (text,) = remarks(1.0)
    assert text.startswith("every reward of step 7 is 0: check the verifier")
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


def test_a_run_on_live_sessions_waits_for_its_users() -> None:
    config = {
        "algorithm": {"prompts_per_step": 4},
        "rollout": {"stragglers": "wait", "max_staleness": 8},
        "data": {"source": "sessions", "reward_deadline": 60.0},
    }
    live = run(config=config)
    nobody = LiveTraffic(open=0, waiting=0, ready=0, opened=0, discarded=0)
    some = LiveTraffic(open=3, waiting=12, ready=1, opened=40, discarded=5)
    cause, words = said(run=live, traffic=nobody)
    assert (cause, "no application has opened a session" in words) == ("rollout", True)
    expected = (
        "3 sessions are open, 12 have ended and wait for a reward, 1 are ready; 5 of 40 were "
        "discarded. A reward may come 60 s after a session's end (data.reward_deadline), and is of "
        "use while no more than 8 steps are trained"
    )
    assert expected in said(run=live, traffic=some)[1]
    # Another worker would not help.
    slow = step(1.0, **{"bottleneck": "rollout", "time/waiting_for_groups": 3.0})
    cause, words = said(run=live, traffic=some, events=[slow])
    assert (cause, expected in words, "orker" in words) == ("rollout", True, False)
    stale = worker(version=6)
    assert said(run=live, traffic=some, workers=[stale])[0] == "weights"


def test_a_run_of_agents_waits_for_them_and_not_for_workers() -> None:
    config = {
        "algorithm": {"prompts_per_step": 4},
        "rollout": {"stragglers": "wait", "episode": {"type": "sessions", "idle_seconds": 300.0}},
        "data": {"source": "dataset"},
    }
    played = run(config=config)
    idle = worker(state="idle")
    cause, words = said(run=played, workers=[idle], events=[step(40)])
    assert cause == "rollout"
    assert words.endswith(
        "no agent plays: `headrace agents r1 -- COMMAND` does, or any program that leases groups "
        "(docs/agents.md)"
    )
    oldest = OldestTask(task=28, place="generating", worker="agents", lease_seconds_left=280.2)
    holding: dict[str, Any] = {"flow": Flow(held=3), "oldest": oldest, "events": [step(40)]}
    _, words = said(run=played, workers=[idle], **holding)
    assert words.endswith(
        "agents have 3 groups. One is done when each of its sessions has ended (POST "
        "/v1/sessions/SID/end); that of task 28 is lost in 280 s unless a call comes "
        "(rollout.episode.idle_seconds)"
    )
    # What workers owe comes first.
    assert (
        said(run=played, workers=[worker(groups_in_flight=3, scoring=3)], **holding)[0] == "reward"
    )
    assert said(run=played, workers=[worker(version=6)], events=[step(40)])[0] == "weights"
    slow = step(1.0, **{"bottleneck": "rollout", "time/waiting_for_groups": 3.0})
    words = said(run=played, workers=[idle], events=[slow])[1]
    assert "more of them at once (`headrace agents --parallel`)" in words
    assert "worker" not in words
