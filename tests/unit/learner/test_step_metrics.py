"""Staleness, waiting and the bottleneck, by hand."""

import pytest

from learner.metrics.step_metrics import (
    admission_wait,
    bottleneck,
    finite,
    staleness_metrics,
    time_metrics,
)
from services.contracts.records import WorkerRecord


def worker(id: str, waited: float, evaluation_only: bool = False) -> WorkerRecord:
    return WorkerRecord(
        id=id,
        pool="p",
        host="h",
        pid=1,
        state="generating",
        admission_wait_seconds=waited,
        evaluation_only=evaluation_only,
    )


def test_staleness_has_mean_maximum_and_histogram() -> None:
    assert staleness_metrics([0, 1, 1, 2]) == {
        "staleness/mean": 1.0,
        "staleness/max": 2.0,
        "staleness/count_0": 1.0,
        "staleness/count_1": 2.0,
        "staleness/count_2": 1.0,
    }


def test_workers_wait_counts_from_the_last_report() -> None:
    wait, now = admission_wait({"a": 10.0, "gone": 5.0}, [worker("a", 13.0), worker("new", 99.0)])
    assert wait == 3.0
    assert now == {"a": 13.0, "new": 99.0}


def test_a_worker_that_only_evaluates_waits_for_no_admission() -> None:
    workers = [worker("a", 13.0), worker("evaluates", 0.0, evaluation_only=True)]
    assert admission_wait({"a": 10.0, "evaluates": 0.0}, workers) == (3.0, {"a": 13.0})


def test_a_worker_that_started_again_has_not_waited_yet() -> None:
    assert admission_wait({"a": 10.0}, [worker("a", 1.0)])[0] == 0.0


@pytest.mark.parametrize(
    ("learner_waits", "workers_wait", "name"),
    [(3.0, 1.0, "rollout"), (1.0, 3.0, "learner"), (0.4, 0.3, "none")],
)
def test_the_bottleneck_is_what_the_other_side_waits_for(
    learner_waits: float, workers_wait: float, name: str
) -> None:
    assert bottleneck(10.0, learner_waits, workers_wait) == name


def test_throughput_counts_the_whole_step_and_the_learner_alone() -> None:
    spent = {"waiting": 1.0, "training": 2.0, "publishing": 0.5, "checkpointing": 0.5}
    metrics = time_metrics(spent, samples=8, tokens=100, prompt_tokens=60)
    assert metrics["throughput/samples_per_second"] == 2.0
    assert metrics["throughput/tokens_per_second"] == 25.0
    assert metrics["throughput/learner_tokens_per_second"] == 80.0


def test_a_nan_metric_becomes_null() -> None:
    row = {"step": 3, "train/grad_norm": float("nan"), "train/loss": float("-inf"), "reward": 0.5}

    assert finite(row) == {"step": 3, "train/grad_norm": None, "train/loss": None, "reward": 0.5}
