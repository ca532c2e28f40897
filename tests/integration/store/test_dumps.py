"""A backup restores what it has read, and only into an empty store."""

import msgspec
import pytest
from redis.asyncio import Redis

from services.contracts.schema import SchemaMismatch
from services.store import Store
from services.store.keys import CHANGES, POOL_PARTS, RUN_PARTS, pool_key, run_key
from services.store.server.dumps import Dump, ForeignDump, NotEmpty
from tests.integration.store.scene import RUN, Scene, record

GONE = {"learner", "workers", "heartbeats"}


async def everything(raw: Redis) -> dict[object, object]:
    """Return each key's content; hashes by field, since two equal hashes may be dumped
    differently. Without the changes that gateways follow: a gateway that misses them reads every
    run again."""
    found: dict[object, object] = {}
    for key in await raw.keys("*"):
        if key == CHANGES.encode():
            continue
        kind = await raw.type(key)
        found[key] = await raw.hgetall(key) if kind == b"hash" else await raw.dump(key)
    return found


async def read(store: Store) -> list[Dump]:
    """Return the dumps as a backup's file has them."""
    return [
        msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=Dump)
        async for part in store.dumps.read()
    ]


async def put_back(store: Store, parts: list[Dump], backup: str = "b") -> None:
    await store.dumps.begin(backup)
    for part in parts:
        await store.dumps.write(part)
    await store.dumps.end()


async def busy(scene: Scene) -> None:
    """Make a run with tasks in every state: trained, planned, finished, held, released."""
    await scene.start(eta=3)
    await scene.store.runs.take("default")
    for lease in await scene.leased(6):
        await scene.complete(lease, scene.group(lease))
    await scene.leased(1)
    back = await scene.leased(1)
    await scene.store.tasks.release(RUN, [back[0].attempt])


async def test_a_restored_store_equals_the_one_that_was_backed_up(
    scene: Scene, store: Store, raw: Redis
) -> None:
    await busy(scene)
    await store.runs.submit(record("r2", created=2.0))
    await store.pools.lock("default", "a learner", 60)
    before = await everything(raw)
    assert run_key(RUN, "blobs").encode() in before

    parts = await read(store)
    await raw.flushall()
    await put_back(store, parts)

    lost = {pool_key("default", part).encode() for part in GONE}
    assert await everything(raw) == {k: v for k, v in before.items() if k not in lost}


async def test_a_restored_run_goes_on(scene: Scene, store: Store, raw: Redis) -> None:
    await busy(scene)
    parts = await read(store)
    await raw.flushall()
    await put_back(store, parts)

    taken = await store.runs.take("default")
    assert taken is not None
    assert taken.id == RUN
    await scene.take_over("bbb")
    assert await raw.xlen(run_key(RUN, "groups")) == 6
    audit = await store.ledger.audit(RUN)
    assert (audit.lost, audit.duplicated, audit.tasks) == (0, 0, 8)


@pytest.mark.parametrize("moment", ["queued", "active"])
async def test_a_run_that_changed_between_two_readings_is_not_forgotten(
    scene: Scene, store: Store, raw: Redis, moment: str
) -> None:
    # The pool as it was before the run was submitted, or after it had ended.
    await scene.dataset(10)
    await store.runs.submit(record(RUN))
    if moment == "active":
        await store.runs.take("default")
    parts = [part for part in await read(store) if part.of != "pool"]
    await raw.flushall()
    await put_back(store, parts)
    taken = await store.runs.take("default")
    assert taken is not None
    assert taken.id == RUN


async def test_a_pool_forgets_a_run_that_is_missing(scene: Scene, store: Store, raw: Redis) -> None:
    await scene.dataset(10)
    await store.runs.submit(record(RUN))
    await store.runs.take("default")
    await store.runs.submit(record("r2"))
    parts = [part for part in await read(store) if part.of != "run"]
    await raw.flushall()
    await put_back(store, parts)
    assert await store.runs.take("default") is None


async def test_a_backup_is_restored_only_into_an_empty_store(scene: Scene, store: Store) -> None:
    await scene.start()
    with pytest.raises(NotEmpty, match="this Redis holds 1 run and 1 dataset"):
        await store.dumps.begin("b")


async def test_an_interrupted_restore_goes_on_and_another_backup_is_refused(
    scene: Scene, store: Store, raw: Redis
) -> None:
    await busy(scene)
    before = await everything(raw)
    parts = await read(store)
    await raw.flushall()
    await store.dumps.begin("b")
    await store.dumps.write(next(part for part in parts if part.of == "run"))
    with pytest.raises(NotEmpty, match="holds 1 run and 0 datasets"):
        await store.dumps.begin("another")
    await put_back(store, parts)
    assert await everything(raw) == before


async def test_a_dump_that_this_redis_cannot_read_is_named(store: Store, raw: Redis) -> None:
    key = run_key(RUN, "run")
    with pytest.raises(ForeignDump, match="was written by another kind of Redis"):
        await store.dumps.write(Dump("run", RUN, {key: b"\x00\xff\xff" + b"0" * 8}))


def test_only_keys_that_a_backup_has_can_be_named() -> None:
    assert len(set(RUN_PARTS)) == len(RUN_PARTS)
    assert len(set(POOL_PARTS)) == len(POOL_PARTS)
    with pytest.raises(ValueError, match="a run has no key 'other'"):
        run_key(RUN, "other")
    with pytest.raises(ValueError, match="a pool has no key 'other'"):
        pool_key("default", "other")


async def test_a_restored_backup_of_another_version_is_noticed(store: Store, raw: Redis) -> None:
    await raw.set("headrace:schema", 2)
    parts = await read(store)
    await raw.flushall()

    for part in parts:
        await store.dumps.write(part)

    with pytest.raises(SchemaMismatch, match="schema 2"):
        await store.check_schema()
