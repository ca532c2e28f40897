"""When a run's evaluations are asked for: a real Redis, no training and no sampling."""

import asyncio
import threading
from dataclasses import dataclass, replace
from typing import Any

import pytest

from learner.coordinate.evaluations import Evaluations
from learner.persist.disk_retry import Disk
from learner.persist.jsonl import MetricsFile
from services.contracts.config.training import Evaluation
from tests.integration.learner.test_coordinator import Scene, scene

__all__ = ["scene"]


@dataclass
class Evaluated:
    """The evaluations of a scene's run: one every two of 20 steps."""

    scene: Scene
    evaluations: Evaluations

    async def step(self, number: int) -> None:
        """Step `number` is trained, and the loop looks for outcomes before the next one."""
        state = replace(self.scene.state.progress, step=number, version=number)
        await asyncio.to_thread(self.evaluations.after_step, state)
        await self.follow()

    async def follow(self) -> bool:
        return await asyncio.to_thread(self.evaluations.follow)

    async def open_since(self) -> int | None:
        """The step whose evaluation is open."""
        left = await self.scene.store.evaluations.left("r")
        return left and left[1]

    async def answer(self, version: int) -> None:
        """A worker that serves `version` answers all rows of the open evaluation."""
        leased = await self.scene.store.evaluations.lease(
            "r", worker="w", lineage=self.scene.run.lineage, version=version, count=2, ttl=60
        )
        right: dict[str, Any] = {"rewards": [1.0], "statuses": ["correct"]}
        for attempt, _ in leased.rows:
            assert await self.scene.store.evaluations.complete("r", leased.id, attempt, right)

    async def events(self, kind: str) -> list[dict[str, Any]]:
        return [e.data for e in await self.scene.store.events.read("r", "0") if e.kind == kind]


def evaluations_of(scene: Scene) -> Evaluations:
    file = MetricsFile(scene.data, "r", Disk(scene.data, scene.run, threading.Event()))
    config = Evaluation(dataset="sums", rows=2, every=2, at_start=False)
    return Evaluations(config, 20, scene.run, file)


@pytest.fixture
async def evaluated(scene: Scene) -> Evaluated:
    return Evaluated(scene, evaluations_of(scene))


async def test_an_evaluation_that_falls_due_while_another_is_open_follows_it(
    evaluated: Evaluated,
) -> None:
    await evaluated.step(4)
    await evaluated.step(6)
    assert await evaluated.open_since() == 4
    (warning,) = await evaluated.events("warning")
    assert "evaluation of step 6 waits" in warning["message"]
    await evaluated.step(7)
    await evaluated.answer(version=7)

    await evaluated.follow()

    # It is of the version of now: that of step 6 may be gone.
    assert await evaluated.open_since() == 7
    await evaluated.answer(version=7)
    assert not await evaluated.follow()
    assert [data["step"] for data in await evaluated.events("evaluation")] == [4, 7]


async def test_an_evaluation_that_was_due_when_the_learner_died_is_asked_for_at_the_next_start(
    evaluated: Evaluated,
) -> None:
    scene, state = evaluated.scene, evaluated.scene.state.progress
    for reported, asked in (({4}, None), ({2}, 5)):
        successor = evaluations_of(scene)
        at = replace(state, step=5, version=5)
        await asyncio.to_thread(successor.begin, at, set(reported))
        await asyncio.to_thread(successor.follow)
        assert await evaluated.open_since() == asked


async def test_the_last_evaluation_is_not_made_twice_where_one_was_still_due(
    evaluated: Evaluated,
) -> None:
    await evaluated.step(16)
    await evaluated.step(18)
    last = replace(evaluated.scene.state.progress, step=20, version=20)
    await asyncio.to_thread(evaluated.evaluations.after_step, last)
    await evaluated.answer(version=20)
    await evaluated.follow()

    assert await asyncio.to_thread(evaluated.evaluations.last, last)
    assert await evaluated.open_since() == 20
    await evaluated.answer(version=20)
    assert not await evaluated.follow()
    assert not await asyncio.to_thread(evaluated.evaluations.last, last)
