"""The benchmark of the store at small size: its figures are of what happened in Redis."""

import pytest

from bench.store import LOADS, TIMED_GROUPS, latency, run

SHORT = (0.2, 0.8)


def test_every_load_is_measured_for_every_number_of_workers() -> None:
    results = run((1, 3), *SHORT)

    def value(load: str, figure: str) -> float:
        return results.value(f"{load}, workers", "3", figure) or 0.0

    assert results.failed == {}
    assert {(row["part"], row["side"]) for row in results.rows()} == {
        (f"{load}, workers", side) for load in LOADS for side in ("1", "3")
    }
    assert value("full speed", "groups/s") > value("steady", "groups/s") > TIMED_GROUPS
    # The timed worker has leased and completed groups.
    assert value("full speed", "lease, p50 ms") > 0
    assert 0 < value("full speed", "complete, p50 ms") <= value("full speed", "complete, p99 ms")


def test_latencies_are_percentiles_in_milliseconds() -> None:
    # 101 calls of 0, 1, … 100 ms: the k-th percentile is k ms.
    found = latency("lease", [n / 1000 for n in range(101)])
    assert found == {"lease, p50 ms": pytest.approx(50), "lease, p99 ms": pytest.approx(99)}
    assert latency("lease", [0.002]) == {"lease, p50 ms": 2.0, "lease, p99 ms": 2.0}
