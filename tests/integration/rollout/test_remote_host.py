"""A rollout worker on a host without the data volume gets the model's files from the gateway."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest
import redis

from learner.model.loading.scratch import make_model
from learner.publishing.model_folder import export_description
from rollout.vllm.model_files import fetch_model, load_tokenizer
from services.contracts.config.model import CharacterTokenizer, ScratchModel
from services.contracts.records import WorkerRecord
from services.launch import Stack, UpOptions
from services.runtime.api_key import authorization
from services.store.keys import API_KEYS, SCHEMA
from services.volume import DamagedFile, GatewayAway, KeyRefused, Volume
from tests.integration.rollout.following import following
from tests.integration.store.scene import RUN
from tests.served import live_version

NAME = "runs/r/model"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The host with the data volume, for all these tests."""
    data = tmp_path_factory.mktemp("there")
    parts = frozenset({"redis", "gateway"})
    with Stack(UpOptions(data=data, port=0, parts=parts)) as stack:
        yield stack


@pytest.fixture
def stack(there: Stack) -> Iterator[Stack]:
    """The host with the data volume, on which there is no run and no worker before a test."""
    yield there
    rmtree(there.data / "runs", ignore_errors=True)
    with redis.Redis.from_url(there.redis_url) as client:
        kept = {SCHEMA.encode(), API_KEYS.encode()}
        client.delete(*{*client.keys("headrace:*")} - kept, "nothing")


async def test_the_model_folder_arrives_whole(stack: Stack, tmp_path: Path) -> None:
    here = tmp_path / "here"
    config = ScratchModel(source="scratch", tokenizer=CharacterTokenizer(alphabet="0123456789+="))
    loaded = make_model(config, 0)
    export_description(loaded, stack.data / NAME)
    folder = await fetch_model(Volume(here, stack.gateway_url, stack.api_key), NAME)

    assert folder == here / NAME
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        p.name: p.read_bytes() for p in (stack.data / NAME).iterdir()
    }
    assert load_tokenizer(folder).eos_token_id == loaded.tokenizer.eos_token_id

    (stack.data / NAME / "config.json").write_text("{}")
    with pytest.raises(DamagedFile, match=r"config\.json has 2 bytes"):
        await fetch_model(Volume(tmp_path / "third", stack.gateway_url, stack.api_key), NAME)


