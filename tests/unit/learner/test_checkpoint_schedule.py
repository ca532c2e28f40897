"""When a checkpoint is submitted, and when training waits for the disk."""

from learner.coordinate.checkpoint_schedule import CheckpointSchedule


def test_a_checkpoint_is_due_every_n_steps_and_at_the_end() -> None:
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
    # A checkpoint in progress counts as covered, even before its commit.
    pace.trained(50)
    assert not pace.due(3, busy=True)


def test_payloads_on_the_disk_make_a_checkpoint_due_as_they_fill_it() -> None:
    pace = CheckpointSchedule(every=1000, last_step=1000, budget=1 << 30)
    # 60 bytes of the 240 bytes that payloads and free space have together.
    pace.trained(100, files=60)
    assert not pace.due(1, busy=False, free=180)
    assert pace.due(1, busy=False, free=179)
    pace.handed_over()
    pace.trained(100, files=60)
    assert not pace.due(2, busy=True, free=60)
    assert pace.due(2, busy=True, free=59)
    assert pace.due(2, busy=True, free=-5)


def test_payloads_in_a_bucket_have_no_bound() -> None:
    pace = CheckpointSchedule(every=1000, last_step=1000, budget=1 << 30)
    pace.trained(100, files=1 << 50)
    assert not pace.due(1, busy=False, free=None)


def test_a_batch_without_files_does_not_care_for_a_full_disk() -> None:
    pace = CheckpointSchedule(every=1000, last_step=1000, budget=1 << 30)
    pace.trained(100)
    assert not pace.due(1, busy=False, free=0)


def test_a_checkpoint_is_due_after_its_seconds_at_any_step() -> None:
    now = 100.0
    pace = CheckpointSchedule(
        every=1000, last_step=1000, budget=100, seconds=600.0, clock=lambda: now
    )
    now = 699.0
    assert not pace.due(1, busy=False)
    now = 700.0
    assert not pace.due(2, busy=True)
    assert pace.due(3, busy=False)
    pace.handed_over()
    now = 1299.0
    assert not pace.due(4, busy=False)
    now = 1300.0
    assert pace.due(5, busy=False)
