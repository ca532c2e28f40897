"""A fleet with large groups, in simulated time: it stays busy within its bytes of Redis."""

from bench.leasing import Fleet, run


def test_large_groups_keep_a_fleet_busy_within_the_bytes_of_redis() -> None:
    # A fourteenth of the fleet and of the bytes of the benchmark. If each lease reserved the
    # largest size of a group, 16 groups of about 150 would be in flight.
    fleet = Fleet(workers=4, prompts_per_step=18, budget=(1 << 30) // 14, warmup=12, steps=6)
    results = run(fleet)
    found = {row["figure"]: row["value"] for row in results.rows()}
    assert results.failed == {}
    assert found["sequences busy, share"] >= 0.95
    # One more group may be leased if the learner could train it in no later batch.
    assert found["most bytes in Redis, share of the limit"] <= 1.05
    assert found["groups requeued as stale"] == 0
