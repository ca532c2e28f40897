"""When a reward model's process that ended is started again."""

from itertools import pairwise

from reward.models.process import FIRST_PAUSE, HEALTHY, LONGEST_PAUSE, next_pause


def test_pauses_between_restarts_double_up_to_the_longest() -> None:
    pauses = [next_pause(0.0, lived=0.1)]
    for _ in range(10):
        pauses.append(next_pause(pauses[-1], lived=0.1))

    assert pauses[0] == FIRST_PAUSE
    assert all(after == min(LONGEST_PAUSE, 2 * before) for before, after in pairwise(pauses))
    assert pauses[-1] == LONGEST_PAUSE


def test_a_model_process_that_worked_for_long_is_restarted_at_once() -> None:
    assert next_pause(LONGEST_PAUSE, lived=HEALTHY + 1) == FIRST_PAUSE
