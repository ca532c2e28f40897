"""Every process for real: a small model is made, then trained with GRPO, over REST."""

from typing import Any

import pytest

from services.cli.client import Gateway

GROUPS, STEPS = 8, 4


def finished(api: Gateway, recipe: str, config: dict[str, Any]) -> dict[str, Any]:
    run = api.post("/v1/runs", json={"recipe": recipe, "config": config})["id"]
    for _ in api.events(run):
        pass
    record: dict[str, Any] = api.get(f"/v1/runs/{run}")
    assert record["state"] == "succeeded", record["reason"]
    return record


@pytest.fixture(scope="module")
def model(api: Gateway) -> str:
    training = {"training": {"max_steps": 20, "rows_per_step": 32}}
    return f"run:{finished(api, 'demo_midtrain', training)['id']}"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("staleness", [0, 2])
def test_groups_are_trained_within_the_staleness_bound(
    api: Gateway, model: str, staleness: int
) -> None:
    record = finished(
        api,
        "demo_grpo",
        {
            "model": {"path": model},
            "algorithm": {"prompts_per_step": GROUPS, "samples_per_prompt": 4},
            "rollout": {"max_staleness": staleness},
            "training": {"max_steps": STEPS, "checkpoint_every": 2},
            "evaluation": {"dataset": "demo-test", "rows": 16},
        },
    )
    steps = api.get(f"/v1/runs/{record['id']}/metrics")["metrics"]
    trained = [step for step in steps if "staleness/max" in step]
    assert record["committed_step"] == STEPS
    assert len(trained) == STEPS
    assert all(0 <= step["staleness/max"] <= staleness for step in trained)
    # Sampler against learner, at version equality: later steps of an asynchronous run have none.
    gaps = [step["mismatch/logprob_max"] for step in trained if "mismatch/logprob_max" in step]
    assert max(gaps) <= 1e-3
    assert len(gaps) == STEPS or staleness > 0
    assert all("mismatch/sampler_kl" in step for step in trained)
    # Not bounded by being synchronous, where it need not be.
    assert any(step["staleness/max"] > 0 for step in trained) == (staleness > 0)
