"""A container's health check."""

from contextlib import closing

import pytest

from services.runtime import probe
from tests.upstream import Answer, Upstream

LOADING: Answer = (503, {"status": "loading", "detail": "reward model 1 of 1"})


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([LOADING, LOADING, (200, {"status": "ready"})], 0),
        ([LOADING, (503, {"status": "starting"})], 1),
        ([(503, b"no JSON")], 1),
    ],
)
def test_a_check_waits_while_the_service_says_that_it_is_loading(
    answers: list[Answer], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "EVERY", 0.001)
    left = list(answers)
    with closing(Upstream(lambda path, body: left.pop(0))) as server:
        monkeypatch.setattr("sys.argv", ["probe", f"{server.url}/readyz"])
        assert probe.main() == code
    assert left == []
