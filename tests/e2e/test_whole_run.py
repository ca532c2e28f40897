"""Every process for real: a small model is made, then trained with GRPO, over REST; with a tool at
hand, and tokens chosen from the likeliest alone."""

from typing import Any

import pytest

from services.cli.client import Gateway

GROUPS, STEPS = 8, 4

# What every step tells, whatever the objective; pass@k for groups of 4.
ALWAYS = {
    *("reward/mean", "reward/std", "reward/groups_without_variance"),
    *("reward/pass_at_1", "reward/pass_at_2", "reward/pass_at_4"),
    *("response/tokens_mean", "response/truncated"),
    *("train/entropy", "train/ratio_mean", "train/ratio_max"),
    *("train/clip_low", "train/clip_high", "train/ess", "train/grad_norm"),
    *("train/corrected_low", "train/corrected_high"),
    *("mismatch/sampler_kl", "mismatch/sampler_logprob_max"),
    *("staleness/mean", "staleness/max"),
    *("throughput/tokens_per_second", "memory/peak_bytes", "bottleneck"),
    *("time/waiting_for_groups", "time/workers_waiting_for_admission"),
}
COUNT = "staleness/count_"
TOOL = {"type": "calculator", "start": "(", "end": "=", "output_start": "", "output_end": ")"}


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
    return f"run:{finished(api, 'demo_sft', training)['id']}"


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
            "rollout": {"max_staleness": staleness, "episode": TOOL},
            "sampling": {"top_k": 12, "top_p": 0.95},
            "training": {"max_steps": STEPS, "checkpoint_every": 2},
            "evaluation": {"dataset": "demo-test", "rows": 16},
        },
    )
    steps = api.get(f"/v1/runs/{record['id']}/metrics")["metrics"]
    trained = [step for step in steps if "staleness/max" in step]
    assert record["committed_step"] == STEPS
    assert len(trained) == STEPS
    for step in trained:
        assert step.keys() >= ALWAYS
        groups = {int(key.removeprefix(COUNT)): step[key] for key in step if key.startswith(COUNT)}
        assert groups.keys() <= set(range(staleness + 1))
        assert sum(groups.values()) == GROUPS
        assert max(groups) == step["staleness/max"]
    # Sampler against learner, at version equality: later steps of an asynchronous run have none.
    gaps = [step["mismatch/logprob_max"] for step in trained if "mismatch/logprob_max" in step]
    assert max(gaps) <= 1e-3
    assert len(gaps) == STEPS or staleness > 0
    # Not bounded by being synchronous, where it need not be.
    assert any(step["staleness/max"] > 0 for step in trained) == (staleness > 0)
