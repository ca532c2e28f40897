"""Sharded models train like whole ones, on any number of ranks, and survive a rank's death."""

import asyncio
import re
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from learner.checkpoints.checkpoint_reader import verify
from services.contracts.config import parse_config
from services.contracts.records import RunState
from services.store import Store
from services.volume import Volume
from tests.integration.learner.conftest import Place
from tests.integration.learner.test_runs import SFT, add_sums, ended, rl, steps, submit
from tests.integration.learner.torch_worker import eventually, serving

STOPPING = "tests.integration.learner.stopping_learner"
EVERY = (
    *("of_policy", "of_policy_in_float32", "of_tied_policy", "of_policy_that_recomputes"),
    *("of_bfloat16", "of_adapters", "of_mixture", "as_loaded", "canary"),
    *("with_everything", "with_everything_offloaded", "with_muon", "in_backward"),
    "published",
)
SOME = (
    "of_policy",
    "of_policy_in_float32",
    "with_everything",
    "with_muon",
    "as_loaded",
    "published",
)
"""On 4 ranks. Some hold no row of the smallest weights."""
LONG = (
    *("of_long_rows", "of_policy_in_float32", "of_adapters"),
    *("of_mixture", "of_replayed_experts", "with_everything"),
)
"""With rows that ranks share."""
EXACT, SINGLE, HALF = 1e-12, 1e-6, 0.03
"""Tolerance relative to the largest entry of a check: in float64, in float32, in bfloat16."""


