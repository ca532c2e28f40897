"""A fleet whose groups are large, in simulated time: it stays busy within its bytes of Redis."""

from bench.fleet.leasing import Fleet, run


def test_large_groups_keep_a_fleet_busy_within_the_bytes_of_redis() -> None:
    # A fourteenth of the fleet of the benchmark, with as large a part of everything. Where each
    # lease reserves the most that a group can weigh, 16 groups of about 150 are in flight.
    fleet = Fleet(workers=4, prompts_per_step=18, budget=(1 << 30) // 14, warmup=12, steps=6)
    found = run(fleet)
    assert found["busy"] >= 0.95
    # One group more may be let in because the learner could train it in no later batch.
    assert found["redis_share"] <= 1.05
    assert found["requeued"] == 0
