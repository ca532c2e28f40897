"""A rollout worker as a process, on a run that is not trained: a real Redis and reward service, and
the scripted stand-in for vLLM."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import save_file

from learner.model.canary import CanaryPass
from learner.model.loading.model_loader import LoadedModel
from learner.model.loading.saving import weight_tensors
from learner.model.loading.scratch import make_model, train_merges
from learner.model.passes.logprobs import TokenLogprobs
from learner.publishing.model_folder import export_description
from services.contracts.canary import CANARY
from services.contracts.config import RLConfig, parse_config
from services.contracts.config.model import BPETokenizer, ScratchModel
from services.contracts.events import Event
from services.contracts.groups.trajectory import TrajectoryGroup, decode
from services.contracts.records import DatasetRecord, WorkerRecord
from services.contracts.rows.dataset import Row
from services.contracts.weights import WeightFile, WeightManifest
from services.datasets.segments import write_segment
from services.launch import Stack, UpOptions
from services.payloads import Payloads
from services.payloads.places import Files
from services.store import Store
from services.volume import Volume, checksum
from tests.integration.installation.conftest import SCRIPTED
from tests.integration.store.scene import RUN, record

LINEAGE = "aaa"
MODEL = ScratchModel(
    source="scratch", hidden_size=32, layers=1, heads=2, intermediate_size=48, max_length=128
)


@dataclass
class Working:
    """A worker at work."""

    stack: Stack
    store: Store

    @property
    def payloads(self) -> Payloads:
        """The completed groups as the learner reads them."""
        return Payloads(self.store, Files(Volume(self.stack.data)))

    async def group(self, task: int) -> TrajectoryGroup:
        """The completed group of a task."""
        while True:
            (kept,) = await self.store.trajectories.payloads(RUN, [task])
            if kept is not None:
                return decode(await self.payloads.read(kept))
            await asyncio.sleep(0.02)

    async def partial(self, task: int) -> bytes:
        """What a worker has left of a task."""
        while True:
            left = await self.store.tasks.partial(RUN, task)
            if left is not None:
                return left
            await asyncio.sleep(0.02)

    async def sampled(self, tokens: int) -> WorkerRecord:
        """The worker, once its vLLM has sampled so many tokens."""
        while True:
            for worker in await self.store.workers.list("default"):
                if worker.tokens_total >= tokens:
                    return worker
            await asyncio.sleep(0.02)

    async def events(self, until: Callable[[list[Event]], bool]) -> list[Event]:
        """The run's events, once they are as `wanted`."""
        found: list[Event] = []
        while not until(found):
            found += await self.store.events.read(RUN, found[-1].id if found else "0", wait=1)
        return found

    def lines(self) -> list[dict[str, Any]]:
        """The worker's log."""
        text = self.stack.log("rollout-0").read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


Work = Callable[..., AbstractAsyncContextManager[Working]]
"""`working_with`, once there is a reward service."""


@asynccontextmanager
async def working_with(
    scoring: dict[str, str],
    folder: Path,
    prompts: list[str],
    script: dict[str, Any],
    packages: Path | None = None,
    model: ScratchModel = MODEL,
    /,
    **sections: Any,
) -> AsyncIterator[Working]:
    """Start a worker on a run over `prompts` with these sections of its config. `scoring`: the
    environment that names a reward service. `packages`: a folder of packages for the worker.
    `model`: the policy."""
    data = folder / "data"
    script = {"vocabulary": 20} | script
    environment = SCRIPTED | scoring | {"HEADRACE_SCRIPTED_VLLM": json.dumps(script)}
    if packages:
        environment["PYTHONPATH"] += f"{os.pathsep}{packages}"
    options = UpOptions(
        data=data,
        parts=frozenset({"redis", "rollout"}),
        environment=environment,
        grace=5,
    )
    with Stack(options) as stack:
        store = Store.from_url(stack.redis_url)
        await _submit(store, data, prompts, sections, made_of(model))
        async with asyncio.timeout(150):
            yield Working(stack, store)
        await store.close()


def made_of(model: ScratchModel) -> LoadedModel:
    """The policy and its tokenizer."""
    merges = ""
    if isinstance(model.tokenizer, BPETokenizer):
        merges = train_merges(model.tokenizer, ["a"])
    return make_model(model, 0, merges=merges)


async def _submit(
    store: Store, data: Path, prompts: list[str], sections: dict[str, Any], loaded: LoadedModel
) -> None:
    """Do the work of a gateway and a learner until a run can be sampled."""
    segment = write_segment([Row(prompt=text, answer="1") for text in prompts], data, "d")
    dataset = DatasetRecord(id="d", name="d", rows=len(prompts), created=1.0, segments=[segment])
    await store.datasets.add(dataset)
    raw: dict[str, Any] = {
        "model": {"path": "none"},
        "data": {"dataset": "d"},
        "rewards": [{"verifier": "exact"}],
        # The batch never fills, so leases are granted without training.
        "algorithm": {"prompts_per_step": 100_000, "samples_per_prompt": 2},
    }
    for name, section in sections.items():
        raw[name] = raw.get(name, {}) | section
    parsed = parse_config(raw)
    assert isinstance(parsed, RLConfig)
    config, context = parsed.model_dump(mode="json"), parsed.rollout.vllm.max_model_len
    await store.runs.submit(record(config=config))
    await store.runs.take("default")
    fencing_token = await store.runs.acquire(RUN, LINEAGE)
    await store.weights.publish(fencing_token, _weights(data, context, loaded), keep=64)
    await store.runs.set_state(RUN, "running", "", fencing_token=fencing_token)


def _weights(data: Path, context: int | None, loaded: LoadedModel) -> WeightManifest:
    export_description(loaded, data / f"runs/{RUN}/model")
    name = f"runs/{RUN}/weights/v000000-{LINEAGE}.safetensors"
    path = data / name
    path.parent.mkdir(parents=True)
    tensors = {key: tensor.contiguous() for key, tensor in weight_tensors(loaded.model).items()}
    canary = CanaryPass(loaded, TokenLogprobs(loaded.model), context)()
    save_file(tensors, path, {CANARY: msgspec.json.encode(canary).decode()})
    file = WeightFile(name, path.stat().st_size, checksum(path))
    return WeightManifest(
        run=RUN,
        version=0,
        lineage=LINEAGE,
        kind="full",
        files=[file],
        tensors=len(tensors),
        model=f"runs/{RUN}/model",
        created=time.time(),
        canary=canary,
    )
