"""Supervised runs on a real learner: killed, packed, mixed, validated, adapted, started from."""

import asyncio
import json
import math
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from learner.checkpoints.checkpoint_reader import verify
from services.contracts.records import DatasetRecord, RunRecord, RunState
from services.contracts.rows.dataset import Row
from services.datasets import append_rows
from services.gateway.run_edits import RunPatch, edit_run
from services.gateway.run_pauses import pause_run, resume_run
from services.store import Store
from tests.integration.learner.conftest import Place, placed, stored
from tests.integration.learner.forked import Learner
from tests.integration.learner.test_runs import SFT, add_sums, ended, steps, submit
from tests.integration.learner.torch_worker import eventually

PACKED: dict[str, Any] = SFT | {
    "data": {
        "dataset": "sums",
        "template": "{prompt}=",
        "max_seq_len": 32,
        "overlong": "crop",
        "mix": [{"dataset": "products", "repeats": 2}],
    },
    "packing": {"tokens_per_step": 320, "buffer": 20},
    "training": {"max_steps": 120, "checkpoint_every": 5, "keep_checkpoints": 1},
    "validation": {"every": 20, "share": 0.05},
}
ADAPTED: dict[str, Any] = {
    "type": "sft",
    "model": {"path": "run:whole@5", "lora": {"rank": 2}},
    "data": {"dataset": "sums", "template": "{prompt}="},
    "optimizer": {"type": "adamw", "lr": 0.5},
    "training": {"rows_per_step": 16, "max_steps": 60},
    "validation": {"datasets": ["products"], "every": 2, "rows": 20, "patience": 3},
}
COMPARED: dict[str, Any] = {
    "type": "sft",
    "objective": {"type": "dpo", "beta": 0.5},
    "model": {"path": "run:whole"},
    "data": {"dataset": "pairs", "template": "{prompt}="},
    "optimizer": {"type": "adamw", "lr": 0.001},
    "schedule": {"type": "constant"},
    "training": {"rows_per_step": 8, "max_steps": 12, "offload": ["reference"]},
    "validation": {"share": 0.1, "every": 6},
}


EDITED: dict[str, Any] = SFT | {
    "optimizer": {"type": "adamw", "lr": 1e-3},
    "schedule": {"type": "constant"},
    "training": {"rows_per_step": 8, "epochs": 100, "checkpoint_every": 10_000},
    "validation": {"every": 10_000},
}


@dataclass
class Story:
    """Runs of one learner. `whole` was left alone; `killed` is the same run, whose learner was
    killed three times. `adapted` starts from an early checkpoint of `first`, and gets worse.
    `compared` prefers right answers. `half` is the first half of the same run; `rest` resumes it,
    and so does `fewer`, with fewer epochs than it has had. `beside` trains adapters on pairs.
    `edited` was changed while it was paused, and its learner was killed before a checkpoint."""

    place: Place
    whole: RunRecord
    killed: RunRecord
    adapted: RunRecord
    again: RunRecord
    compared: RunRecord
    rest: RunRecord
    beside: RunRecord
    fewer: RunRecord
    edited: RunRecord
    warnings: list[str]


async def add_products(store: Store, data: Path) -> None:
    rows = [Row(prompt=f"{a}*{b}", answer=str(a * b)) for a in range(12) for b in range(12)]
    segment = append_rows(data, "products", rows)
    record = DatasetRecord(
        id="products", name="products", rows=144, created=time.time(), segments=[segment]
    )
    await store.datasets.add(record)


async def add_pairs(store: Store, data: Path) -> None:
    rows = [
        Row(prompt=f"{a}+{b}", answer={"chosen": str(a + b), "rejected": str(a + 2 * b + 7)})
        for a in range(10)
        for b in range(10)
    ]
    segment = append_rows(data, "pairs", rows)
    record = DatasetRecord(
        id="pairs", name="pairs", rows=100, created=time.time(), segments=[segment]
    )
    await store.datasets.add(record)


async def edit(store: Store, learner: Learner, place: Place) -> tuple[Learner, RunRecord]:
    """Pause the run `edited`, change it, resume it, and kill its learner. Return the learner that
    went on, and the run once it has ended."""
    deps: Any = SimpleNamespace(store=store)

    async def now() -> RunRecord:
        record = await store.runs.get("edited")
        assert record is not None
        return record

    async def paused() -> bool:
        return (await now()).state is RunState.PAUSED

    async def trains() -> bool:
        return (await now()).state is RunState.RUNNING and (await now()).step > 0

    await submit(store, "edited", EDITED)
    await eventually(trains)
    await pause_run(deps, await now(), "ann")
    await eventually(paused)
    stands = (await now()).step
    values = {"max_steps": stands + 150, "lr": 1e-4, "evaluation_every": 50}
    await edit_run(deps, await now(), RunPatch(**values), "ann")
    await resume_run(deps, await now(), "ann")

    async def has_changed() -> bool:
        return (await now()).step > stands

    await eventually(has_changed)
    learner.send_signal(signal.SIGKILL)
    learner.wait()
    return place.learner(), await ended(store, "edited")


