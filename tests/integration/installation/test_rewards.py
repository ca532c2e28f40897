"""Several rewards in one run: what the config says is what is scored, combined and logged."""

import pytest

from tests.integration.installation.conftest import Installation


def test_gates_names_clips_and_parts_from_the_config_to_the_metrics(
    installation: Installation,
) -> None:
    never = {"component": "size", "at_least": 99}
    rewards = [
        {"verifier": "exact"},
        # Always 5, because no answer has 200 to 300 characters; 3 count.
        {
            "verifier": "length",
            "name": "size",
            "weight": 2,
            "clip": [0, 3],
            "only_if": {"component": "exact", "at_least": 0},
            "params": {"minimum": 200, "maximum": 300, "within": 0, "outside": 5},
        },
        {"verifier": "format", "only_if": {"component": "size", "at_least": 5}},
        {"verifier": "repetition", "only_if": never},
    ]

    record, _ = installation.ended(installation.submit(data={"dataset": "sums"}, rewards=rewards))

    assert record["state"] == "succeeded", record["reason"]
    found = installation.api.get(f"/v1/runs/{record['id']}/metrics")["metrics"]
    assert [row["step"] for row in found] == [1, 2]
    for row in found:
        components = {
            key.removeprefix("reward/component/"): value
            for key, value in row.items()
            if key.startswith("reward/component/")
        }
        assert set(components) == {"exact", "size", "format", "format/pattern", "format/tags"}
        assert (components["size"], components["format"]) == (3.0, 0.0)
        assert row["reward/mean"] == pytest.approx(components["exact"] + 2 * 3.0)