def computed(folder: Path, ranks: int, checks: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Return the results of `sharded_ranks` on `ranks` ranks, by check."""
    output = folder / f"{ranks}.safetensors"
    place = Place("", folder)
    module = "tests.integration.learner.sharded_ranks"
    for rank in place.ranks(ranks, module, str(output), *checks):
        assert rank.wait() == 0, place.log.read_text()[-3000:]
    return load_file(output)


def tolerance(check: str) -> float:
    inexact = {"of_policy_in_float32": SINGLE, "canary": SINGLE, "of_bfloat16": HALF}
    return inexact.get(check, EXACT)


@pytest.mark.multirank
def test_sharded_models_on_2_and_4_ranks_train_as_one_process_does(tmp_path: Path) -> None:
    alone = computed(tmp_path, 1, EVERY)
    for ranks, checks in ((2, EVERY), (4, SOME)):
        compare(computed(tmp_path, ranks, checks), alone, checks)


@pytest.mark.multirank
def test_ranks_that_share_rows_train_as_one_process_does(tmp_path: Path) -> None:
    """Two of two, two of four and four of four ranks share rows. A model of four heads then has
    fewer key heads than ranks, and short rows have fewer tokens than ranks."""
    alone = computed(tmp_path, 1, LONG)
    for ranks, checks in (
        (2, tuple(f"{name}/2" for name in LONG)),
        (4, ("of_long_rows/2", "with_everything/2", "of_long_rows/4")),
    ):
        compare(computed(tmp_path, ranks, checks), alone, checks)


def compare(
    found: dict[str, torch.Tensor], alone: dict[str, torch.Tensor], checks: tuple[str, ...]
) -> None:
    """Assert that the `checks` of several ranks equal those of a single rank, `alone`."""
    for which in checks:
        check = which.partition("/")[0]
        expected = {n: t for n, t in alone.items() if n.partition(" ")[0] == check}
        named = {
            f"{check} {name.partition(' ')[2]}": tensor
            for name, tensor in found.items()
            if name.partition(" ")[0] == which
        }
        assert named.keys() == expected.keys()
        bound = tolerance(check) * max(float(tensor.abs().max()) for tensor in expected.values())
        for name, tensor in named.items():
            apart = float((tensor.double() - expected[name].double()).abs().max())
            assert apart <= bound, (which, name, apart, bound)
            assert tensor.dtype == expected[name].dtype


@pytest.mark.multirank
async def test_a_sharded_run_whose_rank_is_killed_goes_on_and_loses_nothing(
    place: Place, store: Store
) -> None:
    """With a critic and a moving reference, which its checkpoints hold. It starts from a sharded
    supervised run. At that run's end rank 0 is killed: every part is written, the rename is
    next."""
    await add_sums(store, place.data)
    training = {"max_steps": 10, "rows_per_step": 8, "parallel": "fsdp"}
    await submit(store, "first", SFT | {"training": training})
    config = rl(
        algorithm={
            "prompts_per_step": 4,
            "samples_per_prompt": 4,
            "advantage": {"type": "gae"},
            "critic": {},
            "kl": {"type": "k3", "reference": {"type": "ema", "rate": 0.1}},
        },
        training={
            "max_steps": 6,
            "checkpoint_every": 2,
            "tokens_per_microbatch": 64,
            "parallel": "fsdp",
        },
    )
    await submit(store, "second", config)

    async def committed(step: int) -> bool:
        record = await store.runs.get("second")
        return record is not None and record.committed_step >= step

    ranks = place.ranks(2, STOPPING, "renamed?", "SIGKILL")
    assert await asyncio.to_thread(ranks[0].wait, 60) == -signal.SIGKILL
    assert await asyncio.to_thread(ranks[1].wait, 60) != 0
    assert [path.name[:6] for path in (place.data / "runs/first/checkpoints").iterdir()] == [
        ".step-"
    ]
    ranks = place.ranks(2)
    async with serving(store, Volume(place.data), "second", parse_config(config)):
        await eventually(partial(committed, 2))
        ranks[1].send_signal(signal.SIGKILL)
        # It cannot continue without the other rank.
        assert ranks[0].wait(timeout=60) != 0
        ranks = place.ranks(2)
        record = await ended(store, "second")
    assert (record.state, record.step, record.reason) == (RunState.SUCCEEDED, 6, "")
    found = await store.ledger.audit("second")
    assert (found.trained, found.in_flight, found.problems) == (6 * 4, 0, [])
    # Two ranks, two runs, each started twice.
    assert place.log.read_text().count('"parallel": "fsdp"') == 2 * 2 * 2
    # The trained answers are the sampled ones: the sharded policy's passes agree with the
    # sampler's.
    rows = steps(place, "second")
    assert [row["step"] for row in rows] == list(range(1, 7))
    assert all(row.get("mismatch/logprob_max", 0) < 1e-3 for row in rows)
    for rank in ranks:
        rank.terminate()
    assert [rank.wait() for rank in ranks] == [0, 0]


def content(folder: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of a checkpoint, in any number of parts, except the random state."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        name = re.sub(r"-\d{5}-of-\d{5}", "", str(path.relative_to(folder)))
        if not name.endswith("random.safetensors"):
            found |= {f"{name} {key}": tensor for key, tensor in load_file(path).items()}
    return found


@pytest.mark.multirank
def test_a_checkpoint_goes_from_4_ranks_to_2_to_1_and_back_bit_for_bit(tmp_path: Path) -> None:
    place = Place("", tmp_path)
    sizes = (4, 2, 1, 4)
    folders = [tmp_path / f"step-{number:06d}-a" for number in range(len(sizes) + 1)]
    trained = [tmp_path / f"step-{100 + number:06d}-a" for number in range(len(sizes))]
    for ranks, *paths in zip(sizes, folders, folders[1:], trained, strict=False):
        module = "tests.integration.learner.checkpoint_ranks"
        for rank in place.ranks(ranks, module, *map(str, paths)):
            assert rank.wait() == 0, place.log.read_text()[-3000:]
    made = content(folders[1])
    # Policy, critic, both optimizers and the copy: each parameter is in all that have it.
    assert {name.partition(" ")[0].rpartition("/")[2] for name in made} == {
        *("model.safetensors", "optimizer.safetensors", "critic_optimizer.safetensors"),
        "reference.safetensors",
    }
    for ranks, folder in zip(sizes, folders[1:], strict=True):
        found = content(folder)
        assert found.keys() == made.keys()
        for name, tensor in made.items():
            assert torch.equal(found[name], tensor), (folder.name, name)
        sizes_of = [path.stat().st_size for path in folder.glob("model*.safetensors")]
        assert len(sizes_of) == ranks
        # Each rank writes about its share.
        assert max(sizes_of) < 2 * sum(sizes_of) / ranks
        assert verify(folder).step == int(folder.name.split("-")[1])
        model = AutoModelForCausalLM.from_pretrained(folder)
        weight = model.state_dict()["model.norm.weight"]
        assert torch.equal(weight, made["model.safetensors model.norm.weight"])
    # A resumed run trains exactly as the ranks that made the checkpoint would have.
    right = content(trained[0])
    assert any(not torch.equal(right[name], tensor) for name, tensor in made.items())
    for folder in trained[1:]:
        for name, tensor in content(folder).items():
            assert (tensor - right[name]).abs().max() < 1e-6, (folder.name, name)
