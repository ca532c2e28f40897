"""The bench of overlap, for a few steps: real processes, simulated GPUs."""

from bench.runs.overlap import run


def test_steps_are_measured_with_generation_and_training_at_the_same_time() -> None:
    results = run([1], steps=1)

    found = results["eta"]["1"]
    assert (found["warmup"], found["steps"]) == (4, 1)
    assert 0 < found["share"] < 1.1
    # The learner waits for answers that would be too stale for the next batch.
    assert (found["requeued"], found["dropped"]) == (0, 0)
    assert found["staleness"] <= 1
    assert found["tokens_per_answer"] > 20
