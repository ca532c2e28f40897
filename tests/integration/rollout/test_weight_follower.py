"""Following versions whose files come and go: a real Redis, real files, the scripted server."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.process.server import VLLMFailed
from services.contracts.weights import WeightManifest
from services.launch import Stack, UpOptions
from services.runtime.tasks import end
from services.volume import Volume
from tests.integration.rollout.following import DeltaLearner, Learner, Scene, following
from tests.integration.store.scene import RUN
from tests.served import live_version


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    data = tmp_path / "data"
    options = UpOptions(data=data, parts=frozenset({"redis"}))
    with Stack(options) as stack:
        async with following(stack, data, Volume(data), tmp_path, monkeypatch) as scene:
            yield scene


async def test_a_server_that_hangs_in_an_update_fails_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.learner.publish(0)
    monkeypatch.setattr(scene.policy.weights, "control_seconds", 0.5)
    os.kill(scene.server.pid, signal.SIGSTOP)

    # The worker restarts it, without the retries of a broken connection.
    async with asyncio.timeout(100):
        with pytest.raises(VLLMFailed, match="has not answered /start_weight_update for"):
            await scene.follower.follow()


async def test_a_server_whose_processes_may_have_different_weights_is_restarted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene.policy.weights, "_several", True)
    scene.follow()
    await scene.learner.publish(0)
    await scene.until_live(0)
    await scene.learner.publish(1, width=5)
    async with asyncio.timeout(100):
        with pytest.raises(VLLMFailed, match="vLLM's processes may have different weights"):
            await scene.following[0]


async def test_a_heartbeat_names_a_file_before_it_is_fetched(scene: Scene) -> None:
    learner = scene.learner
    scene.follow()
    await learner.publish(0)
    await scene.until_live(0)
    await learner.publish(1)
    await scene.until_live(1)

    # While version 1 is loaded, the server would go back to version 0.
    assert scene.told == [[learner.name(0)], [learner.name(1), learner.name(0)]]
    assert scene.follower.files == [learner.name(1)]


async def test_a_late_worker_loads_only_the_newest_version(scene: Scene) -> None:
    for version in range(3):
        await scene.learner.publish(version, file=False)
    await scene.learner.publish(3)
    scene.follow()
    await scene.until_live(3)
    assert scene.follower.healthy
    assert scene.told == [[scene.learner.name(3)]]


async def test_a_pinned_version_is_served_until_it_is_unpinned(scene: Scene) -> None:
    follower, learner = scene.follower, scene.learner
    scene.follow()
    old = structs.replace(await learner.publish(0), created=1.0)
    await scene.until_live(0)
    new = structs.replace(await learner.publish(1, announce=False), created=2.0)
    await learner.store.weights.publish(learner.fencing_token, new, keep=64)
    await scene.until_live(1)

    # Going back costs groups, so it must be requested.
    assert not await follower.pin(old, back=False)
    assert await follower.pin(old, back=True)
    await follower.until_pinned()
    assert await live_version(scene.server.socket) == old.tag
    await learner.publish(2)
    assert await follower.pin(old, back=False)
    await follower.until_pinned()
    follower.unpin()
    await scene.until_live(2)

    # A version whose file is gone leaves the worker as it was.
    gone = structs.replace(await learner.publish(3, file=False, announce=False), created=3.0)
    assert await follower.pin(gone, back=False)
    with pytest.raises(FileNotFoundError):
        await follower.until_pinned()
    follower.unpin()
    assert follower.healthy
    await learner.publish(4)
    await scene.until_live(4)


async def test_a_worker_stays_healthy_when_an_overtaken_version_is_gone(scene: Scene) -> None:
    scene.follow()
    await scene.learner.publish(0)
    await scene.until_live(0)
    # The file is deleted between the look at the stream and the fetch.
    told = scene.follower._heartbeat

    async def overtaken() -> None:
        scene.follower._heartbeat = told
        (scene.learner.root / scene.learner.name(1)).unlink()
        await scene.learner.publish(2)
        await told()

    scene.follower._heartbeat = overtaken
    await scene.learner.publish(1)
    await scene.until_live(2)
    await scene.until(lambda: scene.follower.healthy)
    assert await live_version(scene.policy.socket) == "aaa:2"


async def test_a_missing_file_of_the_newest_version_makes_the_worker_unhealthy(
    scene: Scene,
) -> None:
    scene.follow()
    await scene.learner.publish(0)
    await scene.until_live(0)
    await scene.learner.publish(1, file=False)
    await scene.until(lambda: not scene.follower.healthy)
    assert "v000001-aaa.safetensors is not on the data volume" in scene.follower.error

    await scene.learner.publish(2)

    await scene.until_live(2)
    await scene.until(lambda: scene.follower.healthy)


async def test_a_lineage_ends_at_the_fork_even_if_the_worker_missed_it(
    scene: Scene,
) -> None:
    scene.follow()
    await scene.learner.publish(1)
    await scene.until_live(1)
    # bbb dies before it publishes anything. The worker was too busy to load 0 and 1 of ccc.
    for lineage in ("bbb", "ccc"):
        fencing_token = await scene.learner.store.runs.acquire(RUN, lineage)
    await Learner(scene.learner.store, scene.learner.root, fencing_token, "ccc").publish(2)

    await scene.until_live(2)

    assert scene.follower.forks == {"aaa": 0, "bbb": 0}


async def test_a_version_of_a_newer_schema_is_refused_and_the_old_weights_stay(
    scene: Scene,
) -> None:
    scene.follow()
    await scene.learner.publish(0)
    await scene.until_live(0)
    newer = structs.replace(await scene.learner.publish(1, announce=False), schema=3)
    await scene.learner.store.weights.publish(scene.learner.fencing_token, newer, keep=64)

    await scene.until(lambda: not scene.follower.healthy)

    assert "weight manifest has schema 3, this process reads 2" in scene.follower.error
    assert await live_version(scene.policy.socket) == "aaa:0"


async def test_a_skipped_load_is_found_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with Stack(UpOptions(data=data, parts=frozenset({"redis"}))) as stack:
        scripted = following(stack, data, Volume(data), tmp_path, monkeypatch, ignored_updates=[1])
        async with scripted as scene:
            scene.follow()
            await scene.learner.publish(0)
            await scene.until_live(0)
            assert scene.follower.canary.gap == 0.0

            await scene.learner.publish(1)
            await scene.until_live(1)

            assert scene.distrusted == [
                "vLLM does not serve version aaa:1: its log-probabilities of fixed sequences: they "
                "are those of version aaa:0"
            ]
            await scene.until(lambda: scene.follower.healthy)

            # An old version under a new name stays wrong, however often it is loaded.
            await scene.learner.publish(2, holds=0)
            async with asyncio.timeout(100):
                with pytest.raises(VLLMFailed, match="those of version aaa:0"):
                    await scene.following[0]
            assert len(scene.distrusted) == 4
            assert not scene.follower.healthy


async def test_a_server_that_wakes_with_old_weights_is_found_before_a_group_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with Stack(UpOptions(data=data, parts=frozenset({"redis"}))) as stack:
        scripted = following(stack, data, Volume(data), tmp_path, monkeypatch, goes_back=True)
        async with scripted as scene:
            scene.follow()
            for version in (0, 1):
                await scene.learner.publish(version)
                await scene.until_live(version)
            canary, asked, may_score = scene.follower.canary, asyncio.Event(), asyncio.Event()
            judged = canary.problem

            async def held(manifest: WeightManifest) -> str:
                asked.set()
                await may_score.wait()
                return await judged(manifest)

            monkeypatch.setattr(canary, "problem", held)
            async with scene.policy.weights.asleep():
                pass
            async with asyncio.timeout(100):
                await asked.wait()
            group = asyncio.create_task(scene.follower.until_proven(["aaa:1"]))
            await asyncio.sleep(0)
            assert not group.done(), "it waits for the proof"
            assert not scene.follower.healthy
            may_score.set()
            await scene.until(lambda: bool(scene.distrusted))
            assert scene.distrusted == [
                "vLLM does not serve version aaa:1: its log-probabilities of fixed sequences: they "
                "are those of version aaa:0"
            ]
            assert not group.done()
            await end([group])

            await scene.learner.publish(3)
            await scene.until_live(3)
            await scene.until(lambda: scene.follower.healthy)


async def test_groups_of_a_version_that_was_replaced_before_its_verdict_are_sampled_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary, asked = scene.follower.canary, asyncio.Event()
    judged = canary.problem

    async def away(manifest: WeightManifest) -> str:
        if manifest.version == 1:
            asked.set()
            raise VLLMUnavailable("away")
        return await judged(manifest)

    monkeypatch.setattr(canary, "problem", away)
    scene.follow()
    await scene.learner.publish(0)
    await scene.until_live(0)
    await scene.learner.publish(1)
    async with asyncio.timeout(100):
        await asked.wait()
    await scene.learner.publish(2)
    await scene.until_live(2)
    assert "the version served could not be scored: away" in scene.distrusted


async def test_a_failed_scoring_is_retried_without_another_load(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = scene.follower.canary
    judged, refused = canary.problem, [1]

    async def once_away(manifest: WeightManifest) -> str:
        if manifest.version in refused:
            refused.clear()
            raise VLLMUnavailable("away")
        return await judged(manifest)

    monkeypatch.setattr(canary, "problem", once_away)
    scene.follow()
    await scene.learner.publish(0)
    await scene.until_live(0)
    await scene.learner.publish(1)
    await scene.until_live(1)
    assert scene.distrusted == []
    assert scene.follower.healthy


async def test_a_prefix_cache_that_outlives_an_update_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with Stack(UpOptions(data=data, parts=frozenset({"redis"}))) as stack:
        scripted = following(stack, data, Volume(data), tmp_path, monkeypatch, keeps_prefixes=True)
        async with scripted as scene:
            scene.follow()
            await scene.learner.publish(0)
            await scene.until_live(0)
            waiting = asyncio.create_task(scene.follower.until_proven(["aaa:1"]))

            await scene.learner.publish(1)
            async with asyncio.timeout(100):
                with pytest.raises(VLLMFailed, match="its log-probabilities"):
                    await scene.following[0]

            # This request came before the version, so it did not wait.
            assert waiting.done()
            again = asyncio.create_task(scene.follower.until_proven(["aaa:0", "aaa:1"]))
            await asyncio.sleep(0)
            assert not again.done(), "no group with such tokens is handed in"
            await scene.follower.until_proven(["aaa:0"])
            await end([again])


async def test_a_version_of_several_files_is_loaded_from_all_of_them(scene: Scene) -> None:
    deltas = DeltaLearner(scene.learner)
    await deltas.publish()
    scene.follow()
    await scene.until_live(0)
    for version in (1, 2):
        await deltas.publish()
        await scene.until_live(version)
    names = [file.name for file in deltas.files]
    assert scene.told[-1] == names
    assert scene.follower.files == names
    assert await live_version(scene.policy.socket) == "aaa:2"


async def test_a_worker_that_starts_late_loads_a_whole_version_and_its_deltas(scene: Scene) -> None:
    deltas = DeltaLearner(scene.learner)
    for _ in range(4):
        await deltas.publish()
    scene.follow()
    await scene.until_live(3)
    assert scene.told == [[file.name for file in deltas.files]]
    assert scene.follower.healthy


@pytest.mark.parametrize("file", [0, 1])
async def test_a_damaged_delta_file_is_not_loaded_and_named_until_a_whole_version_comes(
    scene: Scene, file: int
) -> None:
    deltas = DeltaLearner(scene.learner)
    for _ in range(2):
        await deltas.publish()
    scene.follow()
    await scene.until_live(1)
    content = bytearray(deltas.path(file).read_bytes())
    content[-1] ^= 4
    deltas.path(file).write_bytes(content)
    await deltas.publish()
    await scene.until(lambda: not scene.follower.healthy)
    assert f"{deltas.path(file).name} has checksum" in scene.follower.error
    assert await live_version(scene.policy.socket) == "aaa:1"

    await deltas.publish(whole=True)

    await scene.until_live(3)
    await scene.until(lambda: scene.follower.healthy)


async def test_deltas_of_another_whole_version_are_refused(scene: Scene) -> None:
    deltas = DeltaLearner(scene.learner)
    await deltas.publish()
    scene.follow()
    await scene.until_live(0)
    # Both files match the manifest, but do not belong together.
    deltas.weights["w"][1, 1] = 9
    await deltas.publish()
    await scene.until(lambda: not scene.follower.healthy)
    assert "w of version aaa:1 is wrong" in scene.follower.error
    assert await live_version(scene.policy.socket) == "aaa:0"
