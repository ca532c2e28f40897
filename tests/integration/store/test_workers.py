"""Workers by their heartbeats, and records of runs and datasets."""

import asyncio

from redis.asyncio import Redis

from services.contracts.devices import GPUDevice, LearnerDevices
from services.contracts.records import ALIVE_SECONDS, WorkerRecord
from services.store.keys import DATASET_NAMES, DATASETS, pool_key
from services.store.work.workers import GONE_SECONDS
from tests.integration.store.scene import RUN, Scene, segment


def worker(id: str, pool: str = "default") -> WorkerRecord:
    return WorkerRecord(id=id, pool=pool, host="h", pid=1, state="idle")


async def test_a_worker_is_listed_from_its_first_heartbeat_to_its_goodbye(scene: Scene) -> None:
    workers = scene.store.workers
    await workers.heartbeat(worker("b"))
    await workers.heartbeat(worker("a"))
    await workers.heartbeat(worker("c", "other"))
    assert [one.id for one in await workers.list()] == ["a", "b", "c"]
    await workers.remove("default", "a")
    assert [one.id for one in await workers.list("default")] == ["b"]


async def test_the_devices_of_the_last_learner_stay_known(scene: Scene) -> None:
    pools = scene.store.pools
    assert await pools.devices("default") is None
    found = LearnerDevices(ranks=1, gpus=[GPUDevice(uuid="GPU-1", name="NVIDIA L4", memory=24)])
    await pools.report_devices("default", found)
    assert await pools.devices("default") == found
    await scene.raw.set(pool_key("default", "devices"), "{")
    assert await pools.devices("default") is None


async def test_a_silent_worker_has_no_rate(scene: Scene) -> None:
    workers = scene.store.workers
    busy = worker("w").model_copy(update={"state": "generating", "tokens_per_second": 461.0})
    await workers.heartbeat(busy)
    (heard,) = await workers.list()
    assert (heard.state, heard.tokens_per_second) == ("generating", 461.0)
    long_ago = (heard.heartbeat - ALIVE_SECONDS) * 1000
    await scene.raw.zadd(pool_key("default", "heartbeats"), {"w": long_ago})
    (silent,) = await workers.list()
    assert (silent.state, silent.tokens_per_second) == ("silent", 0.0)
    await workers.heartbeat(busy)
    assert [one.state for one in await workers.list()] == ["generating"]


async def test_a_worker_that_went_silent_is_forgotten(scene: Scene) -> None:
    workers = scene.store.workers
    await workers.heartbeat(worker("w"))
    (seen,) = await workers.list()
    silent = (seen.heartbeat - GONE_SECONDS) * 1000
    await scene.raw.zadd(pool_key("default", "heartbeats"), {"w": silent})
    assert await workers.list() == []
    assert await scene.raw.hlen(pool_key("default", "workers")) == 0


async def test_events_are_read_after_the_last_one_seen_and_waited_for(scene: Scene) -> None:
    events = scene.store.events
    await events.add(RUN, "warning", {"message": "one"})
    await events.add(RUN, "warning", {"message": "two"})
    one, two = await events.read(RUN, "0")
    assert (one.data["message"], two.data["message"]) == ("one", "two")
    assert await events.read(RUN, one.id) == [two]
    assert await events.read(RUN, two.id) == []
    coming = asyncio.create_task(events.read(RUN, two.id, wait=10))
    await events.add(RUN, "checkpoint", {"step": 1})
    assert [event.kind for event in await coming] == ["checkpoint"]


async def test_a_dataset_is_found_by_id_and_by_name_until_it_is_deleted(scene: Scene) -> None:
    datasets = scene.store.datasets
    await scene.dataset(10)
    (first,) = await datasets.list()
    renamed = first.model_copy(update={"id": "other"})
    assert await datasets.add(renamed) == first
    assert await datasets.find("d") == first
    await datasets.delete("d")
    assert (await datasets.find("d"), await datasets.list()) == (None, [])
    assert await datasets.add(renamed) == renamed


async def test_one_of_several_datasets_gets_a_name(scene: Scene) -> None:
    datasets = scene.store.datasets
    await scene.dataset(10)
    (first,) = await datasets.list()
    await datasets.delete("d")
    rivals = [first.model_copy(update={"id": f"id{number}"}) for number in range(8)]

    kept = await asyncio.gather(*(datasets.add(rival) for rival in rivals))

    assert await datasets.list() == [kept[0]]
    assert len({record.id for record in kept}) == 1
    await asyncio.gather(*(datasets.delete(rival.id) for rival in rivals))
    assert (await datasets.find("d"), await datasets.list()) == (None, [])


async def test_a_deleted_dataset_leaves_its_name_to_the_present_holder(
    scene: Scene, raw: Redis
) -> None:
    datasets = scene.store.datasets
    await scene.dataset(10)
    (first,) = await datasets.list()
    newer = first.model_copy(update={"id": "newer"})
    # As if an upload had come between the reading of the record and the deletion.
    await raw.hset(DATASETS, "newer", newer.model_dump_json())
    await raw.hset(DATASET_NAMES, first.name, "newer")

    await datasets.delete(first.id)

    assert (await datasets.list(), await datasets.find(first.name)) == ([newer], newer)


async def test_concurrent_appends_keep_all_rows(scene: Scene) -> None:
    await scene.dataset(10)
    await asyncio.gather(*(scene.store.datasets.append("d", segment(1)) for _ in range(8)))
    found = await scene.store.datasets.find("d")
    assert found is not None
    assert (found.rows, len(found.segments)) == (18, 9)