async def test_copies_of_versions_that_were_replaced_are_deleted(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    volume = Volume(here, stack.gateway_url, stack.api_key)
    async with following(stack, stack.data, volume, tmp_path, monkeypatch) as scene:
        scene.follow()
        for version in range(3):
            await scene.learner.publish(version)
            await scene.until_live(version)
        copies = [path.name for path in here.rglob("*.safetensors")]
        assert copies == ["v000002-aaa.safetensors"]
    assert len(list(stack.data.rglob("*.safetensors"))) == 3


async def test_a_copy_that_another_worker_of_the_host_loads_is_not_deleted(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    volume = Volume(here, stack.gateway_url, stack.api_key)
    async with following(stack, stack.data, volume, tmp_path, monkeypatch) as scene:
        scene.follow()
        other = WorkerRecord(id="w", pool="other", host="h", pid=1, state="updating")
        for version in range(3):
            await scene.learner.publish(version)
            await scene.until_live(version)
            other.files = other.files or scene.follower.files
            await scene.learner.store.workers.heartbeat(other)
        copies = sorted(path.name for path in here.rglob("*.safetensors"))
        assert copies == ["v000000-aaa.safetensors", "v000002-aaa.safetensors"]


async def test_abandoned_copies_are_deleted_after_an_hour(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    left = here / "runs/ended/weights"
    left.mkdir(parents=True)
    whole, half = left / "v000009-aaa.safetensors", left / ".v000009-bbb.safetensors.x7k2"
    needed, fresh = left / "v000008-aaa.safetensors", left / "v000007-aaa.safetensors"
    lock = left / ".v000009-aaa.safetensors.lock"
    for path in (whole, half, needed, fresh, lock):
        path.touch()
        if path is not fresh:
            os.utime(path, (time.time() - 3700,) * 2)
    volume = Volume(here, stack.gateway_url, stack.api_key)
    async with following(stack, stack.data, volume, tmp_path, monkeypatch) as scene:
        name = str(needed.relative_to(here))
        other = WorkerRecord(
            id="w", pool="other", host="h", pid=1, state="generating", files=[name]
        )
        await scene.learner.store.workers.heartbeat(other)
        scene.follow()
        await scene.learner.publish(0)
        await scene.until(lambda: scene.follower.healthy)
    assert sorted(path.name for path in left.iterdir()) == [lock.name, fresh.name, needed.name]


async def test_a_damaged_file_of_the_volume_that_is_removed_is_loaded_once_it_is_there_again(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host with the volume, which the gateway's answers cannot mend either."""
    record = stack.data / "runs" / RUN / "record.json"
    record.parent.mkdir(parents=True)
    record.touch()
    volume = Volume(stack.data, stack.gateway_url, stack.api_key)
    async with following(stack, stack.data, volume, tmp_path, monkeypatch) as scene:
        learner, follower = scene.learner, scene.follower
        scene.follow()
        await learner.publish(0)
        await scene.until_live(0)
        damaged = stack.data / learner.name(1)
        manifest = await learner.publish(1, announce=False)
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
        await learner.store.weights.publish(learner.fencing_token, manifest, keep=64)
        await scene.until(lambda: "has checksum" in follower.error)

        damaged.unlink()

        # The learner looks for the file's name in the heartbeat.
        await scene.until(lambda: f"{damaged.name} does not exist" in follower.error)
        assert await live_version(scene.policy.socket) == "aaa:0"
        await learner.publish(1)
        await scene.until_live(1)
        await scene.until(lambda: follower.healthy)
        # It belongs to the volume, so this worker does not delete it.
        old = stack.data / learner.name(0)
        os.utime(old, (time.time() - 3700,) * 2)
        await learner.publish(2)
        await scene.until_live(2)
        await scene.until(lambda: follower.healthy)
    names = [path.name for path in sorted(damaged.parent.glob("v*.safetensors"))]
    assert names == [f"v00000{version}-aaa.safetensors" for version in range(3)]


async def test_a_worker_waits_for_the_gateway_and_logs_no_password(
    stack: Stack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = tmp_path / "here"
    # No process listens on port 1.
    volume = Volume(here, "http://user:hunter2@127.0.0.1:1", stack.api_key)
    async with following(stack, stack.data, volume, tmp_path, monkeypatch) as scene:
        with pytest.raises(GatewayAway, match=r"the gateway http://.*127\.0\.0\.1:1") as away:
            await volume.fetch(NAME)
        scene.follow()
        await scene.learner.publish(0)
        said = ""
        while "cannot follow weights" not in said:
            await scene.changed.wait()
            scene.changed.clear()
            said += "".join(capsys.readouterr())
        volume.gateway_url = stack.gateway_url
        await scene.until_live(0)
    assert "hunter2" not in str(away.value) + said


async def test_a_gateways_refusal_is_reported_without_its_password(
    stack: Stack, tmp_path: Path
) -> None:
    url = stack.gateway_url.replace("//", "//user:hunter2@")
    with pytest.raises(KeyRefused, match="wants an API key") as refused:
        await Volume(tmp_path / "here", url).fetch("runs/r/weights/v.safetensors")
    assert "hunter2" not in str(refused.value)


async def test_a_worker_with_a_wrong_key_is_unhealthy_until_it_has_the_right_one(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    volume = Volume(here, stack.gateway_url, "hr-another")
    async with following(stack, stack.data, volume, tmp_path, monkeypatch) as scene:
        scene.follow()
        await scene.learner.publish(0)
        await scene.until(lambda: "wants an API key" in scene.follower.error)
        assert not scene.follower.healthy
        volume.headers = authorization(stack.api_key)
        await scene.until_live(0)
        assert scene.follower.healthy
