"""A run that resumes another run's evaluation answers the remaining rows: a real Redis, without
training or sampling."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from services.evaluations import folder_of, part_path, write_part
from tests.evaluating import answered
from tests.integration.learner.evaluating import Evaluated, evaluations_of
from tests.integration.learner.test_coordinator import Scene, scene
from tests.integration.learner.test_runs import rl, submit

__all__ = ["scene"]


async def resuming(scene: Scene, run: str, **fields: Any) -> Evaluated:
    """The started evaluations of run `r`, which resumes `run` and trains nothing."""
    scene.run._resumes = run
    evaluated = Evaluated(scene, evaluations_of(scene, at_start=True, every=None, **fields))
    evaluated.evaluations._max_steps = 0
    start = replace(scene.state.progress, step=0, version=0)
    await asyncio.to_thread(evaluated.evaluations.begin, start, set())
    return evaluated


async def write_answers(scene: Scene, run: str, rows: Sequence[int], **fields: Any) -> None:
    """Make the ended run `run` and its answers to these rows, one file each."""
    await submit(scene.store, run, rl(), **fields)
    folder = folder_of(scene.data, run, "000000-test")
    for part, row in enumerate(rows, 1):
        write_part(part_path(folder, part), [answered(row, "correct")])


async def test_a_resumed_evaluation_answers_only_the_remaining_rows(
    scene: Scene,
) -> None:
    await write_answers(scene, "before", [3, 0])
    evaluated = await resuming(scene, "before", rows=4)
    (standing,) = await evaluated.standing()
    assert (standing.state, standing.answered, standing.parts) == ("open", 2, 2)

    (request,) = await scene.store.evaluations.requests("r")
    leased = await scene.store.evaluations.lease(
        "r", worker="w", version=request.version, busy=False, count=9, ttl=60
    )
    assert [row for _, row in leased.rows] == [1, 2]
    for attempt, row in leased.rows:
        await scene.store.evaluations.complete("r", leased.id, attempt, answered(row, "wrong"))
    await evaluated.follow()

    assert evaluated.rows("000000-test") == [0, 1, 2, 3]
    (record,) = evaluated.results()
    assert (record.state, record.metrics["accuracy"]) == ("done", 0.5)


async def test_a_learner_that_dies_in_a_resumed_evaluation_leaves_it_whole(scene: Scene) -> None:
    await write_answers(scene, "before", [1])
    first = await resuming(scene, "before", rows=3)
    await first.answer("wrong")

    successor = await resuming(scene, "before", rows=3)
    await successor.answer("wrong")
    await successor.follow()

    assert successor.rows("000000-test") == [0, 1, 2]
    assert [one.state for one in successor.results()] == ["done"]


async def test_answers_are_taken_over_from_before_a_run_that_was_cancelled_in_the_queue(
    scene: Scene,
) -> None:
    await write_answers(scene, "first", [0, 1])
    await scene.store.runs.cancel("first")
    await write_answers(scene, "queued", [], resume_from="first")
    evaluated = await resuming(scene, "queued")

    # No row remained: it ends without a worker.
    assert await evaluated.unfinished() == []
    assert [(one.state, one.metrics["accuracy"]) for one in evaluated.results()] == [("done", 1.0)]
    assert [one["accuracy"] for one in await evaluated.events("evaluation")] == [1.0]


async def test_an_evaluation_that_ended_without_a_worker_is_reported_by_a_successor(
    scene: Scene,
) -> None:
    await write_answers(scene, "before", [0, 1])
    await resuming(scene, "before")
    # As if the learner had died before the report.
    successor = await resuming(scene, "before")
    assert [one["id"] for one in await successor.events("evaluation")] == ["000000-test"] * 2


@pytest.mark.parametrize("at", [None, 60])
async def test_a_damaged_file_of_answers_is_not_taken_over(scene: Scene, at: int | None) -> None:
    await write_answers(scene, "before", [0, 1])
    part = part_path(folder_of(scene.data, "before", "000000-test"), 1)
    content = bytearray(part.read_bytes())
    if at is None:
        content = bytearray(b"PAR1")
    else:
        content[at] ^= 255
    part.write_bytes(content)
    evaluated = await resuming(scene, "before")
    await evaluated.answer("wrong")
    await evaluated.follow()
    assert evaluated.rows("000000-test") == [0, 1]
    assert [one.state for one in evaluated.results()] == ["done"]
