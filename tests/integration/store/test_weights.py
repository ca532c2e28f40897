"""Published versions: listed once each, newest last, by the learner that holds the run."""

import asyncio

from services.store.keys import run_key
from tests.integration.store.scene import RUN, Scene


async def test_followers_see_the_newest_version(scene: Scene) -> None:
    await scene.start()
    weights = scene.store.weights
    assert await weights.newest(RUN) is None
    await scene.publish(0)
    found = await weights.newest_after(RUN, "0", wait=1)
    assert found is not None
    entry, manifest = found
    assert manifest.tag == "aaa:0"
    assert await weights.newest_after(RUN, entry, wait=0.001) is None
    following = asyncio.create_task(weights.newest_after(RUN, entry, wait=10))
    await scene.publish(1)
    assert (await following or ("", None))[1] == scene.manifest(1)
    run = await scene.store.runs.get(RUN)
    assert run is not None
    assert run.version == 1


async def test_a_version_is_listed_once_however_often_it_is_registered(scene: Scene) -> None:
    await scene.start()
    for version in (0, 0, 1, 1):
        await scene.publish(version)
    assert await scene.raw.xlen(run_key(RUN, "weights")) == 2


async def test_a_new_lineage_begins_below_the_versions_of_the_one_before(scene: Scene) -> None:
    await scene.start()
    await scene.publish(3)
    await scene.take_over("bbb")
    await scene.publish(0)
    newest = await scene.store.weights.newest(RUN)
    assert newest is not None
    assert newest.tag == "bbb:0"


async def test_the_list_of_versions_stays_short(scene: Scene) -> None:
    await scene.start()
    for version in range(300):
        manifest = scene.manifest(version)
        await scene.store.weights.publish(scene.fencing_token, manifest, keep=10)
    # Redis trims whole blocks of 100 entries.
    assert await scene.raw.xlen(run_key(RUN, "weights")) <= 110
