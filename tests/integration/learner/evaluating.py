"""A run's evaluations, which a test takes from step to step without training or sampling."""

import asyncio
import json
import threading
from dataclasses import dataclass, replace
from typing import Any

from learner.coordinate.evaluations import EvaluationSchedule
from learner.persist.disk_retry import Disk
from learner.persist.jsonl import MetricsFile
from services.contracts.config import RLConfig, parse_config
from services.contracts.evaluation import EvaluationRecord
from services.contracts.weights import WeightFile, WeightManifest, parse_version_tag
from services.evaluations import folder_of, read_page, results
from tests.evaluating import answered
from tests.integration.learner.test_coordinator import Scene
from tests.integration.learner.test_runs import rl


def manifest(tag: str) -> WeightManifest:
    lineage, version = parse_version_tag(tag)
    files = [WeightFile(f"v{version}", 1, "0")]
    return WeightManifest("r", version, lineage, "full", files, 1, "runs/r/model")


@dataclass
class Evaluated:
    """The evaluations of a scene's run: one every two of 20 steps."""

    scene: Scene
    evaluations: EvaluationSchedule

    async def step(self, number: int) -> None:
        """Act as if step `number` were trained, and follow the evaluations before the next step."""
        state = replace(self.scene.state.progress, step=number, version=number)
        await asyncio.to_thread(self.evaluations.after_step, state)
        await self.follow()

    async def follow(self) -> bool:
        return await asyncio.to_thread(self.evaluations.follow)

    async def unfinished(self) -> list[str]:
        """Return the ids of unreported evaluations."""
        return [one.id for one in await self.scene.store.evaluations.requests("r")]

    async def answer(self, *statuses: str) -> None:
        """Have a worker answer rows of the open evaluation."""
        (open,) = [one for one in await self.standing() if one.state == "open"]
        requests = {one.id: one for one in await self.scene.store.evaluations.requests("r")}
        leased = await self.scene.store.evaluations.lease(
            "r", worker="w", version=requests[open.id].version, busy=False, ttl=60,
            count=len(statuses),
        )  # fmt: skip
        for (attempt, row), status in zip(leased.rows, statuses, strict=True):
            given = answered(row, status)
            assert await self.scene.store.evaluations.complete("r", leased.id, attempt, given)

    async def standing(self) -> list[Any]:
        return await self.scene.store.evaluations.standing("r")

    async def events(self, kind: str) -> list[dict[str, Any]]:
        return [e.data for e in await self.scene.store.events.read("r", "0") if e.kind == kind]

    def results(self) -> list[EvaluationRecord]:
        return list(results(self.scene.data, "r"))

    def metrics(self) -> list[dict[str, Any]]:
        text = (self.scene.data / "runs/r/metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def rows(self, id: str) -> list[int]:
        """Return the answered rows in the files of an evaluation."""
        folder = folder_of(self.scene.data, "r", id)
        return [one.row for one in read_page(folder, limit=99).rows]


def evaluations_of(scene: Scene, **fields: Any) -> EvaluationSchedule:
    disk = Disk(scene.data, scene.run, threading.Event())
    file = MetricsFile(scene.data, "r", disk)
    given = {"dataset": "sums", "name": "test", "rows": 2, "every": 2, "at_start": False}
    config = parse_config(rl(evaluation=given | fields))
    assert isinstance(config, RLConfig)
    return EvaluationSchedule(config, 20, scene.run, file, disk, manifest)
