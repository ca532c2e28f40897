"""A run over a mixture of datasets (`data.mix`): a whole installation trains it."""

from tests.integration.installation.conftest import Installation

STEPS, PROMPTS = 4, 4
ANY = {"verifier": "length", "params": {"within": 1.0}}
"""Rewards every answer."""


def test_each_dataset_of_a_mixture_has_its_share_its_reward_and_its_metrics(
    installation: Installation,
) -> None:
    installation.add("near", [{"prompt": f"{n}+1", "answer": str(n + 1)} for n in range(12)])
    # These rows have no reference answer.
    installation.add("far", [{"prompt": f"{n}+2"} for n in range(4)])

    record, _ = installation.ended(
        installation.submit(
            data={
                "dataset": "near",
                "mix": [{"dataset": "far", "rewards": [ANY], "max_tokens": 3}],
            },
            rewards=[{"verifier": "exact"}],
            algorithm={"prompts_per_step": PROMPTS, "samples_per_prompt": 2},
            training={"max_steps": STEPS, "checkpoint_every": 2},
        )
    )

    assert (record["state"], record["step"]) == ("succeeded", STEPS), record["reason"]
    assert record["dataset_rows"] == [12, 4]
    run = record["id"]
    audit = installation.api.get(f"/v1/runs/{run}/audit")
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (STEPS * PROMPTS, 0, 0)
    rows = list(installation.api.pages(f"/v1/runs/{run}/metrics", "metrics"))
    steps = [row for row in rows if "step" in row]
    shares = [(row["dataset/share/near"], row["dataset/share/far"]) for row in steps]
    assert [sum(both) for both in shares] == [1.0] * STEPS
    # An epoch is 16 prompts, and all were trained.
    assert sum(far for _, far in shares) / STEPS == 4 / 16
    rewards = [row["dataset/reward/far"] for row in steps if "dataset/reward/far" in row]
    assert set(rewards) == {1.0}
    tokens = [row["dataset/tokens/far"] for row in steps if "dataset/tokens/far" in row]
    assert max(tokens) <= 3
