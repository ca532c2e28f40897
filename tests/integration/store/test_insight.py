"""`headrace why` finds in a real store where each task is and who holds it."""

from services.contracts.records import HeldTask, WorkerRecord
from services.contracts.why import Flow, OldestTask, Why
from services.diagnosis.diagnose import diagnose
from services.store.insight import lock_token
from tests.evaluating import answered, request
from tests.integration.store.scene import RUN, Scene, record


async def why(scene: Scene, run: str = RUN) -> Why:
    found = await scene.store.runs.get(run)
    assert found is not None
    return diagnose(await scene.store.insight.situation(found))


async def learner(scene: Scene) -> None:
    await scene.store.pools.lock("default", lock_token("box", 7, 0), 10)


async def beat(scene: Scene, **fields: object) -> None:
    given = {"id": "w", "pool": "default", "host": "h", "pid": 1, "state": "generating"}
    await scene.store.workers.heartbeat(WorkerRecord.model_validate(given | fields))


def place(oldest: OldestTask | None) -> tuple[int, str, str | None, int | None]:
    assert oldest is not None
    assert (oldest.seconds is None) == (oldest.place == "returned")
    assert oldest.seconds is None or oldest.seconds < 60
    return oldest.task, oldest.place, oldest.worker, oldest.step


async def test_a_queued_run_shows_the_runs_ahead_of_it(scene: Scene) -> None:
    await scene.start()
    assert (await scene.store.runs.take("default")) is not None
    for run in ("r2", "r3"):
        await scene.store.runs.submit(record(run, created=2.0))
    assert (await why(scene, "r3")).cause == "no_learner"
    await learner(scene)
    found = await why(scene, "r3")
    assert (found.cause, found.words) == (
        "queued",
        "it waits for r1 (r1), which is running at step 0 of 10, and 1 more in the queue",
    )
    assert found.learner is not None
    assert (found.learner.host, found.learner.pid) == ("box", 7)


async def test_a_task_is_followed_from_its_lease_to_its_checkpoint(scene: Scene) -> None:
    await scene.start(batch=2, eta=9)
    await learner(scene)
    zero, one = await scene.leased(2)
    found = await why(scene)
    assert found.cause == "no_worker"
    assert found.words == "the learner waits for groups: no worker is alive"
    assert found.flow == Flow(held=2)
    assert place(found.oldest) == (0, "generating", "w", None)
    assert found.oldest is not None
    assert found.oldest.lease_seconds_left is not None
    assert 50 < found.oldest.lease_seconds_left <= 60

    scoring = HeldTask(task=0, stage="scoring", leased_seconds=2, stage_seconds=1)
    await beat(scene, run=RUN, groups_in_flight=2, scoring=1, oldest=scoring, version=0)
    found = await why(scene)
    assert place(found.oldest) == (0, "scoring", "w", None)
    assert found.workers[0].scoring == 1

    await scene.store.tasks.release(RUN, [zero.attempt], cause="refused")
    found = await why(scene)
    assert found.flow == Flow(returned=1, held=1)
    assert place(found.oldest) == (0, "returned", None, None)
    assert found.oldest is not None
    assert found.oldest.failures == {"refused": 1}

    (zero,) = await scene.leased(1)
    for lease in (zero, one):
        await scene.complete(lease, scene.group(lease))
    groups = await scene.store.trajectories.read(RUN, wait=1)
    found = await why(scene)
    assert found.flow == Flow(waiting=2)
    assert place(found.oldest) == (0, "waiting", None, None)

    await scene.plan(1, sorted(groups, key=lambda group: group.task))
    found = await why(scene)
    assert found.flow == Flow(planned=2)
    assert place(found.oldest) == (0, "planned", None, 1)

    await scene.store.runs.update(RUN, scene.fencing_token, {"step": 1})
    await scene.store.events.add(RUN, "step", {"step": 1, "time/step": 1.0, "bottleneck": "none"})
    found = await why(scene)
    assert (found.cause, found.flow) == ("none", Flow(trained=2))
    assert place(found.oldest) == (0, "trained", None, 1)
    assert found.last_step_seconds_ago is not None

    await scene.commit(1)
    assert (await why(scene)).oldest is None