async def make_story(place: Place) -> Story:
    async with stored(place) as store:
        await add_sums(store, place.data)
        await add_products(store, place.data)
        await add_pairs(store, place.data)
        await submit(
            store, "whole", PACKED | {"training": PACKED["training"] | {"keep_checkpoints": 30}}
        )
        await submit(store, "killed", PACKED)
        learner = place.learner()
        whole = await ended(store, "whole")
        for step in (10, 50, 90):

            async def reached(least: int = step) -> bool:
                record = await store.runs.get("killed")
                return record is not None and record.step >= least

            await eventually(reached)
            learner.send_signal(signal.SIGKILL)
            learner.wait()
            learner = place.learner()
        killed = await ended(store, "killed")
        learner, edited = await edit(store, learner, place)
        await submit(store, "adapted", ADAPTED)
        adapted = await ended(store, "adapted")
        longer = PACKED | {"training": PACKED["training"] | {"max_steps": 123}}
        await submit(store, "again", longer, resume_from="killed")
        again = await ended(store, "again")
        await submit(store, "compared", COMPARED)
        half = COMPARED["training"] | {"max_steps": 6}
        await submit(store, "half", COMPARED | {"training": half})
        lora = {"path": "run:whole", "lora": {"rank": 2}}
        half = half | {"offload": []}
        await submit(store, "beside", COMPARED | {"model": lora, "training": half})
        compared, _, beside = [await ended(store, id) for id in ("compared", "half", "beside")]
        await submit(store, "rest", COMPARED, resume_from="half")
        rest = await ended(store, "rest")
        fewer = COMPARED | {"training": {"rows_per_step": 8, "epochs": 0.1}}
        await submit(store, "fewer", fewer, resume_from="half")
        fewer_epochs = await ended(store, "fewer")
        events = await store.events.read("adapted", "0")
        learner.send_signal(signal.SIGTERM)
        learner.wait()
    said = [event.data["message"] for event in events if event.kind == "warning"]
    parts = whole, killed, adapted, again, compared, rest, beside, fewer_epochs, edited
    return Story(place, *parts, said)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with placed(tmp_path_factory.mktemp("supervised")) as place:
        yield asyncio.run(make_story(place))


def tensors(place: Place, run: RunRecord) -> dict[str, torch.Tensor]:
    assert run.checkpoint is not None
    folder = place.data / run.checkpoint
    return load_file(folder / "model.safetensors") | load_file(
        folder / "training/optimizer.safetensors"
    )


def test_a_run_whose_learner_is_killed_again_and_again_ends_with_the_same_weights(
    story: Story,
) -> None:
    assert (story.whole.state, story.killed.state) == (RunState.SUCCEEDED, RunState.SUCCEEDED)
    whole, killed = tensors(story.place, story.whole), tensors(story.place, story.killed)
    assert whole.keys() == killed.keys()
    assert all(torch.equal(whole[name], killed[name]) for name in whole)


def test_each_step_of_a_killed_run_has_one_row_with_the_same_numbers(story: Story) -> None:
    rows = {run: steps(story.place, run) for run in ("whole", "killed")}
    assert [row["step"] for row in rows["killed"]] == list(range(121))
    same = ("train/loss", "train/loss/products", "train/epoch", "data/padded", "validation/loss")
    for one, other in zip(rows["whole"], rows["killed"], strict=True):
        assert [one.get(name) for name in same] == [other.get(name) for name in same]
    last = rows["whole"][-1]
    assert last["train/loss_smoothed"] < rows["whole"][1]["train/loss"]
    assert last["validation/loss"] < rows["whole"][0]["validation/loss"]
    assert 0 < last["data/padded"] < 0.2
    assert last["train/flops"] > 0
    assert last["time/remaining"] == 0
    parts = [last[f"time/{name}"] for name in ("rows", "training", "validation", "checkpointing")]
    assert all(seconds > 0 for seconds in parts)
    assert sum(parts) <= last["time/step"]


def test_the_checkpoint_of_the_lowest_validation_loss_is_kept(story: Story) -> None:
    folder = story.place.data / "runs/killed/checkpoints"
    best = int(steps(story.place, "killed")[-1]["validation/best_step"])
    kept = {verify(path).step for path in folder.iterdir()}
    assert kept == {best, 120}


def test_adapters_start_from_a_step_of_another_run_and_end_early(story: Story) -> None:
    adapted = story.adapted
    assert adapted.state is RunState.SUCCEEDED, adapted.reason
    assert adapted.checkpoint is not None
    folder = story.place.data / adapted.checkpoint
    assert (folder / "adapter_model.safetensors").exists()
    assert not (folder / "model.safetensors").exists()
    rows = [row for row in steps(story.place, "adapted") if "validation/loss" in row]
    best = min(rows, key=lambda row: row["validation/loss"])["step"]
    assert adapted.step < 60
    assert adapted.step == best + 2 * 3
    if best:
        assert f"run:adapted@{best} starts from there" in story.warnings[-1]


