"""A learner that publishes versions, and a worker's follower on the scripted server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
from msgspec import structs
from safetensors.numpy import save_file

from rollout.vllm.client.policy_client import PolicyClient
from rollout.vllm.process.server import VLLMServer
from rollout.vllm.weights.canary_check import CanaryCheck
from rollout.vllm.weights.fetched_files import FetchedFiles
from rollout.vllm.weights.served_weights import ServedWeights
from rollout.vllm.weights.staging import Staging
from rollout.vllm.weights.weight_follower import WeightFollower
from services.contracts.canary import CANARY, Canary, packed, sequences
from services.contracts.config.vllm import VLLM
from services.contracts.weights import WeightFile, WeightManifest
from services.launch import Stack
from services.runtime.tasks import end
from services.store import Store
from services.volume import Volume, checksum
from tests.integration.rollout.test_server import make_server
from tests.integration.store.scene import RUN, record
from tests.unit.weights.files import Weights, save_delta, save_full

LINEAGE = "aaa"


def canary_of(version: int) -> Canary:
    values = [-1.0 - version / 10] * sum(len(tokens) - 1 for tokens in sequences(20, 15))
    return Canary("float32", 20, 15, packed(values))


@dataclass
class Learner:
    """Publishes versions of one run."""

    store: Store
    root: Path
    fencing_token: int = 0
    lineage: str = LINEAGE

    def name(self, version: int) -> str:
        return f"runs/{RUN}/weights/v{version:06d}-{self.lineage}.safetensors"

    async def publish(
        self,
        version: int,
        file: bool = True,
        announce: bool = True,
        holds: int | None = None,
        width: int = 4,
    ) -> WeightManifest:
        """Publish a version. Its file is already gone unless `file`, and unless `announce` no
        worker hears that it is there. The file holds version `holds`, with rows of `width`."""
        path = self.root / self.name(version)
        path.parent.mkdir(parents=True, exist_ok=True)
        weights = {"weight": np.full((2, width), version, np.float32)}
        canary = canary_of(version if holds is None else holds)
        save_file(weights, path, {CANARY: msgspec.json.encode(canary).decode()})
        listed = WeightFile(self.name(version), path.stat().st_size, checksum(path))
        if not file:
            path.unlink()
        model = f"runs/{RUN}/model"
        manifest = WeightManifest(RUN, version, self.lineage, "full", [listed], 1, model)
        manifest = structs.replace(manifest, canary=canary_of(version))
        if announce:
            await self.store.weights.publish(self.fencing_token, manifest, keep=64)
        return manifest


@dataclass
class DeltaLearner:
    """Publishes versions of bfloat16 weights: one whole, then deltas."""

    learner: Learner
    version: int = 0
    weights: Weights = field(default_factory=lambda: {"w": np.zeros((2, 400), np.uint16)})
    files: list[WeightFile] = field(default_factory=list)

    def path(self, version: int) -> Path:
        return self.learner.root / self.files[version].name

    async def publish(self, whole: bool = False) -> WeightManifest:
        base, tag = (f"{LINEAGE}:{self.version + step}" for step in (-1, 0))
        new = {"w": self.weights["w"].copy()}
        new["w"][0, self.version] = 7
        name = self.learner.name(self.version)
        if whole or not self.files:
            path = self.learner.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            save_full(path, new)
            self.files = []
        else:
            name = name.replace(".safetensors", ".delta.safetensors")
            path = self.learner.root / name
            save_delta(path, self.weights, new, base, tag)
        self.files = [*self.files, WeightFile(name, path.stat().st_size, checksum(path))]
        kind: Literal["full", "delta"] = "delta" if len(self.files) > 1 else "full"
        model = f"runs/{RUN}/model"
        manifest = WeightManifest(RUN, self.version, LINEAGE, kind, self.files, 1, model)
        await self.learner.store.weights.publish(self.learner.fencing_token, manifest, keep=64)
        self.weights, self.version = new, self.version + 1
        return manifest


@dataclass
class Scene:
    learner: Learner
    follower: WeightFollower
    server: VLLMServer
    policy: PolicyClient
    changed: asyncio.Event
    told: list[list[str]]
    """The files in each heartbeat that the follower requested."""
    distrusted: list[str]
    """The problems that were found."""
    following: list[asyncio.Task[None]] = field(default_factory=list)

    def follow(self) -> None:
        self.following.append(asyncio.create_task(self.follower.follow()))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(100):
            while not condition():
                await self.changed.wait()
                self.changed.clear()

    async def until_live(self, version: int) -> None:
        def is_live() -> bool:
            live = self.follower.live
            return live is not None and live.version == version

        await self.until(is_live)


@asynccontextmanager
async def following(
    stack: Stack,
    data: Path,
    volume: Volume,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    **script: object,
) -> AsyncIterator[Scene]:
    """A learner that publishes to `data`, and a follower that reads `volume`."""
    server = make_server(folder, monkeypatch, **script)
    server.config = replace(server.config, options=VLLM(startup_seconds=100, sleeps=True))
    store = Store.from_url(stack.redis_url)
    await store.runs.submit(record())
    learner = Learner(store, data, await store.runs.acquire(RUN, LINEAGE))
    policy = await server.start()
    told: list[list[str]] = []

    async def heartbeat() -> None:
        told.append(follower.files)

    distrusted: list[str] = []

    async def distrust(problem: str) -> None:
        assert not follower.healthy
        distrusted.append(problem)

    changed = asyncio.Event()
    canary = CanaryCheck(policy, "auto", masks=False)
    follower = WeightFollower(
        RUN,
        store,
        FetchedFiles("me", store, volume),
        ServedWeights(policy.weights, "keep", canary, changed.set, distrust),
        Staging(server.folder, whole=True),
        heartbeat,
    )
    scene = Scene(learner, follower, server, policy, changed, told, distrusted)
    yield scene
    await end(scene.following)
    await policy.close()
    await server.stop()
    await store.close()
