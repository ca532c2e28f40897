"""The windows before, during and after an evaluation."""

from typing import Any

from bench.runs.evaluation import BESIDE, windows
from bench.runs.workload import BATCH


def steps(count: int) -> list[dict[str, Any]]:
    """Step n ends at n seconds, and has n tokens an answer."""
    return [{"step": n, "time": float(n), "response/tokens_mean": n} for n in range(1, count + 1)]


def test_the_step_in_which_an_evaluation_ends_belongs_to_it() -> None:
    # It ends in the middle of step 10.
    before, during, after = windows(steps(13), 8, 9.5) or (0.0, 0.0, 0.0)
    assert before == BATCH * (6 + 7 + 8) / 3
    assert during == BATCH * (9 + 10) / 2
    assert after == BATCH * (11 + 12 + 13) / 3


def test_an_evaluation_without_enough_steps_around_it_has_no_figures() -> None:
    assert windows(steps(12), 8, 9.5) is None
    assert windows(steps(20), BESIDE, 4.0) is None
