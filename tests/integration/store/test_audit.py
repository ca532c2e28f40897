"""The audit is right about a whole run, and about tampered ones."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from services.store import Audit, Fenced
from services.store.keys import run_key
from services.store.runs.audit import Generation, TaskEnding, audit
from tests.integration.gateway.servers import GatewayProcess
from tests.integration.store.scene import RUN, Scene, record


async def busy(scene: Scene) -> None:
    """Make a run with tasks 0 to 3 trained, 4 dropped, 5 returned, 6 held, 7 finished, 8 and 9
    planned."""
    await scene.start(batch=2, eta=9)
    groups = await scene.finished(4)
    await scene.plan(1, groups[:2])
    await scene.plan(2, groups[2:])
    await scene.commit(2)
    four, five, _, seven, *planned = await scene.leased(6)
    await scene.store.tasks.drop(RUN, four.attempt, "bad_reference", "")
    await scene.store.tasks.release(RUN, [five.attempt])
    for lease in (seven, *planned):
        await scene.complete(lease)
    groups = await scene.store.trajectories.read(RUN, wait=1)
    await scene.plan(3, groups[1:])


async def test_every_task_of_a_busy_run_is_accounted_for(scene: Scene) -> None:
    await busy(scene)
    assert await scene.store.ledger.audit(RUN) == Audit(
        run=RUN,
        tasks=10,
        trained=4,
        dropped={"bad_reference": 1},
        in_flight=5,
        lost=0,
        duplicated=0,
        max_staleness_seen=1,
        max_staleness_allowed=9,
        too_stale=0,
        problems=[],
    )


async def test_a_run_before_its_first_task_and_a_supervised_run_are_clean(scene: Scene) -> None:
    await scene.dataset(10)
    await scene.store.runs.submit(record())
    await scene.store.runs.submit(record("m", kind="sft"))
    for run in (RUN, "m"):
        found = await scene.store.ledger.audit(run)
        assert (found.tasks, found.in_flight, found.clean) == (0, 0, True)


async def forget(scene: Scene, part: str) -> None:
    await scene.raw.delete(run_key(RUN, part))


LOSSES: dict[str, Callable[[Scene], Awaitable[object]]] = {
    "task 5 was leased": lambda scene: forget(scene, "returned"),
    "task 6 was leased": lambda scene: forget(scene, "held"),
    "task 7 is in the stream without": lambda s: s.raw.hdel(run_key(RUN, "blobs"), "7"),
    "task 4 was leased": lambda scene: remove_last_row(scene),
    "task 10 was leased": lambda scene: scene.raw.hincrby(run_key(RUN, "order"), "position", 1),
    "task 9 is planned for step 3, not": lambda scene: remove_last_group(scene),
}


async def remove_last_row(scene: Scene) -> None:
    ((entry, _),) = await scene.raw.xrevrange(run_key(RUN, "ledger"), count=1)
    await scene.raw.xdel(run_key(RUN, "ledger"), entry)


async def remove_last_group(scene: Scene) -> None:
    ((entry, _),) = await scene.raw.xrevrange(run_key(RUN, "groups"), count=1)
    await scene.raw.xdel(run_key(RUN, "groups"), entry)


@pytest.mark.parametrize("said", LOSSES)
async def test_a_loss_is_found_wherever_it_happened(scene: Scene, said: str) -> None:
    await busy(scene)
    await LOSSES[said](scene)
    found = await scene.store.ledger.audit(RUN)
    assert (found.lost, found.duplicated) == (1, 0)
    assert found.problems[0].startswith(said)
    assert found.tasks == found.trained + sum(found.dropped.values()) + found.in_flight + found.lost


def end_again(scene: Scene) -> Awaitable[object]:
    row = {"end": "dropped", "reason": "too_slow", "tasks": '["2:0:100:2"]'}
    return scene.raw.xadd(run_key(RUN, "ledger"), row)


def hand_out_twice(scene: Scene) -> Awaitable[object]:
    return scene.raw.hset(run_key(RUN, "held"), "feed", "5:0:100:5 w 1")


def hand_out_again(scene: Scene) -> Awaitable[object]:
    return scene.raw.zadd(run_key(RUN, "returned"), {"0:0:100:0": 0})


async def plan_again(scene: Scene) -> None:
    plan = await scene.raw.hget(run_key(RUN, "plans"), "3")
    pairs = json.loads(plan)["pairs"][:1]
    await scene.raw.hset(run_key(RUN, "plans"), "4", json.dumps({"lineage": "aaa", "pairs": pairs}))


def move_the_cursor_back(scene: Scene) -> Awaitable[object]:
    return scene.raw.hincrby(run_key(RUN, "order"), "position", -1)


TWICE: dict[str, Callable[[Scene], Awaitable[object]]] = {
    "task 2 is in several places: trained at 2, dropped as too_slow": end_again,
    "task 5 is in several places: returned, held": hand_out_twice,
    "task 0 is in several places: trained at 1, returned": hand_out_again,
    "task 8 is planned for steps 3, 4": plan_again,
    "task 9 is in the stream, and the cursor has not reached its position": move_the_cursor_back,
}


@pytest.mark.parametrize("said", TWICE)
async def test_a_duplicate_is_found_wherever_it_is(scene: Scene, said: str) -> None:
    await busy(scene)
    await TWICE[said](scene)
    found = await scene.store.ledger.audit(RUN)
    assert (found.lost, found.duplicated) == (0, 1)
    assert found.problems[0].startswith(said)


async def test_a_continued_run_is_audited_with_the_one_before(scene: Scene) -> None:
    await busy(scene)
    await scene.store.runs.set_state(RUN, "cancelled", "")
    await scene.store.runs.submit(record("r2", batch=2, eta=9, resume_from=RUN))
    scene.run = "r2"
    await scene.take_over("bbb")
    await scene.trained(3)
    found = await scene.store.ledger.audit("r2")
    assert (found.tasks, found.trained, found.dropped) == (10, 6, {"bad_reference": 1})
    assert (found.in_flight, found.clean) == (3, True)
    # Task 5 is trained here; the run before had trained 0.
    await scene.raw.xadd(
        run_key(RUN, "ledger"), {"end": "dropped", "reason": "filtered", "tasks": '["5:0:100:5"]'}
    )
    found = await scene.store.ledger.audit("r2")
    assert (found.lost, found.duplicated) == (0, 1)


async def test_a_run_that_goes_back_to_a_whole_checkpoint_samples_later_tasks_again(
    scene: Scene,
) -> None:
    await busy(scene)
    store, token = scene.store, scene.fencing_token
    await store.runs.go_back(RUN, token, scene.lineage, 1, "runs/r/checkpoints/step-000001-L1")

    found = await store.ledger.audit(RUN)
    assert (found.trained, found.in_flight, found.clean) == (2, 7, True)
    run = await store.runs.get(RUN)
    assert run is not None
    assert (run.committed_step, run.checkpoint) == (1, "runs/r/checkpoints/step-000001-L1")
    assert await store.trajectories.plans(RUN) == {}
    # Repeated because its answer was lost, and by a learner that was replaced.
    await store.runs.go_back(RUN, token, scene.lineage, 1, "runs/r/checkpoints/step-000001-L1")
    assert await store.ledger.audit(RUN) == found
    with pytest.raises(Fenced):
        await store.runs.go_back(RUN, token - 1, "000", 0, "x")
    # Tasks 2 and 3, and 5, come first, in the run's order.
    assert [lease.task for lease in await scene.leased(3)] == [2, 3, 5]


def test_steps_after_the_continued_checkpoint_do_not_count() -> None:
    first = Generation(
        run="a",
        base_step=0,
        position=2,
        endings=[TaskEnding(["0:0:9:0"], step=1), TaskEnding(["1:0:9:1"], step=2)],
        lineages=[("aaa", 0)],
    )
    second = Generation(
        run="b",
        base_step=1,
        position=3,
        endings=[TaskEnding(["1:0:9:1"], step=2)],
        lineages=[("aaa", 0), ("bbb", 1)],
        held=["2:0:9:2"],
    )
    found = audit([first, second])
    assert (found.tasks, found.trained, found.in_flight, found.clean) == (3, 2, 1, True)


@pytest.mark.parametrize(
    ("oldest", "planned", "staleness"),
    [
        # Step 7 trains version 6. Planned under aaa: replayed after the fork, perhaps.
        ("aaa:6", "aaa", 0),
        ("aaa:4", "aaa", 2),
        # bbb left aaa at 5: from aaa:7 it is 2 back to there and 1 on to bbb:6.
        ("aaa:7", "bbb", 3),
        ("aaa:5", "bbb", 1),
        ("bbb:5", "bbb", 1),
        # ccc left bbb where bbb had left aaa.
        ("bbb:6", "ccc", 2),
        ("", "ccc", 0),
    ],
)
def test_staleness_is_counted_along_the_tree_at_the_time_of_the_plan(
    oldest: str, planned: str, staleness: int
) -> None:
    batch = TaskEnding(["0:0:9:0"], step=7, oldest=[oldest], planned=planned)
    lineages = [("aaa", 0), ("bbb", 5), ("ccc", 5)]
    run = Generation(run="a", base_step=0, position=1, endings=[batch], lineages=lineages)
    assert audit([run]).max_staleness_seen == staleness


def test_groups_that_were_trained_too_stale_are_counted_and_named() -> None:
    """Each of two continued runs is measured by its own limit."""
    trained = [(2, ["aaa:0", "aaa:1"]), (4, ["aaa:1", "aaa:0"])]
    first, second = (
        Generation(
            run=name,
            base_step=2 * place,
            position=2 * place + 2,
            endings=[
                TaskEnding([f"{2 * place + i}:0:9:0" for i in (0, 1)], "", step, oldest, "aaa")
            ],
            lineages=[("aaa", 0)],
            max_staleness=1 + place,
        )
        for place, (name, (step, oldest)) in enumerate(zip("ab", trained, strict=True))
    )
    found = audit([first, second])
    assert (found.max_staleness_seen, found.max_staleness_allowed) == (3, 2)
    assert (found.lost, found.duplicated, found.too_stale, found.clean) == (0, 0, 1, False)
    said = "1 groups of step 4 of run b were up to 3 versions behind, of 2 allowed"
    assert found.problems == [said]


async def test_a_long_ledger_is_read_page_by_page(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.store.runs.ledger.PAGE", 2)
    await scene.start(batch=1, eta=9)
    for step in range(1, 6):
        await scene.trained(step, 1)
    found = await scene.store.ledger.audit(RUN)
    assert (found.tasks, found.trained, found.clean) == (5, 5, True)


@pytest.fixture
def gateway(tmp_path: Path, redis_url: str) -> Iterator[GatewayProcess]:
    process = GatewayProcess(tmp_path / "data", redis_url)
    yield process
    process.stop()


async def test_the_api_and_the_command_report_a_clean_and_a_damaged_run(
    scene: Scene, gateway: GatewayProcess
) -> None:
    await busy(scene)
    async with httpx.AsyncClient(
        base_url=gateway.url, headers=gateway.headers, trust_env=False
    ) as api:
        answer = (await api.get(f"/v1/runs/{RUN}/audit")).json()
        assert (await api.get("/v1/runs/nobody/audit")).status_code == 404
    assert answer == {
        "run": RUN,
        "tasks": 10,
        "trained": 4,
        "dropped": {"bad_reference": 1},
        "in_flight": 5,
        "lost": 0,
        "duplicated": 0,
        "max_staleness_seen": 1,
        "max_staleness_allowed": 9,
        "too_stale": 0,
        "unknown": [],
        "problems": [],
    }
    code, said = await audited(gateway, "--json")
    assert (code, json.loads(said)) == (0, answer)

    await forget(scene, "returned")
    await hand_out_again(scene)
    code, said = await audited(gateway)
    assert code == 1
    assert f"{'trained, in the checkpoint':<28}{4:>10}\n" in said
    assert "task 5 was leased, has not ended and is nowhere" in said
    assert "task 0 is in several places: trained at 1, returned" in said


async def audited(gateway: GatewayProcess, *options: str) -> tuple[int, str]:
    """Return the exit code and output of `headrace audit`."""
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace", "audit", RUN, "--gateway", gateway.url),
        *options,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"HEADRACE_DATA": str(gateway.data)},
    )
    said, _ = await command.communicate()
    assert command.returncode is not None
    return command.returncode, said.decode()