def test_a_run_that_resumes_another_goes_on_in_its_order(story: Story) -> None:
    assert (story.again.state, story.again.step) == (RunState.SUCCEEDED, 123)
    assert [row["step"] for row in steps(story.place, "again")] == [121, 122, 123]
    before = steps(story.place, "killed")[-1]["train/epoch"]
    assert steps(story.place, "again")[0]["train/epoch"] > before


def test_a_run_on_pairs_begins_at_its_reference_and_learns_to_prefer_the_chosen_answers(
    story: Story,
) -> None:
    for run in (story.compared, story.beside):
        assert run.state is RunState.SUCCEEDED, run.reason
        rows = steps(story.place, run.id)
        assert rows[0]["validation/loss"] == pytest.approx(math.log(2), rel=1e-6)
        assert rows[1]["train/loss"] == pytest.approx(math.log(2), rel=1e-6)
        assert rows[1]["train/margin"] == pytest.approx(0, abs=1e-5)
        assert rows[-1]["validation/margin"] > 0
    last = steps(story.place, "compared")[-1]
    assert last["validation/accuracy"] > 0.5
    assert last["validation/loss"] < math.log(2)
    assert last["train/chosen_reward"] > last["train/rejected_reward"]
    assert last["throughput/samples_per_second"] > 0


def test_a_run_on_pairs_that_is_resumed_ends_with_the_same_weights(story: Story) -> None:
    assert story.rest.state is RunState.SUCCEEDED, story.rest.reason
    whole, resumed = tensors(story.place, story.compared), tensors(story.place, story.rest)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_run_resumed_for_fewer_epochs_than_it_has_had_is_refused(story: Story) -> None:
    assert story.fewer.state is RunState.FAILED
    assert story.fewer.reason == (
        "the run that is resumed has trained 6 steps, and training.epochs 0.1 make 2: raise "
        "training.epochs"
    )


def test_changes_of_a_supervised_run_hold_from_their_step_on_also_in_steps_that_are_trained_again(
    story: Story,
) -> None:
    edited, rows = story.edited, steps(story.place, "edited")
    (taken,) = {edit.step for edit in edited.edits}
    assert taken is not None
    assert (edited.state, edited.step, edited.max_steps) == (
        RunState.SUCCEEDED,
        edited.config["training"]["max_steps"],
        edited.config["training"]["max_steps"],
    )
    assert [row["step"] for row in rows] == list(range(edited.step + 1))
    rates = [1e-3] * (taken - 1) + [1e-4] * (edited.step - taken + 1)
    assert [row["train/lr"] for row in rows[1:]] == pytest.approx(rates)
    validated = [row["step"] for row in rows if "validation/loss" in row]
    every = [step for step in range(taken, edited.step) if step % 50 == 0]
    assert validated == [0, *every, edited.step]


def test_rows_are_tokenised_once_for_all_runs_of_one_template(story: Story) -> None:
    made = list((story.place.data / "datasets").glob("*/tokens/*/*.arrow"))
    # The rows of sums and products, and of the two answers of pairs.
    assert len(made) == 2 + 2
    log = [json.loads(line) for line in story.place.log.read_text().splitlines()]
    errors = [line for line in log if line["level"] == "error"]
    assert [(line["event"], line["run"]) for line in errors] == [("run failed", "fewer")]


async def test_rows_that_do_not_fit_fail_the_run_and_the_next_trains_its_own_tokenizer(
    place: Place, store: Store
) -> None:
    await add_sums(store, place.data)
    data = SFT["data"] | {"max_seq_len": 8}
    wrong = {
        "a": (SFT | {"data": data}, "in sums, dataset row 10 has 9 tokens, .* crop or skip"),
        "b": (SFT | {"data": data | {"train_on": "last", "dataset": "no"}}, "no dataset 'no'"),
        "c": (
            SFT | {"validation": {"share": 0.001, "patience": 2}},
            r"there is no row to validate on \(validation.share 0.001 of",
        ),
    }
    for id, (raw, _) in wrong.items():
        await submit(store, id, raw)
    learner = place.learner()
    for id, (_, message) in wrong.items():
        record = await ended(store, id)
        assert record.state is RunState.FAILED
        assert re.search(message, record.reason), record.reason
    model = SFT["model"] | {"max_length": 64, "tokenizer": {"type": "bpe", "vocabulary": 512}}
    training = {"max_steps": 3, "rows_per_step": 8}
    data = SFT["data"] | {"mix": [{"dataset": "sums"}]}
    await submit(store, "bpe", SFT | {"model": model, "training": training, "data": data})
    own = await ended(store, "bpe")
    assert own.state is RunState.SUCCEEDED, own.reason
    # A dataset that is used twice has two names.
    assert {"train/loss/sums", "train/loss/sums#2"} <= steps(place, "bpe")[-1].keys()
    tokenizer = AutoTokenizer.from_pretrained(place.data / str(own.checkpoint))
    assert tokenizer.decode(tokenizer("12+7=")["input_ids"]) == "<bos>12+7="
    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0