async def test_a_lapsed_lease_is_seen_and_a_run_that_is_over_has_nothing_in_flight(
    scene: Scene,
) -> None:
    await scene.start(batch=2)
    await learner(scene)
    await scene.lapse(*await scene.leased(2))
    assert (await why(scene)).flow == Flow(held=2, lapsed=2)
    await scene.store.runs.fail(RUN, "nothing works")
    found = await why(scene)
    assert (found.cause, found.words, found.oldest) == ("over", "it failed: nothing works", None)
    assert found.remarks == []


async def test_filtered_groups_are_counted_while_a_batch_is_collected(scene: Scene) -> None:
    await scene.start(batch=2, eta=9, max_filtered=10)
    await learner(scene)
    for lease in await scene.leased(3):
        assert await scene.store.tasks.filter_group(RUN, lease.attempt, "", 0.0)
    found = await why(scene)
    assert (found.flow, found.oldest) == (Flow(filtered=3), None)
    for lease in await scene.leased(2):
        assert await scene.complete(lease, scene.group(lease))
    assert (await why(scene)).flow == Flow(waiting=2)


async def test_an_open_evaluation_is_counted(scene: Scene) -> None:
    await scene.start()
    await learner(scene)
    await beat(scene, run=RUN)
    for name in ("held-out", "later"):
        one = request(scene.manifest(0), name=name)
        await scene.store.evaluations.ask(RUN, scene.fencing_token, one)
    leased = await scene.store.evaluations.lease(
        RUN, worker="w", version="aaa:0", busy=False, count=2, ttl=60
    )
    attempt, row = leased.rows[0]
    await scene.store.evaluations.complete(RUN, leased.id, attempt, answered(row, "correct"))
    found = (await why(scene)).evaluation
    assert found is not None
    assert (found.name, found.version, found.rows, found.answered, found.held) == (
        "held-out", "aaa:0", 3, 1, 1,
    )  # fmt: skip
    assert (found.workers, found.waiting) == (["w"], 1)


async def load(scene: Scene) -> tuple[str | None, int, int, int, int]:
    found = await scene.store.insight.load("default")
    assert found.pool == "default"
    return found.run, found.queued, found.workers, found.groups_in_flight, found.groups_wanted


async def test_a_pool_without_a_run_wants_no_groups(scene: Scene) -> None:
    assert await load(scene) == (None, 0, 0, 0, 0)
    await scene.dataset(10)
    await scene.store.runs.submit(record())
    await beat(scene)
    assert await load(scene) == (None, 1, 1, 0, 0)


async def test_a_pool_wants_what_its_workers_hold_and_what_admission_leaves(scene: Scene) -> None:
    # Batches of 2 and η = 2: six tasks may be open at version 0.
    await scene.start(batch=2, eta=2)
    await scene.store.runs.take("default")
    assert await load(scene) == (RUN, 0, 0, 0, 6)
    leases = await scene.leased(4)
    assert await load(scene) == (RUN, 0, 0, 4, 6)
    await scene.complete(leases[0])
    assert await load(scene) == (RUN, 0, 0, 3, 5)
    # The load equals what `lease` grants.
    assert len((await scene.lease(9)).leases) == 5 - 3
    assert await load(scene) == (RUN, 0, 0, 5, 5)


async def test_a_run_near_its_end_wants_only_the_groups_that_it_will_train(scene: Scene) -> None:
    await scene.start(batch=2, eta=9, max_steps=3)
    await scene.store.runs.take("default")
    assert await load(scene) == (RUN, 0, 0, 0, 6)


async def test_a_cancelling_run_still_wants_the_groups_in_flight(scene: Scene) -> None:
    await scene.start(batch=2, eta=2)
    await scene.store.runs.take("default")
    await scene.leased(1)
    await scene.store.runs.set_state(
        RUN, "paused", "the disk is full", fencing_token=scene.fencing_token
    )
    assert await load(scene) == (RUN, 0, 0, 1, 1)
