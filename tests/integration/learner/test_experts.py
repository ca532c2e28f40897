"""A mixture of experts from scratch to reinforcement learning with replay of its routing."""

from pathlib import Path
from typing import Any

from safetensors import safe_open

from services.contracts.config import parse_config
from services.contracts.records import RunState
from services.store import Store
from services.volume import Volume
from tests.integration.learner.conftest import Place
from tests.integration.learner.test_runs import SFT, add_sums, ended, rl, steps, submit
from tests.integration.learner.torch_worker import serving

EXPERTS = {"experts": 4, "experts_per_token": 2}
ALGORITHM: dict[str, Any] = {
    "prompts_per_step": 4,
    "samples_per_prompt": 4,
    "proximal": {"type": "recompute"},
    "kl": {"type": "k3", "beta": 0.1},
    "router": {"aux_loss": 0.1, "z_loss": 0.01, "replay": True},
}


async def test_the_learner_replays_the_experts_of_the_sampler(place: Place, store: Store) -> None:
    await add_sums(store, place.data)
    first = {**SFT, "model": SFT["model"] | EXPERTS, "router": {"z_loss": 0.001}}
    await submit(store, "first", first)
    config = rl(
        algorithm=ALGORITHM,
        rollout={"max_staleness": 0},
        training={"max_steps": 3, "tokens_per_microbatch": 64},
    )
    await submit(store, "second", config)
    place.learner()

    async with serving(store, Volume(place.data), "second", parse_config(config)):
        second = await ended(store, "second")

    assert (second.state, second.reason) == (RunState.SUCCEEDED, "")
    first_steps = [row for row in steps(place, "first") if row["step"]]
    # Two of four experts per token: 2 if the load is even, at most 4.
    assert all(1.9 <= row["router/aux_loss"] < 4 for row in first_steps)
    assert not any("router/agreement" in row for row in first_steps)
    rows = [row for row in steps(place, "second") if "train/loss" in row]
    assert len(rows) == 3
    for row in rows:
        assert row["router/replayed"] == 1
        # The sampler is the same model in the same library.
        assert row["router/agreement"] == 1
        assert row["mismatch/logprob_max"] < 1e-4
        assert 1.9 <= row["router/aux_loss"] < 4
        assert 1 <= row["router/load_max"] <= 2
        assert row["router/z_loss"] > 0
    assert second.checkpoint is not None
    weights = Path(place.data / second.checkpoint / "model.safetensors")
    with safe_open(weights, framework="pt") as file:
        assert "model.layers.1.mlp.experts.3.up_proj.weight" in file.keys()  # noqa: SIM118


async def test_routers_of_a_dense_model_end_the_run_with_a_reason(
    place: Place, store: Store
) -> None:
    await add_sums(store, place.data)
    await submit(store, "first", {**SFT, "training": {"max_steps": 1, "rows_per_step": 4}})
    await submit(store, "second", rl(algorithm={"router": {"aux_loss": 0.01}}))
    place.learner()

    second = await ended(store, "second")

    assert second.state is RunState.FAILED
    assert "LlamaForCausalLM has no experts to route to" in second.reason
