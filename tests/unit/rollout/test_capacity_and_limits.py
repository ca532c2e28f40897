"""Groups in flight, seeds of tasks, progress of a server, and the failures that end a run."""

from rollout.vllm.client.progress import Rate, TokenProgress
from rollout.work.capacity import (
    Sequences,
    reserve_bytes,
    share_of,
    slots,
    to_lease,
    widened,
)
from rollout.work.failure_limit import MAX_ROWS, FailureLimit
from rollout.work.prompt_sampler import task_seed


def test_slots_fill_vllms_sequences_unless_configured():
    assert slots(256, 8, None) == 40
    assert slots(10, 8, None) == 2
    assert slots(4, 8, None) == 1
    assert slots(256, 8, 5) == 5


def test_groups_that_wait_for_their_longest_answers_make_room_for_others():
    # 40 groups of 8 fill 256 sequences and 64 waiting ones.
    assert widened(40, generating=40, unfinished=320, max_num_seqs=256, samples=8) == 40
    # 40 groups have 80 sequences left: 240 are free, enough for 30 groups.
    assert widened(40, generating=40, unfinished=80, max_num_seqs=256, samples=8) == 70
    # The server has not begun its requests, as during an update: the limit does not grow.
    assert widened(40, generating=40, unfinished=0, max_num_seqs=16, samples=8) == 40
    assert widened(40, generating=30, unfinished=400, max_num_seqs=256, samples=8) == 40
    # Each group has one sequence at least.
    assert widened(40, generating=250, unfinished=250, max_num_seqs=256, samples=8) == 256


def test_the_seeds_of_a_task_do_not_depend_on_its_worker():
    assert task_seed(None, 3) is None
    assert task_seed(5, 3) == task_seed(5, 3)
    # vLLM adds the sample's index.
    firsts = [task_seed(seed, task) or 0 for seed in (5, 6) for task in range(200)]
    assert len({first + index for first in firsts for index in range(16)}) == 400 * 16
    assert all(0 <= first < 2**63 - 16 for first in firsts)


def test_a_finished_group_makes_room_at_once_even_while_it_is_scored():
    assert to_lease(32, generating=32, scoring=0) == 0
    assert to_lease(32, generating=31, scoring=1) == 1
    assert to_lease(32, generating=0, scoring=0) == 32


def test_a_worker_leases_nothing_while_scoring_falls_behind():
    assert to_lease(32, generating=0, scoring=60) == 4
    assert to_lease(32, generating=4, scoring=60) == 0


def test_a_lease_reserves_all_tokens_and_the_rewards_of_a_group():
    reserved = reserve_bytes(8, components=1, tokens=64, token_bytes=9, prompt_bytes=4 * 128)
    assert reserved == 8 * (64 * 9 + 2048) + 512


def test_leases_are_renewed_only_while_tokens_move():
    progress = TokenProgress(limit=60)
    assert progress.observe(0, tokens=0, generating=4, updating=False)
    assert progress.observe(10, tokens=50, generating=4, updating=False)
    assert not progress.observe(20, tokens=50, generating=4, updating=False)
    assert not progress.stalled(69)
    assert progress.stalled(71)


def test_a_still_counter_counts_as_a_stall_only_with_work_and_outside_updates():
    progress = TokenProgress(limit=60)
    progress.observe(0, tokens=50, generating=4, updating=False)
    assert progress.observe(100, tokens=50, generating=0, updating=False)
    assert progress.observe(200, tokens=50, generating=4, updating=True)
    assert not progress.stalled(259)


def test_time_while_the_worker_was_stopped_does_not_count_as_a_stall():
    progress = TokenProgress(limit=60)
    progress.observe(0, tokens=50, generating=4, updating=False)
    progress.observe(12, tokens=50, generating=4, updating=False)
    assert not progress.observe(500, tokens=50, generating=4, updating=False)
    assert not progress.stalled(500)
    for now in range(512, 561, 12):
        assert not progress.observe(now, tokens=50, generating=4, updating=False)
    assert progress.stalled(561)


def test_a_counter_that_starts_over_is_progress():
    progress = TokenProgress(limit=60)
    progress.observe(0, tokens=500, generating=1, updating=False)
    assert progress.observe(10, tokens=3, generating=1, updating=False)


def test_rate_is_tokens_over_time_and_zero_after_a_restart():
    rate = Rate()
    assert rate.observe(10.0, 1000) == 0.0
    assert rate.observe(12.0, 1500) == 250.0
    assert rate.observe(14.0, 10) == 0.0


def test_a_small_dataset_fails_its_run_when_every_row_failed():
    limit = FailureLimit()
    for row in (0, 1, 1, 0):
        limit.row_failed(str(row), rows=3, reason="too long")
        assert limit.reason is None
    limit.row_failed("2", rows=3, reason="too long")
    assert limit.reason == "too long"


def test_a_large_dataset_fails_its_run_after_the_first_rows():
    limit = FailureLimit()
    for row in range(MAX_ROWS):
        limit.row_failed(str(row), rows=10_000, reason="too long")
    assert limit.reason == "too long"


def test_rows_that_fail_after_a_finished_group_do_not_fail_the_run():
    limit = FailureLimit()
    limit.group_finished()
    for row in range(1000):
        limit.row_failed(str(row), rows=1000, reason="too long")
    assert limit.reason is None


def test_a_vllm_that_fails_twice_in_a_row_fails_its_run():
    limit = FailureLimit(start_tries=2)
    limit.vllm_failed("no such device")
    limit.start()
    limit.group_finished()
    limit.vllm_failed("no such device")
    assert limit.reason is None
    limit.start()
    limit.vllm_failed("no such device")
    assert [limit.reason, limit.host_may_be_at_fault] == ["no such device", True]


def test_a_run_that_no_worker_can_serve_fails_at_once():
    limit = FailureLimit(start_tries=2)
    limit.run_failed("there is no dataset 'd'")
    assert [limit.reason, limit.host_may_be_at_fault] == ["there is no dataset 'd'", False]


def test_the_cache_limits_completions_by_their_mean_length():
    long = Sequences(most=1024, cache_tokens=400_000, tokens=32_768)
    assert long.at_once == 12
    # 16 completions of 7,000 tokens after a prompt of 1,000 each.
    long.finished(1000, 16 * 7000, 16)
    assert long.at_once == 50
    # One group among 32: (8000 * 31 + 24,000) / 32 = 8,500.
    long.finished(0, 24_000, 1)
    assert long.at_once == 47
    assert Sequences(256, None, 32_768).at_once == 256
    assert Sequences(256, 1000, 32_768).at_once == 1
    assert Sequences(256, 1 << 20, 64).at_once == 256


def test_each_side_has_its_share_of_a_full_vllm_and_what_the_other_leaves() -> None:
    assert share_of(64, used=64, share=0.25, samples=4) == 4
    assert share_of(64, used=8, share=0.25, samples=4) == 14
    assert share_of(64, used=64, share=0.75, samples=8) == 6
    assert share_of(64, used=64, share=1.0, samples=4) == 16
    # At least one row.
    assert share_of(8, used=8, share=0.1, samples=4) == 1
