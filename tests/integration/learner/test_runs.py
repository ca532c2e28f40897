"""A real learner on a real Redis: runs in order, killed, cancelled, resumed, refused."""

import asyncio
import json
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from learner.checkpoints.checkpoint_reader import verify
from learner.checkpoints.checkpoint_writer import CRITIC
from services.contracts.config import parse_config
from services.contracts.devices import LearnerDevices
from services.contracts.events import Event, RunEvent
from services.contracts.records import DatasetRecord, RunRecord, RunState
from services.contracts.rows.dataset import Row
from services.datasets import append_rows
from services.rollouts.parts import part_name
from services.rollouts.reader import page
from services.rollouts.rollout_filter import RolloutFilter
from services.store import Store
from services.volume import Volume
from services.volume.kept_checkpoints import pin
from tests.integration.learner.conftest import Place, placed, stored
from tests.integration.learner.forked import Learner
from tests.integration.learner.torch_worker import TorchWorker, eventually, serving

SFT: dict[str, Any] = {
    "type": "sft",
    "model": {
        "source": "scratch",
        "hidden_size": 32,
        "layers": 2,
        "heads": 2,
        "intermediate_size": 48,
        "max_length": 32,
    },
    "data": {"dataset": "sums", "template": "{prompt}="},
    "training": {"max_steps": 20, "rows_per_step": 32},
    "validation": {"every": 10},
}


def rl(**changes: Any) -> dict[str, Any]:
    return {
        "type": "rl",
        "model": {"path": "run:first"},
        "data": {"dataset": "sums", "template": "{prompt}=", "chat_template": "none"},
        "rewards": [{"verifier": "math"}],
        "sampling": {"max_tokens": 5},
        "rollout": {"max_staleness": 1},
        "algorithm": {"prompts_per_step": 4, "samples_per_prompt": 4},
        "optimizer": {"type": "adamw", "lr": 1e-3},
        "training": {"max_steps": 30, "checkpoint_every": 5, "tokens_per_microbatch": 64},
    } | changes


async def add_sums(store: Store, data: Path) -> None:
    rows = [Row(prompt=f"{a}+{b}", answer=str(a + b)) for a in range(20) for b in range(20)]
    segment = append_rows(data, "sums", rows)
    await store.datasets.add(
        DatasetRecord(id="sums", name="sums", rows=400, created=time.time(), segments=[segment])
    )


async def submit(store: Store, id: str, raw: dict[str, Any], **fields: Any) -> None:
    config = parse_config(raw)
    await store.runs.submit(
        RunRecord(
            id=id,
            name=id,
            pool="default",
            kind=config.type,
            state=RunState.QUEUED,
            config=config.model_dump(mode="json"),
            created=time.time(),
            max_steps=config.training.max_steps,
            **fields,
        )
    )


async def ended(store: Store, run: str) -> RunRecord:
    async def final() -> RunRecord | None:
        record = await store.runs.get(run)
        return record if record and record.state.final else None

    record: RunRecord = await eventually(final)
    return record


async def supervised(place: Place, store: Store) -> Learner:
    """A learner that has trained the run `first` on the dataset `sums`, and is free for the next
    run."""
    await add_sums(store, place.data)
    await submit(store, "first", SFT)
    learner = place.learner()
    await ended(store, "first")
    return learner


