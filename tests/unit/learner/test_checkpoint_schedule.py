"""When a checkpoint is handed over, and when training waits for the disk."""

from learner.coordinate.checkpoint_schedule import CheckpointSchedule


def test_a_checkpoint_is_due_every_so_many_steps_and_at_the_end() -> None:
    pace = CheckpointSchedule(every=3, last_step=7, budget=1000)
    due = []
    for step in range(1, 8):
        pace.trained(10)
        due.append(pace.due(step, busy=False))
        if due[-1]:
            pace.handed_over()
    assert due == [False, False, True, False, False, True, True]


def test_a_checkpoint_that_falls_due_while_another_is_written_is_made_when_that_is_done() -> None:
    pace = CheckpointSchedule(every=2, last_step=100, budget=1000)
    assert pace.due(2, busy=False)
    pace.handed_over()
    assert [pace.due(step, busy=True) for step in (3, 4, 5)] == [False, False, False]
    assert pace.due(5, busy=False)
    pace.handed_over()
    assert not pace.due(7, busy=False)


def test_a_checkpoint_is_due_early_when_a_quarter_of_the_budget_is_not_covered() -> None:
    pace = CheckpointSchedule(every=1000, last_step=1000, budget=100)
    pace.trained(25)
    assert not pace.due(1, busy=False)
    pace.trained(1)
    assert not pace.due(2, busy=True)
    assert pace.due(3, busy=False)


def test_training_waits_when_half_the_budget_is_not_covered() -> None:
    pace = CheckpointSchedule(every=1000, last_step=1000, budget=100)
    pace.trained(50)
    assert not pace.due(1, busy=True)
    pace.trained(1)
    assert pace.due(2, busy=True)
    pace.handed_over()
    # What is on its way counts as covered, whether it is committed yet or not.
    pace.trained(50)
    assert not pace.due(3, busy=True)
