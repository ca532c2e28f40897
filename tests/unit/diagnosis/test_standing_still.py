"""Diagnoses of runs without progress: one situation, one sentence."""

from services.contracts.why import (
    Flow,
    OldestTask,
    OpenEvaluation,
)
from tests.unit.diagnosis.situations import event, run, said, step, worker


def test_a_missing_worker_is_the_first_cause() -> None:
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


def test_a_learner_waits_for_groups_that_are_being_sampled() -> None:
    busy = worker(groups_in_flight=3, tokens_per_second=1250.0)
    cause, words = said(workers=[busy], flow=Flow(held=3), events=[step(40)])
    assert cause == "rollout"
    assert words.endswith("3 groups are being sampled, at 1,250 tokens/s in all")


def test_a_task_of_a_silent_worker_is_leased_again_when_its_lease_lapses() -> None:
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
    # The same for an evaluation of an older version.
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
