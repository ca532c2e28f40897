"""Payloads outside a real Redis are committed once, and deleted when they are no longer needed."""

import json
from pathlib import Path

import pytest
from obstore.store import MemoryStore
from xxhash import xxh3_64_hexdigest

from services.contracts.groups.payload import Damaged, Owner, payload_name
from services.gateway.run_file_retention import sweep_payloads
from services.payloads import PayloadPlace, Payloads
from services.payloads.objects import Objects
from services.payloads.places import Files
from services.store.work.tasks import Lease
from services.volume import Volume
from tests.integration.store.scene import RUN, Scene

LARGE = bytes(range(1, 256)) * 200


@pytest.fixture(params=["files", "objects"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> PayloadPlace:
    """The place of a process with the data volume."""
    folder = tmp_path / "runs" / RUN
    folder.mkdir(parents=True)
    (folder / "record.json").touch()
    return Files(Volume(tmp_path)) if request.param == "files" else Objects(MemoryStore())


@pytest.fixture
def payloads(scene: Scene, place: PayloadPlace) -> Payloads:
    return Payloads(scene.store, place, 1000)


def owner(lease: Lease) -> Owner:
    return Owner(RUN, lease.task, lease.attempt)


async def stored(scene: Scene) -> list[bytes]:
    found = await scene.store.trajectories.payloads(RUN, list(range(10)))
    return [kept for kept in found if kept is not None]


async def test_a_large_partial_is_kept_until_its_task_is_done(
    scene: Scene, payloads: Payloads
) -> None:
    await scene.start(batch=2, eta=9)
    (lease,) = await scene.leased(1)
    kept = await payloads.stored(owner(lease), LARGE)
    assert await scene.store.tasks.set_aside(RUN, lease.attempt, "aaa:0", kept)
    assert await payloads.sweep(RUN) == 0

    (again,) = await scene.leased(1)
    left = await scene.store.tasks.partial(RUN, again.task)
    assert left is not None
    assert await payloads.read(left) == LARGE
    assert await scene.complete(again, b"small")
    assert await payloads.sweep(RUN) == 1


async def test_a_large_group_weighs_as_much_as_its_reference_until_its_commit(
    scene: Scene, payloads: Payloads, place: PayloadPlace
) -> None:
    await scene.start(batch=2, eta=9)
    small, large = await scene.leased(2)
    assert await payloads.stored(owner(small), b"small") == b"small"
    kept = await payloads.stored(owner(large), LARGE)
    assert await scene.complete(small, b"small")
    assert await payloads.sweep(RUN) == 0, "its attempt may hand it in"
    assert await scene.complete(large, kept)
    assert not await scene.complete(large, kept)
    await payloads.discard(kept)
    assert await payloads.sweep(RUN) == 0, "it is in the stream"

    assert [await payloads.read(one) for one in await stored(scene)] == [b"small", LARGE]
    assert await scene.weight() == len(b"small") + len(kept) < 200
    assert await place.names(RUN) == [payload_name(owner(large), xxh3_64_hexdigest(LARGE))]
    assert await payloads.runs() == [RUN]

    await scene.plan(1, await scene.store.trajectories.read(RUN, wait=1))
    await scene.commit(1)
    assert await payloads.sweep(RUN) == 1
    assert await place.names(RUN) == []
    assert await scene.weight() == 0
    assert (await scene.store.ledger.audit(RUN)).clean


async def test_a_stopped_worker_does_not_replace_the_file_of_a_completed_group(
    scene: Scene, payloads: Payloads, place: PayloadPlace
) -> None:
    await scene.start()
    (lease,) = await scene.leased(1)
    taken = await payloads.stored(owner(lease), LARGE)
    assert await scene.complete(lease, taken)
    late = await payloads.stored(owner(lease), LARGE[::-1] + b"late")
    assert not await scene.complete(lease, late)
    await payloads.discard(late)
    assert await payloads.read(taken) == LARGE


async def test_files_of_lapsed_released_and_late_attempts_are_deleted(
    scene: Scene, payloads: Payloads, place: PayloadPlace
) -> None:
    await scene.start(batch=2, eta=9)
    late, released, lapsed, again = await scene.leased(4)
    of_late, _, kept = [await payloads.stored(owner(a), LARGE) for a in (late, released, lapsed)]
    await scene.store.tasks.release(RUN, [late.attempt, released.attempt])
    assert not await scene.complete(late, kept)
    await payloads.discard(of_late)
    assert len(await place.names(RUN)) == 2
    await scene.lapse(lapsed)
    await scene.leased(2)
    # The task's next attempt writes a file of its own.
    await payloads.stored(owner(again), LARGE)
    assert await payloads.sweep(RUN) == 2
    assert await place.names(RUN) == [payload_name(owner(again), xxh3_64_hexdigest(LARGE))]

    await scene.store.runs.set_state(RUN, "cancelled", "")
    await scene.store.runs.finish(RUN, "default", "cancelled", "")
    assert await payloads.sweep(RUN) == 1


async def test_a_missing_or_changed_payload_is_damaged(
    scene: Scene, payloads: Payloads, place: PayloadPlace
) -> None:
    await scene.start()
    (lease,) = await scene.leased(1)
    kept = await payloads.stored(owner(lease), LARGE)
    name = payload_name(owner(lease), xxh3_64_hexdigest(LARGE))
    for content, said in ((LARGE[:-1], "bytes, not"), (LARGE[:-1] + b"x", "has checksum")):
        await place.write(name, content)
        with pytest.raises(Damaged, match=said):
            await payloads.read(kept)
    await place.delete([name])
    with pytest.raises(Damaged, match=r"its payload runs/.*\.group is gone"):
        await payloads.read(kept)


async def test_a_half_written_file_of_a_killed_worker_is_deleted(
    scene: Scene, tmp_path: Path
) -> None:
    await scene.start()
    folder = tmp_path / "runs" / RUN / "payloads"
    folder.mkdir(parents=True)
    (held,) = await scene.leased(1)
    for attempt in (held.attempt, "0" * 16):
        (folder / f".0-{attempt}-{attempt}.group.abc").touch()
    (folder / "somebodys").touch()
    assert await Payloads(scene.store, Files(Volume(tmp_path))).sweep(RUN) == 1
    left = {path.name for path in folder.iterdir()}
    assert left == {f".0-{held.attempt}-{held.attempt}.group.abc", "somebodys"}


async def test_the_sweep_leaves_runs_that_this_redis_does_not_know(
    scene: Scene, payloads: Payloads, place: PayloadPlace, tmp_path: Path
) -> None:
    lost, deleted = Owner("another", 1, "a" * 16), Owner("deleted", 1, "b" * 16)
    await scene.start()
    (lease,) = await scene.leased(1)
    await scene.store.tasks.release(RUN, [lease.attempt])
    await payloads.stored(owner(lease), LARGE)
    (tmp_path / "runs" / lost.run).mkdir()
    (tmp_path / "runs" / lost.run / "record.json").write_text(json.dumps({}))
    await payloads.stored(lost, LARGE)
    if isinstance(place, Objects):
        await payloads.stored(deleted, LARGE)

    await scene.raw.set("headrace:restoring", "a backup")
    await sweep_payloads(scene.store, tmp_path, payloads)
    assert await place.names(RUN)
    await scene.raw.delete("headrace:restoring")
    await sweep_payloads(scene.store, tmp_path, payloads)

    assert await place.names(RUN) == await place.names(deleted.run) == []
    assert await place.names(lost.run) == [payload_name(lost, xxh3_64_hexdigest(LARGE))]
