"""Several ranks: a batch's gradient does not depend on the number of ranks that share it, and all
ranks learn when rank 0 gives a run up."""

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from services.contracts.config import parse_config
from services.contracts.records import RunState
from services.rollouts.reader import group, page
from services.rollouts.rollout_filter import RolloutFilter
from services.store import Store
from services.volume import Volume
from tests.integration.learner.conftest import Place
from tests.integration.learner.test_runs import SFT, add_sums, ended, rl, steps, submit
from tests.integration.learner.torch_worker import eventually, serving

STOPPING = "tests.integration.learner.stopping_learner"


async def kept(place: Place, last: int) -> bool:
    """Whether the run `second` has kept each answer of each step once."""
    shown = page(place.data / "runs/second/rollouts", RolloutFilter(), None, 1000)
    answers = [(row.step, row.group, row.sample) for row in shown.rollouts]
    assert len({*answers}) == len(answers)
    assert shown.damaged == []
    return [step for step, _, _ in answers] == [s for s in range(last, 0, -1) for _ in range(16)]


def gradients(folder: Path, ranks: int, budget: int, seed: int = 0) -> dict[str, torch.Tensor]:
    output = folder / f"{ranks}-{budget}-{seed}.safetensors"
    place = Place("", folder)
    module = "tests.integration.learner.gradient_ranks"
    for rank in place.ranks(ranks, module, str(output), str(budget), str(seed)):
        assert rank.wait() == 0, place.log.read_text()
    return load_file(output)


@pytest.mark.multirank
def test_ranks_budget_and_which_rank_trains_a_sample_do_not_change_the_gradient(
    tmp_path: Path,
) -> None:
    alone = gradients(tmp_path, ranks=1, budget=10_000)
    scale = max(float(grad.abs().max()) for grad in alone.values())
    for ranks, budget, seed in ((2, 10_000, 1), (2, 30, 2), (3, 30, 3)):
        shared = gradients(tmp_path, ranks, budget, seed)
        for name, grad in alone.items():
            torch.testing.assert_close(shared[name], grad, atol=1e-6 * scale, rtol=0)


@pytest.mark.multirank
async def test_all_ranks_leave_a_run_that_another_learner_took_and_continue(
    place: Place, store: Store
) -> None:
    """The other learner takes each run and dies, so these ranks get it again. They learn it when
    they report progress of the supervised run, and when version 3 is published."""
    await add_sums(store, place.data)
    await submit(store, "first", SFT | {"training": {"max_steps": 300, "rows_per_step": 8}})
    config = rl(
        algorithm={"prompts_per_step": 4, "samples_per_prompt": 4, "kl": {"type": "k1"}},
        training={"max_steps": 6, "checkpoint_every": 2, "tokens_per_microbatch": 64},
    )
    await submit(store, "second", config)
    go_on = place.data / "go-on"
    ranks = place.ranks(2, STOPPING, "published?", str(go_on))

    async def reached(run: str, step: int) -> bool:
        assert [rank.poll() for rank in ranks] == [None, None], place.log.read_text()[-2000:]
        record = await store.runs.get(run)
        return record is not None and record.state is RunState.RUNNING and record.step >= step

    async with serving(store, Volume(place.data), "second", parse_config(config)):
        for run, step in (("first", 1), ("second", 4)):
            await eventually(partial(reached, run, step))
            await store.runs.acquire(run, "another")
            if run == "second":
                go_on.touch()
            record = await ended(store, run)
            assert (record.state, record.reason) == (RunState.SUCCEEDED, "")
            assert [name for name, _ in await store.runs.lineages(run)].index("another") == 1
    found = await store.ledger.audit("second")
    assert (found.trained, found.in_flight, found.problems) == (6 * 4, 0, [])
    # Each rank keeps its share of each group.
    await eventually(partial(kept, place, 6))
    folder = place.data / "runs/second/rollouts"
    assert {path.name for path in folder.glob("index*")} == {
        "index-rank-0000.bin",
        "index-rank-0001.bin",
    }
    events = await store.events.read("second", "0")
    warnings = [event.data["message"] for event in events if event.kind == "warning"]
    assert any(message.startswith("algorithm.kl.type: the gradient of k1") for message in warnings)
    said = place.log.read_text()
    assert said.count("another learner has taken this run over") == 2
    assert "Traceback" not in said
    for rank in ranks:
        rank.terminate()
    assert [rank.wait() for rank in ranks] == [0, 0]


@pytest.mark.multirank
async def test_a_run_whose_ranks_share_rows_trains_what_was_sampled(
    place: Place, store: Store
) -> None:
    """With a critic and a reference, from a supervised run that was also trained so; and a run that
    this many ranks cannot share."""
    await add_sums(store, place.data)
    section = {"max_steps": 10, "rows_per_step": 8, "context_parallel": 2}
    await submit(store, "first", SFT | {"training": section})
    config = rl(
        algorithm={
            "prompts_per_step": 4,
            "samples_per_prompt": 4,
            "advantage": {"type": "gae"},
            "critic": {},
            "kl": {"type": "k3"},
        },
        training={"max_steps": 3, "tokens_per_microbatch": 64, "context_parallel": 2},
    )
    await submit(store, "second", config)
    await submit(store, "third", SFT | {"training": section | {"context_parallel": 3}})
    ranks = place.ranks(2)
    async with serving(store, Volume(place.data), "second", parse_config(config)):
        records = [await ended(store, run) for run in ("first", "second", "third")]
    assert [record.state for record in records[:2]] == [RunState.SUCCEEDED] * 2, records
    assert records[2].reason == (
        "training.context_parallel 3 does not divide the learner's 2 ranks: choose a divisor"
    )
    assert records[1].computation["device"].startswith("2 × rank on a CPU, PyTorch ")
    assert records[1].computation["activations"].startswith("kept: the learner computes on a cpu")
    assert records[1].computation["compile"].startswith("off: on a CPU")
    assert records[1].computation["parallel"] == "ddp on 2 ranks, of which 2 share each micro-batch"
    rows = steps(place, "second")
    assert len(rows) == 3
    await eventually(partial(kept, place, 3))
    newest = page(place.data / "runs/second/rollouts", RolloutFilter(), None, 1).rollouts[0]
    whole = group(place.data / "runs/second/rollouts", "second", newest.step, newest.group)
    assert whole is not None
    assert all(len(s.advantages or []) == s.length and s.advantage is None for s in whole.samples)
    assert all(row.get("mismatch/logprob_max", 0) < 1e-3 for row in rows)
    found = await store.ledger.audit("second")
    assert (found.trained, found.in_flight, found.problems) == (3 * 4, 0, [])
    for rank in ranks:
        rank.terminate()
    assert [rank.wait() for rank in ranks] == [0, 0]
