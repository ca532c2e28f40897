"""The control plane's benchmark at small size: its figures are of what happened in Redis."""

import pytest

from bench.fleet.control_plane import LOADS, TIMED_GROUPS, latency, run

SHORT = (0.2, 0.8)


def test_every_load_is_measured_for_every_number_of_workers() -> None:
    results = run((1, 3), *SHORT)
    assert [list(results[load]) for load in LOADS] == [["1", "3"], ["1", "3"]]
    fast, steady = results["full_speed"]["3"], results["steady"]["3"]
    assert fast["groups_per_second"] > steady["groups_per_second"] > TIMED_GROUPS
    # Where nobody waits for anything, the timed worker has had a lease and handed in groups.
    assert {"lease", "complete"} <= fast["calls"].keys()
    assert 0 < fast["calls"]["complete"]["p50_ms"] <= fast["calls"]["complete"]["p99_ms"]
    cost = [results["full_speed"][size]["redis_cpu_us_per_group"] for size in ("1", "3")]
    assert results["cost_of_most_over_fewest"] == cost[1] / cost[0]


def test_latencies_are_percentiles_in_milliseconds() -> None:
    # 101 calls of 0, 1, … 100 ms: the k-th percentile is k ms.
    found = latency([n / 1000 for n in range(101)])
    assert found == {"calls": 101, "p50_ms": pytest.approx(50), "p99_ms": pytest.approx(99)}
    assert latency([0.002]) == {"calls": 1, "p50_ms": 2.0, "p99_ms": 2.0}
