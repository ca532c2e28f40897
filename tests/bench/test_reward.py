"""The bench of the reward service, on few items: both sides score the same, and as expected."""

from pathlib import Path

from bench.reward.run import measure
from tests.integration.reward.tiny_models import save_classifier


def test_every_part_scores_as_expected_on_both_sides(tmp_path: Path) -> None:
    model = save_classifier(tmp_path, labels=1)

    results = measure(("math", "code"), count=128, workers=2, model=model)

    for kind in ("numbers", "expressions"):
        assert len(results[kind]) == 5
        assert {rate["right"] for rate in results[kind].values()} == {64}
    for kind, items, right in (("code", 4, 2), ("model", 16, 16)):
        for rate in results[kind].values():
            assert (rate["items"], rate["right"]) == (items, right)
            assert rate["per_second"] > 0
