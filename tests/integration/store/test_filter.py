"""The prompt filter filters rows that stay outside its bounds: once per task, despite repeated
calls, and at most the allowed share."""

from typing import Any

import pytest

from services.contracts.records import RunRecord
from services.store.keys import run_key
from services.store.work.tasks import Lease, Passed
from tests.integration.store.scene import RUN, Scene, record, segment

ROWS = 10


@pytest.fixture
async def started(scene: Scene) -> Scene:
    """A run on ten rows; the worker says which row a task is of."""
    await scene.start(rows=ROWS, batch=2, eta=19)
    return scene


async def note(scene: Scene, lease: Lease, row: int, outside: bool = True, **fields: Any) -> bool:
    given = {"passes": 2, "max_share": 0.2} | fields
    return await scene.store.tasks.filter_prompt(
        scene.run, lease.attempt, str(row), outside=outside, **given
    )


async def noted(scene: Scene, row: int, *outsides: bool) -> bool:
    """Note and finish new tasks of a row, one after the other. Returns the last answer."""
    for outside in outsides:
        (lease,) = await scene.leased(1)
        filtered = await note(scene, lease, row, outside)
        assert await scene.complete(lease)
    return filtered


async def test_a_row_is_filtered_after_the_given_tasks_in_a_row_outside(
    started: Scene,
) -> None:
    assert not await noted(started, 4, True)
    assert not await noted(started, 5, True)
    assert not await noted(started, 4, False, True)
    assert not await started.store.tasks.prompt_filtered(RUN, "4")
    assert await noted(started, 4, True)
    assert await started.store.tasks.prompt_filtered(RUN, "4")
    assert not await started.store.tasks.prompt_filtered(RUN, "5")


async def test_a_task_counts_once_as_its_last_attempt_noted_it(started: Scene) -> None:
    first, second = await started.leased(2)
    # The call is repeated because its reply was lost.
    assert not await note(started, first, 4)
    assert not await note(started, first, 4)
    # Its worker dies, and another worker finds the row inside.
    await started.store.tasks.release(RUN, [first.attempt])
    assert not await note(started, first, 4)
    (again,) = await started.leased(1)
    assert again.task == first.task
    assert not await note(started, again, 4, outside=False)
    assert not await note(started, second, 4)
    assert await noted(started, 4, True)


async def test_the_later_of_two_tasks_of_a_row_counts(started: Scene) -> None:
    first, second = await started.leased(2)
    assert not await note(started, second, 4, outside=False)
    assert not await note(started, first, 4)
    assert not await noted(started, 4, True)
    assert await noted(started, 4, True)


async def test_at_most_the_share_of_rows_is_filtered(started: Scene) -> None:
    for row in (4, 5):
        assert await noted(started, row, True, True)
    assert not await noted(started, 6, True, True)
    # A task of a filtered row that was under way lies inside after all.
    assert not await noted(started, 5, False)
    assert await noted(started, 6, True)
    counted = await started.raw.hget(run_key(RUN, "order"), "filtered_prompts")
    assert int(counted) == 2


async def test_tasks_of_filtered_rows_end_in_the_ledger(started: Scene) -> None:
    await noted(started, 4, True, True)
    (lease,) = await started.leased(1)
    assert await started.store.tasks.drop(RUN, lease.attempt, "filtered_prompt", "dataset row 4")
    audit = await started.store.ledger.audit(RUN)
    assert (audit.tasks, audit.dropped, audit.clean) == (3, {"filtered_prompt": 1}, True)


@pytest.mark.parametrize("dataset", ["d", "other"])
async def test_a_continued_run_on_the_same_dataset_keeps_the_notes_of_rows(
    started: Scene, dataset: str
) -> None:
    await started.dataset(ROWS, "other")
    await noted(started, 4, True, True)
    await noted(started, 5, True)
    await started.store.runs.finish(
        RUN, "default", "cancelled", "", fencing_token=started.fencing_token
    )

    await started.store.runs.submit(record("r2", batch=2, eta=19, dataset=dataset, resume_from=RUN))
    started.run = "r2"
    await started.take_over("bbb")

    same = dataset == "d"
    assert await started.store.tasks.prompt_filtered("r2", "4") == same
    if same:
        # Open tasks are leased first.
        for lease in await started.leased(3):
            assert await started.complete(lease)
    assert await noted(started, 5, True) == same
    counted = await started.raw.hget(run_key("r2", "order"), "filtered_prompts")
    assert int(counted) == (2 if same else 0)


