"""Dynamic sampling from the config to the ledger: groups with equal rewards are filtered, replaced
and counted, and a run that has no other groups ends with the reason."""

from typing import Any

import pytest

from tests.integration.installation.conftest import Installation

STEPS, PROMPTS, SAMPLES = 3, 4, 2
TRAINING = {"max_steps": STEPS, "checkpoint_every": 10}
SEEDED = {"seed": 1}
"""Makes the answers equal in every run of the tests."""


def algorithm(**dynamic_sampling: float) -> dict[str, Any]:
    return {
        "prompts_per_step": PROMPTS,
        "samples_per_prompt": SAMPLES,
        "dynamic_sampling": dynamic_sampling,
    }


def test_groups_of_equal_rewards_are_filtered_and_others_fill_the_batch(
    installation: Installation,
) -> None:
    # Most random answers have a digit from 0 to 3, so both answers to a prompt are alike in more
    # than half of the groups.
    rewards = [{"verifier": "regex", "params": {"pattern": "[0-3]"}}]

    record, _ = installation.ended(
        installation.submit(
            data={"dataset": "sums"},
            rewards=rewards,
            algorithm=algorithm(),
            training=TRAINING,
            sampling=SEEDED,
        )
    )

    assert (record["state"], record["step"]) == ("succeeded", STEPS), record["reason"]
    audit = installation.api.get(f"/v1/runs/{record['id']}/audit")
    dropped = audit["dropped"]["filtered_group"]
    assert dropped > 0
    assert (audit["trained"], audit["in_flight"]) == (STEPS * PROMPTS, 0)
    assert audit["tasks"] == STEPS * PROMPTS + dropped
    assert (audit["lost"], audit["duplicated"], audit["problems"]) == (0, 0, [])
    rows = installation.api.get(f"/v1/runs/{record['id']}/metrics")["metrics"]
    # The share s of all groups is s / (1 - s) for each that is trained.
    shares = [row["reward/groups_filtered"] for row in rows]
    assert sum(PROMPTS * s / (1 - s) for s in shares) == pytest.approx(dropped)
    for row in rows:
        # Each group has two different rewards, 0 and 1.
        assert (row["reward/groups_without_variance"], row["reward/mean"]) == (0.0, 0.5)
        assert 0 <= row["reward/mean_sampled"] <= 1
    assert any(row["reward/mean_sampled"] != 0.5 for row in rows)


def test_a_run_whose_groups_are_all_filtered_ends_with_the_reason(
    installation: Installation,
) -> None:
    rewards = [{"verifier": "regex", "params": {"pattern": "never"}}]

    record, events = installation.ended(
        installation.submit(
            data={"dataset": "sums"}, rewards=rewards, algorithm=algorithm(max_filtered=3)
        )
    )

    assert (record["state"], record["step"]) == ("failed", 0)
    assert (
        "groups were filtered while 0 of the 4 groups of a batch were finished"
        in (record["reason"])
    )
    assert "as filtered_group: dataset row " in record["reason"]
    assert f": all its rewards are 0. `headrace samples {record['id']}` shows" in record["reason"]
    # The samples of filtered groups show the answers and the reason for reward 0.
    found = installation.api.get(f"/v1/runs/{record['id']}/samples")
    assert (found["samples"], found["next"]) == ([], None)
    assert found["judged"]
    for one in found["judged"]:
        assert (one["status"], one["reward"], one["step"]) == ("wrong", 0.0, 0)
        assert one["reference"] == str(one["row"] + 1)
        assert one["reasons"] == {"regex": "'never' does not match"}
    assert events[-1].data == {"state": "failed", "reason": record["reason"]}
    audit = installation.api.get(f"/v1/runs/{record['id']}/audit")
    assert audit["dropped"]["filtered_group"] > 3 * PROMPTS
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (0, 0, 0)


def test_of_what_is_sampled_the_best_and_the_worst_are_trained(
    installation: Installation,
) -> None:
    rewards = [{"verifier": "regex", "params": {"pattern": "[0-3]"}}]
    both = {
        "prompts_per_step": PROMPTS,
        "samples_per_prompt": SAMPLES,
        "best_of": {"generation_size": 16, "keep": "both"},
        "dynamic_sampling": {},
    }

    record, _ = installation.ended(
        installation.submit(
            data={"dataset": "sums"},
            rewards=rewards,
            algorithm=both,
            training=TRAINING,
            sampling=SEEDED,
        )
    )

    assert record["state"] == "succeeded", record["reason"]
    rows = installation.api.get(f"/v1/runs/{record['id']}/metrics")["metrics"]
    for row in rows:
        assert row["reward/mean"] == 0.5
        assert row["reward/mean_sampled"] > 0.5
