"""The bench of the reward service, on few items: both sides score the same, and as expected."""

import pytest

from bench.reward import measure


@pytest.mark.timeout(240)
def test_every_part_scores_as_expected_on_both_sides() -> None:
    results = measure(("math", "code", "model"), count=256, workers=2, poison=0.01)

    for kind in ("numbers", "expressions"):
        assert len(results[kind]) == 7
        assert {rate["right"] for rate in results[kind].values()} == {128}
    for kind, items, right in (("code", 8, 4), ("model", 32, 32)):
        for side in ("bare", "service"):
            rate = results[kind][side]
            assert (rate["items"], rate["right"]) == (items, right)
            assert rate["per_second"] > 0
