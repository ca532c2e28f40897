"""Work on many tensors at once."""

import threading
from collections.abc import Iterator

import pytest

from services.weights.threads import AHEAD, in_threads


@pytest.fixture(params=[1, 4])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    count: int = request.param
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(count)))
    return count


def test_results_come_in_the_order_of_the_items_from_as_many_threads_as_cores(cores: int) -> None:
    at_work = threading.Barrier(cores, timeout=30)

    def squared(item: int) -> int:
        at_work.wait()
        return item * item

    assert list(in_threads(squared, range(8))) == [item * item for item in range(8)]


def test_items_are_read_only_as_far_ahead_as_threads_may_be(cores: int) -> None:
    read = []

    def items() -> Iterator[int]:
        for item in range(100):
            read.append(item)
            yield item

    results = in_threads(lambda item: item, items())
    assert next(results) == 0
    assert len(read) == (1 if cores == 1 else AHEAD * cores + 1)


def test_an_error_is_raised_where_results_are_read(cores: int) -> None:
    def inverse(item: int) -> float:
        return 1 / item

    results = in_threads(inverse, [2, 0, 4])
    assert next(results) == 0.5
    with pytest.raises(ZeroDivisionError):
        next(results)
