"""Batches are formed from the groups that are in the stream at that moment: a real Redis, no
training."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from learner.coordinate.coordinator import Coordinator
from learner.coordinate.waiting import WaitWatcher
from learner.distributed import Ranks
from learner.environment import RunEnvironment
from learner.errors import RunCannotGoOn
from learner.metrics.reward_metrics import outcome_sums
from learner.optim.optimizers import Optimizers
from learner.state import TrainingProgress, TrainingState
from learner.store.run_store import RunStore
from learner.store.thread import StoreThread
from services.contracts.config import RLConfig, parse_config
from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.groups.payload import Owner, PayloadFile, payload_name, reference
from services.contracts.records import WorkerRecord
from services.settings import Settings
from services.store import Store
from services.store.work.tasks import Lease
from services.volume import Volume, check_file
from tests.integration.learner.conftest import Place
from tests.integration.learner.test_runs import add_sums, rl, submit
from tests.unit.learner.policies import state_of, tiny_model, trajectory_group

VERSION = 3
ALONE = Ranks(0, 1, torch.device("cpu"))


@dataclass
class Scene:
    """A run at VERSION with max_staleness 1 and batches of two."""

    store: Store
    run: RunStore
    coordinator: Coordinator
    state: TrainingState
    data: Path

    async def lease(self, count: int, version: int = VERSION) -> list[Lease]:
        granted = await self.store.tasks.lease(
            "r",
            worker="w",
            lineage=self.run.lineage,
            version=version,
            count=count,
            ttl=60,
            reserve_bytes=100,
        )
        assert len(granted.leases) == count, granted
        return granted.leases

    async def complete(self, lease: Lease, version: int = VERSION, blob: bytes = b"group") -> None:
        assert await self.store.tasks.complete(
            "r",
            lease.attempt,
            min_version=version,
            lineage=self.run.lineage,
            blob=blob,
            lengths=GroupLengths(2, (3, 4)),
        )

    async def complete_large(self, lease: Lease, size: int) -> None:
        """A group with a payload outside of Redis."""
        name = payload_name(Owner("r", lease.task, lease.attempt), "0" * 16)
        file = PayloadFile(name, size)
        await self.complete(lease, blob=reference(file))

    async def next_batch(self) -> list[int]:
        command = await asyncio.to_thread(self.coordinator.next_command)
        assert command.kind == "train"
        return sorted(
            share.position for part in command.minibatches for shares in part for share in shares
        )


@pytest.fixture
async def scene(place: Place, store: Store) -> AsyncIterator[Scene]:
    await add_sums(store, place.data)
    raw = rl(
        model={"path": "org/model"},
        algorithm={"prompts_per_step": 2, "samples_per_prompt": 2},
        rollout={"max_staleness": 1},
    )
    await submit(store, "r", raw)
    config = parse_config(raw)
    assert isinstance(config, RLConfig)
    record = await store.runs.get("r")
    assert record is not None
    stop = threading.Event()
    settings = Settings.model_validate({"redis_url": place.redis_url, "data": place.data})
    with StoreThread(settings, stop) as thread:
        run = RunStore(thread, record)
        await asyncio.to_thread(run.acquire)
        loaded = tiny_model()
        progress = TrainingProgress("r", VERSION, VERSION, [(run.lineage, 0)], "org/model")
        optimizers = Optimizers(loaded.model, config.optimizer)
        state = state_of(loaded, optimizers, progress=progress)
        coordinator = Coordinator(
            config, 30, RunEnvironment(ALONE, run, Volume(place.data), stop), state
        )
        await asyncio.to_thread(coordinator.begin)
        yield Scene(store, run, coordinator, state, place.data)
        await asyncio.to_thread(coordinator.close)


async def warnings(scene: Scene) -> list[str]:
    events = await scene.store.events.read("r", "0")
    return [str(event.data["message"]) for event in events if event.kind == "warning"]


async def warned(scene: Scene, *workers: WorkerRecord, seconds: float = 60.0) -> list[str]:
    """Return the warnings so far, after `seconds` of waiting with these workers."""
    for worker in workers:
        await scene.store.workers.heartbeat(worker)
    waiting = scene.coordinator._waiting
    waiting.begin()
    with pytest.MonkeyPatch.context() as patch:
        later = time.monotonic() + seconds
        patch.setattr(time, "monotonic", lambda: later)
        await asyncio.to_thread(waiting.look, "groups")
    return await warnings(scene)


def worker(id: str, state: str, error: str = "") -> WorkerRecord:
    record = {"pool": "default", "host": "h", "pid": 1, "state": state, "error": error}
    return WorkerRecord.model_validate({"id": id, **record})


async def test_workers_that_start_give_no_warning_unless_one_has_an_error(scene: Scene) -> None:
    assert await warned(scene, worker("a", "starting"), worker("b", "generating")) == []
    (warning,) = await warned(scene, worker("b", "generating", "vLLM ended"))
    assert warning == "waiting for groups for 60 s: b: vLLM ended"


async def test_a_long_wait_for_agents_does_not_blame_a_worker_that_serves(scene: Scene) -> None:
    data = {"dataset": "sums", "chat_template": "auto"}
    config = parse_config(rl(data=data, rollout={"episode": "sessions"}))
    assert isinstance(config, RLConfig)
    coordinator = scene.coordinator
    coordinator._waiting = WaitWatcher(
        scene.run, coordinator._publisher, config, lambda: 0, lambda: False
    )
    serves = worker("w", "idle").model_copy(update={"run": "r", "version": VERSION})
    (warning,) = await warned(scene, serves)
    assert warning == (
        "waiting for groups for 60 s: no agent plays, or agents have ended too few of their "
        "sessions"
    )
    (_, warning) = await warned(scene, worker("w", "updating"))
    assert warning == "waiting for groups for 60 s: w is updating"


async def test_a_damaged_version_that_no_worker_can_load_is_published_again(scene: Scene) -> None:
    assert await warned(scene, worker("w", "generating")) == [
        "waiting for groups for 60 s: w is generating"
    ]
    (file,) = (scene.data / "runs/r/weights").glob("v000003-*.safetensors")
    # Copied, because the file is mapped and about to be cut.
    whole = {name: tensor.clone() for name, tensor in load_file(file).items()}
    file.write_bytes(file.read_bytes()[:100])

    _, waiting, again = await warned(scene, worker("w", "generating", "cannot load it"))

    assert waiting == "waiting for groups for 60 s: w: cannot load it"
    assert again.startswith("the newest version is published again: ")
    await asyncio.to_thread(scene.coordinator._publisher.wait)
    found = load_file(file)
    assert found.keys() == whole.keys()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in found.items())
    manifest = await scene.store.weights.newest("r")
    assert manifest is not None
    (listed,) = manifest.files
    check_file(file, listed.bytes, listed.xxh3)


async def test_a_file_that_a_worker_names_is_checked_within_seconds(scene: Scene) -> None:
    (file,) = (scene.data / "runs/r/weights").glob("v000003-*.safetensors")
    troubled = worker("w", "generating", f"{file.name} has another checksum")
    assert await warned(scene, troubled, seconds=6) == [], "the worker's own copy, not the file"
    # Reading all files of a large model again takes long.
    file.write_bytes(file.read_bytes()[:100])
    assert await warned(scene, seconds=12) == []
    await warned(scene, seconds=70)

    (_, again) = await warnings(scene)
    assert again.startswith("the newest version is published again: ")


async def test_a_damaged_file_that_is_removed_before_a_worker_tries_again_is_published_again(
    scene: Scene,
) -> None:
    (file,) = (scene.data / "runs/r/weights").glob("v000003-*.safetensors")
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    file.unlink()
    gone = worker("w", "generating", f"runs/r/weights/{file.name} does not exist at the gateway")

    (again,) = await warned(scene, gone, seconds=6)

    assert again == f"the newest version is published again: {file.name} is gone"
    await asyncio.to_thread(scene.coordinator._publisher.wait)
    found = load_file(file)
    assert all(torch.equal(tensor, found[name]) for name, tensor in tensors.items())


async def test_payloads_outside_of_redis_count_for_the_next_checkpoint(scene: Scene) -> None:
    small, large = await scene.lease(2)
    await scene.complete(small)
    await scene.complete_large(large, 206_000_000)
    await scene.next_batch()
    schedule = scene.coordinator._schedule
    assert schedule.uncovered_files == 206_000_000
    assert len(b"group") < schedule.uncovered_bytes < 300
    await asyncio.to_thread(scene.coordinator.requeue, VERSION + 1, {large.task: "it is gone"})
    assert (schedule.uncovered_files, schedule.uncovered_bytes) == (0, 0)


async def test_groups_completed_while_a_batch_is_formed_are_in_it_or_requeued(scene: Scene) -> None:
    """The first two are read. Then an older group arrives, which has its last chance, and one that
    has missed it."""
    fresh = await scene.lease(2)
    (last_chance,) = await scene.lease(1, version=VERSION - 1)
    (too_late,) = await scene.lease(1)
    for lease in fresh:
        await scene.complete(lease)
    planner = scene.coordinator._planner
    planner._selection.arrive(await asyncio.to_thread(planner._read, 1.0))
    await scene.complete(last_chance, VERSION - 1)
    await scene.complete(too_late, VERSION - 2)

    assert await scene.next_batch() == [fresh[0].task, last_chance.task]

    (again,) = await scene.lease(1)
    assert again.task == too_late.task


async def test_a_batch_with_a_group_that_cannot_be_read_is_formed_again(scene: Scene) -> None:
    coordinator, step = scene.coordinator, VERSION + 1
    bad, good, third = await scene.lease(3)
    for lease in (bad, good):
        await scene.complete(lease)
    assert await scene.next_batch() == [bad.task, good.task]

    await asyncio.to_thread(coordinator.requeue, step, {bad.task: "the group of task 0: it is bad"})

    assert await warnings(scene) == ["the group of task 0: it is bad; its task is sampled again"]
    assert await scene.store.trajectories.plans("r") == {}
    await scene.complete(third)
    assert await scene.next_batch() == [good.task, third.task]
    assert coordinator._schedule.uncovered_bytes == 2 * len(b"group")
    (again,) = await scene.lease(1)
    assert again.task == bad.task
    assert (await scene.store.ledger.audit("r")).clean


async def test_a_recorded_batch_whose_group_is_gone_ends_the_run_with_a_reason(
    scene: Scene,
) -> None:
    await asyncio.to_thread(
        scene.run.fenced, scene.run.trajectories.plan, VERSION + 1, [("1-1", "7:0:100:7")]
    )

    with pytest.raises(RunCannotGoOn, match="task 7:0:100:7, which the recorded batch of step 4"):
        await asyncio.to_thread(scene.coordinator._planner.begin)


async def test_an_alarm_is_raised_when_batches_without_rewards_or_with_a_mismatch_begin(
    scene: Scene,
) -> None:
    """The model computes in float32."""
    batches = (
        ([0.0, 0.0], 1e-6),
        ([0.0, 0.0], 0.037),
        ([0.0, 1.0], 0.17),
        ([0.0, 0.0], 9e-4),
        ([0.0, 1.0], 0.002),
    )
    for step, (rewards, gap) in enumerate(batches, VERSION + 1):
        scene.state.progress = replace(scene.state.progress, step=step)
        sums = outcome_sums([trajectory_group(list(rewards))], 2)
        metrics = {"train/updates": 1.0, "mismatch/logprob_max": gap, "mismatch/kl": gap / 10}
        await asyncio.to_thread(scene.coordinator.report, metrics, sums)

    disagree = "sampler and learner disagree about the same weights"
    assert [text.split(": ")[:2] for text in await warnings(scene) if disagree in text] == [
        ["step 5", disagree],
        ["step 8", disagree],
    ]
    assert [text.partition(":")[0] for text in await warnings(scene) if "every" in text] == [
        "every reward of step 4 is 0",
        "every reward of step 7 is 0",
    ]
