"""The benchmark of the API's readers, in a small size."""

from bench.readers import run


def test_a_run_is_measured_alone_and_while_clients_read() -> None:
    results = run(2.0, 1.0, rounds=1)
    assert results.failed == {}
    for load in ("full speed", "steady"):
        for side in ("read", "alone"):
            assert (results.value(load, side, "groups/s") or 0.0) > 10
        assert (results.value(load, "read", "reads/s") or 0.0) > 10
        assert (results.value(load, "read", "messages/s") or 0.0) > 0
