"""The benchmark of the page, small and without a browser."""

from bench.page import run


def test_each_kind_of_list_is_measured() -> None:
    results = run(300)
    assert results.failed == {}
    for figure in ("list, ms", "search, ms", "filter, ms", "filter that nothing passes, ms"):
        assert (results.value("300 runs", "gateway", figure) or 0.0) > 0