def steps(place: Place, run: str, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    lines = (place.data / f"runs/{run}/{file}").read_text().splitlines()
    return [json.loads(line) for line in lines]


def assert_answers_fit(place: Place, run: str, rows: list[dict[str, Any]]) -> None:
    """Assert that each step in `rows` has kept all its answers, with their TorchWorker rewards and
    the log-probabilities that its metrics were computed from."""
    folder = place.data / f"runs/{run}/rollouts"
    answers = [
        answer
        for row in rows
        for answer in pq.read_table(folder / part_name(row["step"], 0)).to_pylist()
    ]
    shown = page(folder, RolloutFilter(), None, 10_000)
    assert (len(shown.rollouts), shown.next, shown.damaged) == (len(answers), None, [])
    assert [answer["step"] for answer in answers] == [r["step"] for r in rows for _ in range(16)]
    for answer in answers:
        text = re.sub("<(pad|bos|eos|unk)>", "", answer["completion"])
        right = answer["status"] == "correct"
        assert answer["reward"] == pytest.approx(right + 0.1 * len(text))
        assert (answer["finish_reason"] == "stop") == answer["completion"].endswith("<eos>")
        assert answer["prompt"].startswith("<bos>")
        assert answer["prompt"].endswith("=")
    for row, of_step in zip(rows, batched(answers, 16), strict=True):
        entropies = [value for answer in of_step for value in answer["entropy"]]
        assert sum(entropies) / len(entropies) == pytest.approx(row["train/entropy"], rel=1e-4)
        gaps = [
            abs(learner - sampler)
            for answer in of_step
            for learner, sampler in zip(
                answer["learner_logprobs"], answer["sampler_logprobs"], strict=True
            )
        ]
        assert max(gaps) == pytest.approx(row["mismatch/sampler_logprob_max"], abs=1e-4)


def batched(answers: list[dict[str, Any]], size: int) -> list[list[dict[str, Any]]]:
    return [answers[i : i + size] for i in range(0, len(answers), size)]


@dataclass
class Story:
    """The outcome of four runs. `first` makes a model. The learner is killed in `second`, which is
    cancelled later. `forked` is a fork of it, made while it trained, and `third` resumes it."""

    place: Place
    first: RunRecord
    second: RunRecord
    third: RunRecord
    forked: RunRecord
    before: dict[str, str]
    """Checksums of the versions of `second` that were published before the kill, by tag."""
    versions: dict[str, str]
    """Checksums of all its versions."""
    exit_code: int
    devices: LearnerDevices | None
    events: list[Event]
    """The learner's checksums."""
    fork: int
    """The step of the checkpoint at which the learner was killed and the fork began."""


async def checkpoint_pinned(place: Place, store: Store) -> dict[str, Any]:
    """Pin the checkpoint of `second`, and return the fields of a fork that starts from it."""
    record = await store.runs.get("second")
    assert record is not None
    assert record.state is RunState.RUNNING
    pin(place.data / str(record.checkpoint), True)
    step = record.committed_step
    at = {"committed_step": step, "step": step, "version": step, "checkpoint": record.checkpoint}
    return at | {"resume_from": "second", "resume_step": step, "is_fork": True}


async def make_story(place: Place) -> Story:
    volume = Volume(place.data)
    async with stored(place) as store:
        learner = await supervised(place, store)
        await submit(store, "second", rl())
        worker = TorchWorker(store, volume, "second", parse_config(rl()))  # type: ignore[arg-type]
        working = asyncio.create_task(worker.work())

        async def reached(step: int) -> bool:
            record = await store.runs.get("second")
            return record is not None and record.step >= step

        await eventually(lambda: reached(8))
        # It makes no other checkpoint before it is killed.
        learner.send_signal(signal.SIGSTOP)
        start = await checkpoint_pinned(place, store)
        fewer = rl(training=rl()["training"] | {"max_steps": start["step"] + 2})
        await submit(store, "forked", fewer, **start)
        learner.send_signal(signal.SIGKILL)
        learner.wait()
        before = dict(worker.digests)
        learner = place.learner()
        await eventually(lambda: reached(start["step"] + 9))
        await store.runs.cancel("second")
        second = await ended(store, "second")
        working.cancel()
        forking = TorchWorker(store, volume, "forked", parse_config(fewer))  # type: ignore[arg-type]
        working = asyncio.create_task(forking.work())
        forked = await ended(store, "forked")
        working.cancel()
        longer = rl(training=rl()["training"] | {"max_steps": second.step + 3})
        await submit(store, "third", longer, resume_from="second")
        resumed = TorchWorker(store, volume, "third", parse_config(longer))  # type: ignore[arg-type]
        working = asyncio.create_task(resumed.work())
        third = await ended(store, "third")
        working.cancel()
        learner.send_signal(signal.SIGTERM)
        exit_code = learner.wait()
        first = await ended(store, "first")
        events = [
            event
            for run in ("first", "second", "third", "forked")
            for event in await store.events.read(run, "0")
        ]
        devices = await store.pools.devices("default")
    return Story(
        place, first, second, third, forked, before, worker.digests, exit_code, devices, events,
        start["step"],
    )  # fmt: skip


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with placed(tmp_path_factory.mktemp("story")) as place:
        yield asyncio.run(make_story(place))


def test_supervised_training_lowers_the_loss_and_ends_with_a_model_that_transformers_loads(
    story: Story,
) -> None:
    first = story.first
    assert (first.state, first.reason) == (RunState.SUCCEEDED, "")
    assert first.checkpoint is not None
    AutoModelForCausalLM.from_pretrained(story.place.data / first.checkpoint)
    rows = steps(story.place, "first")
    losses = [row["validation/loss"] for row in rows if "validation/loss" in row]
    assert losses[-1] < losses[0]


def test_a_cancelled_run_ends_with_a_checkpoint_of_its_last_step(story: Story) -> None:
    second = story.second
    assert second.state is RunState.CANCELLED
    assert second.step == second.committed_step
    assert second.checkpoint is not None
    assert verify(story.place.data / second.checkpoint).step == second.step
    folder = story.place.data / "runs/second/checkpoints"
    # The fork's start is pinned.
    first = min(path.name[:11] for path in folder.glob("step-*"))
    assert first == f"step-{story.fork:06}"
    assert len(list(folder.glob("step-*"))) == 3


def test_a_killed_learner_replays_its_recorded_batches_bit_for_bit(story: Story) -> None:
    assert story.second.checkpoint is not None
    lineages = verify(story.place.data / story.second.checkpoint).lineages
    (old, _), (_, fork) = lineages
    assert fork == story.fork
    # The restored version and later versions have the same weights, bit for bit.
    common = [
        (xxh3, story.before[f"{old}:{tag.partition(':')[2]}"])
        for tag, xxh3 in story.versions.items()
        if not tag.startswith(old) and f"{old}:{tag.partition(':')[2]}" in story.before
    ]
    assert common, (lineages, story.before, story.versions)
    assert all(ours == theirs for ours, theirs in common)


def test_each_step_of_a_killed_run_has_one_row_and_answers_that_fit_it(story: Story) -> None:
    rows = steps(story.place, "second")
    assert [row["step"] for row in rows] == list(range(1, story.second.step + 1))
    assert all(row["staleness/max"] <= 1 for row in rows)
    assert all(row.get("mismatch/logprob_max", 0) < 1e-3 for row in rows)
    assert_answers_fit(story.place, "second", rows)


def test_a_run_that_resumes_another_goes_on_at_its_step(story: Story) -> None:
    last = story.second.step
    assert (story.third.state, story.third.step) == (RunState.SUCCEEDED, last + 3)
    assert [row["step"] for row in steps(story.place, "third")] == [last + i for i in (1, 2, 3)]
    assert story.exit_code == 0


def test_a_fork_trains_from_a_checkpoint_of_a_run_that_trained_on(story: Story) -> None:
    assert (story.forked.state, story.forked.step) == (RunState.SUCCEEDED, story.fork + 2)
    rows = steps(story.place, "forked")
    assert [row["step"] for row in rows] == [story.fork + 1, story.fork + 2]
    assert story.second.step >= story.fork + 9
    assert_answers_fit(story.place, "forked", rows)


def test_the_events_of_runs_are_those_that_the_api_describes(story: Story) -> None:
    described = [RunEvent.model_validate(event.model_dump()).root for event in story.events]
    shown = [event.model_dump(exclude_unset=True) for event in described]
    assert shown == [event.model_dump() for event in story.events]
    assert {event.kind for event in described} >= {"state", "step", "progress", "checkpoint"}


def test_a_learner_says_how_much_memory_its_host_has(story: Story) -> None:
    assert story.devices is not None
    assert story.devices.host is not None
    assert story.devices.host.ranks == story.devices.ranks == 1
    assert story.devices.host.free > 1 << 28


def test_each_line_of_the_learners_log_names_the_process_and_the_run(story: Story) -> None:
    lines = [json.loads(line) for line in story.place.log.read_text().splitlines()]
    assert {line["process"] for line in lines} == {"learner"}
    named = {line.get("run") for line in lines if line["event"] != "learner ready"}
    assert named == {"first", "second", "forked", "third"}


VALUED: dict[str, Any] = {
    "prompts_per_step": 4,
    "samples_per_prompt": 4,
    "minibatches": 2,
    "advantage": {"type": "gae", "lambda": 0.9},
    "proximal": {"type": "lagged", "every": 3},
    "kl": {"type": "k1_in_reward", "beta": 0.01, "reference": {"type": "ema", "rate": 0.2}},
    "critic": {
        "optimizer": {"type": "adamw", "lr": 1e-3},
        "warmup_steps": 2,
        "normalisation": {"type": "exponential"},
    },
}


POLICIES = (
    "model.safetensors",
    "training/lagged.safetensors",
    "training/reference.safetensors",
)


async def test_critic_and_copies_survive_kill_9_exactly(place: Place, store: Store) -> None:
    volume = Volume(place.data)
    learner = await supervised(place, store)
    first = await ended(store, "first")
    raw = rl(algorithm=VALUED, training=rl()["training"] | {"max_steps": 12})
    await submit(store, "valued", raw)
    record: RunRecord | None = None

    async def reached() -> bool:
        nonlocal record
        record = await store.runs.get("valued")
        return record is not None and record.step >= 7

    async with serving(store, volume, "valued", parse_config(raw)) as worker:
        await eventually(reached)
        learner.send_signal(signal.SIGKILL)
        learner.wait()
        before = dict(worker.digests)
        old_rows = {row["step"]: row for row in steps(place, "valued")}
        assert record is not None
        assert record.checkpoint is not None
        saved = place.data / record.checkpoint / CRITIC
        head = load_file(saved / "model.safetensors")["score.weight"]
        learner = place.learner()
        ended_record = await ended(store, "valued")

    assert (ended_record.state, ended_record.step) == (RunState.SUCCEEDED, 12)
    # It has learned by then, and its units come from the returns so far.
    assert float(head.abs().max()) > 0
    assert ended_record.checkpoint is not None
    state = verify(place.data / ended_record.checkpoint)
    assert state.critic_moments[0] == pytest.approx(1 - 0.99995**12)
    # The lagged copy is the policy of step 12. The average is still moving from the start.
    last = place.data / ended_record.checkpoint
    weights = {name: load_file(last / name) for name in POLICIES}
    policy, lagged, reference = (found["model.norm.weight"] for found in weights.values())
    start = load_file(place.data / str(first.checkpoint) / "model.safetensors")["model.norm.weight"]
    assert torch.equal(lagged, policy)
    far, moved = (reference - policy).norm(), (reference - start).norm()
    assert moved > 0
    assert 0 < far < (start - policy).norm()
    rows = {row["step"]: row for row in steps(place, "valued")}
    assert sorted(rows) == list(range(1, 13))
    assert [rows[step]["train/updates"] for step in (1, 2, 3)] == [0, 0, 2]
    # Replay is exact: the same versions, and the same values and errors of the critic.
    fork = state.lineages[1][1]
    # Of every fifth step.
    assert fork in (5, 10)
    again = {tag.partition(":")[2]: x for tag, x in worker.digests.items() if tag not in before}
    old = {tag.partition(":")[2]: x for tag, x in before.items()}
    assert again.keys() & old.keys()
    assert all(again[version] == old[version] for version in again.keys() & old.keys())
    repeated = [step for step in old_rows if step > fork]
    assert repeated
    for step in repeated:
        for name in (
            "critic/loss",
            "critic/value_mean",
            "critic/grad_norm",
            "train/loss",
            "train/kl",
        ):
            assert rows[step][name] == old_rows[step][name], (step, name)

    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0


async def test_a_users_mistake_fails_the_run_in_words_and_the_learner_continues(
    place: Place, store: Store
) -> None:
    await add_sums(store, place.data)
    no_dataset = SFT | {"data": {"dataset": "nowhere"}}
    letters = SFT | {"data": {"dataset": "sums", "template": "what is {prompt}?"}}
    wrong = {
        "a": (rl(model={"path": "/nowhere"}), "model /nowhere: no such folder"),
        "b": (rl(model={"path": "run:nobody"}), "run nobody does not exist"),
        "c": (no_dataset, "there is no dataset 'nowhere'"),
        "d": (letters, "row 0 holds characters that the tokenizer does not know"),
    }
    for id, (raw, _) in wrong.items():
        await submit(store, id, raw)
    learner = place.learner()
    for id, (_, message) in wrong.items():
        record = await ended(store, id)
        assert record.state is RunState.FAILED
        assert message in record.reason
    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0


async def test_a_checkpoint_of_another_version_pauses_the_run_and_ends_the_learner(
    place: Place, store: Store
) -> None:
    name = "runs/first/checkpoints/step-000005-aaa"
    (place.data / name / "training").mkdir(parents=True)
    (place.data / name / "training/state.json").write_text(json.dumps({"schema": 99}))
    (place.data / name / "manifest.json").write_text(json.dumps({"files": {}}))
    await add_sums(store, place.data)
    await submit(store, "first", rl(model={"path": "/anywhere"}), checkpoint=name)

    assert await asyncio.to_thread(place.learner().wait, 60) == 2

    why = "checkpoint step-000005-aaa has schema 99, this process reads 2: run the same version"
    record = await store.runs.get("first")
    assert record is not None
    assert (record.state, record.reason[: len(why)]) == (RunState.PAUSED, why)
    assert f"error: {why}" in place.log.read_text()
    counts = json.loads((place.data / "runs/first/crashes-0.json").read_text())
    assert counts["crashes"] == 0, "else the run would fail in the end"


async def test_a_second_learner_of_a_pool_is_refused(place: Place, store: Store) -> None:
    learner = await supervised(place, store)
    second = place.learner()
    assert await asyncio.to_thread(second.wait, 60) == 3
    assert "pool 'default' already has a learner" in place.log.read_text()
    learner.send_signal(signal.SIGTERM)
    assert learner.wait() == 0


def test_without_redis_the_learner_says_so(tmp_path: Path) -> None:
    place = Place("redis://:secret@127.0.0.1:1/0", tmp_path)
    assert place.learner().wait(timeout=60) == 2
    said = place.log.read_text()
    assert "cannot use Redis" in said
    assert "secret" not in said
    assert "Traceback" not in said


@pytest.mark.multirank
async def test_two_ranks_train_a_run_together(place: Place, store: Store) -> None:
    await add_sums(store, place.data)
    await submit(store, "first", SFT)
    raw = rl(algorithm=VALUED, training=rl()["training"] | {"max_steps": 4})
    await submit(store, "second", raw)
    ranks = place.ranks(2)
    worker = TorchWorker(
        store,
        Volume(place.data),
        "second",
        parse_config(raw),  # type: ignore[arg-type]
    )
    working = asyncio.create_task(worker.work())
    record = await ended(store, "second")
    working.cancel()
    assert (record.state, record.step) == (RunState.SUCCEEDED, 4)
    assert [row["train/updates"] for row in steps(place, "second")] == [0, 0, 2, 2]
    assert all(row.get("mismatch/logprob_max", 0) < 1e-3 for row in steps(place, "second"))
    for rank in ranks:
        rank.terminate()
    assert [rank.wait() for rank in ranks] == [0, 0]