@pytest.mark.parametrize("weight", [1.0, 2.0])
async def test_a_continued_run_keeps_the_notes_only_of_the_same_mixture(
    scene: Scene, weight: float
) -> None:
    await scene.dataset(6)
    await scene.dataset(4, "other")
    rows = {"dataset_rows": [6, 4]}
    await scene.store.runs.submit(mixed(RUN, 1.0, eta=19, **rows))
    await scene.take_over("aaa")
    # Rows that come later change nothing.
    await scene.store.datasets.append("d", segment(5))
    (first, *_) = await scene.leased(12)
    assert (first.position.rows, await last_epoch(scene)) == (10, 1)
    await scene.store.runs.finish(
        RUN, "default", "cancelled", "", fencing_token=scene.fencing_token
    )

    await scene.store.runs.submit(mixed("r2", weight, eta=19, resume_from=RUN, **rows))

    scene.run = "r2"
    await scene.take_over("bbb")
    (again,) = await scene.leased(1)
    same = weight == 1.0
    assert (again.task == first.task) == same
    audit = await scene.store.ledger.audit("r2")
    assert audit.dropped == ({} if same else {"cancelled": 12})


async def test_the_share_of_a_mixture_counts_its_rows(
    scene: Scene,
) -> None:
    await scene.dataset(6)
    await scene.dataset(4, "other")
    one = mixed(RUN, 1.0, eta=19, dataset_rows=[6, 4])
    mix = [{"dataset": "other", "repeats": 10}]
    one.config["data"] = {"dataset": "d", "repeats": 10, "mix": mix}
    await scene.store.runs.submit(one)
    await scene.take_over("aaa")
    assert [await noted(scene, row, True, True) for row in range(3)] == [True, True, False]


def mixed(run: str, weight: float, **fields: Any) -> RunRecord:
    one = record(run, **fields)
    mix = [{"dataset": "other", "weight": weight}]
    one.config["data"] = {"dataset": "d", "weight": 1.0, "mix": mix}
    one.config["training"] = {"seed": 0}
    return one


async def last_epoch(scene: Scene) -> int:
    return int(await scene.raw.hget(run_key(scene.run, "order"), "epoch"))


async def test_a_rows_pass_rate_changes_when_its_tasks_end_and_goes_on_in_a_resumed_run(
    started: Scene,
) -> None:
    tasks = started.store.tasks
    for lease, share in zip(await started.leased(2), (0.25, 1.0), strict=True):
        assert await started.complete(lease, passed=Passed(str(lease.task), share))
    assert await tasks.pass_rate(RUN, "0") is None
    await started.plan(1, await started.store.trajectories.read(RUN, wait=1))
    await started.commit(1)
    assert [await tasks.pass_rate(RUN, row) for row in "01"] == [0.25, 1.0]
    # The commit is repeated because its reply was lost; a filtered group ends its task at once.
    await started.commit(1)
    (lease,) = await started.leased(1)
    for held in (True, False):
        filtered = await tasks.filter_group(RUN, lease.attempt, "", 0.0, "", Passed("0", 0.75))
        assert filtered == held
    # (0.25 + 0.75) / 2
    assert [await tasks.pass_rate(RUN, row) for row in "01"] == [0.5, 1.0]
    skipped, open_ = await started.leased(2)
    assert await tasks.skip(RUN, skipped.attempt, "dataset row 1 (data.curriculum)")
    assert not await tasks.skip(RUN, skipped.attempt, "again")
    assert await started.complete(open_, passed=Passed("1", 0.0))
    assert await started.store.trajectories.skipped(RUN) == 1
    audit = await started.store.ledger.audit(RUN)
    assert (audit.dropped, audit.clean) == ({"curriculum": 1, "filtered_group": 1}, True)
    await started.store.runs.finish(
        RUN, "default", "cancelled", "", fencing_token=started.fencing_token
    )

    await started.store.runs.submit(record("r2", batch=2, eta=19, resume_from=RUN))

    # Tasks after the last checkpoint are sampled again, and have not counted.
    assert [await tasks.pass_rate("r2", row) for row in "01"] == [0.5, 1.0]
