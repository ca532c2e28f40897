"""Redis loses writes that it had acknowledged: that is noticed, said, and mended."""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest
import redis
from pydantic import SecretStr
from redis.asyncio import Redis

from services.contracts.records import ApiKeyRecord, RunRecord
from services.contracts.rows.task import TaskPosition
from services.launch import append_only
from services.launch.options import LaunchError
from services.launch.redis import Listening, find_server, servers_here, write_config
from services.recovery.copies import LEDGER, Commit, commits, keep_dataset, keep_run
from services.recovery.key_copies import KeyCopy, keep_key, mark_revoked, revoke_again
from services.recovery.lost_writes import compare, lost_commit, require_complete
from services.recovery.recover import align, recover, still_open
from services.runtime.process import die_with
from services.settings import Settings
from services.store import LostWrites, Store
from services.volume import Volume, checksum
from tests.integration.launch.conditions import eventually
from tests.integration.store.scene import RUN, Scene, record


class Server:
    """A Redis that can be killed and started again on its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._at = Listening(folder, folder / "redis.sock")
        self.url = self._at.url("")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [find_server(servers_here()), write_config(self._at)],
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with(os.getpid()),
        )
        patient = redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 2000)
        with redis.Redis.from_url(self.url, retry=patient) as client:
            client.ping()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def file(self) -> Path:
        """What it appends to."""
        return append_only.files(self.folder)[-1]

    @asynccontextmanager
    async def scene(self) -> AsyncIterator[Scene]:
        store, raw = Store.from_url(self.url), Redis.from_url(self.url)
        yield Scene(store, raw)
        await raw.aclose()
        await store.close()


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    one = Server(folder)
    try:
        yield one
    finally:
        one.kill()


async def commit(scene: Scene, data: Path, step: int, copied: str) -> str:
    """Train and commit a step, as a learner does; returns the newest row that its copy has."""
    await scene.plan(step, await scene.finished(2))
    checkpoint = f"runs/{RUN}/checkpoints/step-{step:06d}-{scene.lineage}"
    (data / checkpoint / "training").mkdir(parents=True)
    state = data / checkpoint / "training" / "state.json"
    state.write_text(json.dumps({"lineages": [[scene.lineage, 0]]}))
    entry = {"bytes": state.stat().st_size, "xxh3": checksum(state)}
    manifest = {"files": {"training/state.json": entry}}
    (data / checkpoint / "manifest.json").write_text(json.dumps(manifest))
    store = scene.store
    await store.trajectories.commit(RUN, scene.fencing_token, scene.lineage, step, checkpoint)
    rows = await store.ledger.rows_after(RUN, copied)
    with (data / "runs" / RUN / LEDGER).open("ab") as file:
        file.write(msgspec.json.encode(Commit(time.time(), step, checkpoint, rows)) + b"\n")
    scene.version = step
    return rows[-1][0]


async def trained(scene: Scene, data: Path, steps: int) -> list[int]:
    """A run of so many steps with its copies; the size of Redis' file after each."""
    await scene.start(rows=7)
    record = await scene.store.runs.get(RUN)
    dataset = await scene.store.datasets.find("d")
    assert record is not None
    assert dataset is not None
    keep_run(data, record)
    keep_dataset(data, dataset)
    copied, sizes = "", []
    for step in range(1, steps + 1):
        copied = await commit(scene, data, step, copied)
        sizes.append(step)
    return sizes


async def test_a_cut_file_is_noticed_by_its_commits_and_the_run_goes_on_from_its_newest_checkpoint(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await scene.start(rows=7, eta=5)
            record, dataset = await scene.store.runs.get(RUN), await scene.store.datasets.find("d")
            assert record is not None
            assert dataset is not None
            keep_run(data, record)
            keep_dataset(data, dataset)
            copied = await commit(scene, data, 1, "")
            copied = await commit(scene, data, 2, copied)
            await scene.leased(2)
            size = one.file.stat().st_size
            await scene.store.prompts.drop(RUN, (await scene.leased(1))[0].attempt, "too_long", "é")
            copied = await commit(scene, data, 3, copied)
            copied = await commit(scene, data, 4, copied)
            await require_complete(scene.store, data)
        one.kill()
        os.truncate(one.file, size + 20)
        one.start()

        async with one.scene() as scene:
            store = scene.store
            with pytest.raises(LostWrites, match=r"step 4.*up to step 2.*headrace recover"):
                await require_complete(store, data)
            behind = await store.runs.get(RUN)
            assert behind is not None
            assert "step 4" in str(lost_commit(data, behind))

            done = await recover(store, data, await compare(store, data))

            assert "goes on from step 4" in done[0]
            await require_complete(store, data)
            found = await store.ledger.audit(RUN)
            assert (found.trained, found.dropped, found.lost, found.duplicated) == (
                8,
                {"too_long": 1},
                0,
                0,
            )
            assert found.problems == []
            assert "step 4" in found.unknown[0]
            assert found.in_flight == found.tasks - 9
            # It goes on: each task once.
            await scene.take_over("bbb")
            scene.version = 4
            await commit(scene, data, 5, copied)
            found = await store.ledger.audit(RUN)
            assert (found.trained, found.lost, found.duplicated) == (10, 0, 0)


async def test_a_redis_that_begins_empty_gets_runs_and_datasets_back_from_their_copies(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            await scene.raw.flushall()
            with pytest.raises(LostWrites, match="dataset d"):
                await require_complete(scene.store, data)

            done = await recover(scene.store, data, await compare(scene.store, data))

            assert any(f"headrace resume {RUN}" in sentence for sentence in done)
            run = await scene.store.runs.get(RUN)
            assert run is not None
            assert (run.state, run.committed_step) == ("cancelled", 2)
            found = await scene.store.ledger.audit(RUN)
            assert (found.trained, found.lost, found.duplicated) == (4, 0, 0)
            assert await scene.store.datasets.find("d") is not None
            await require_complete(scene.store, data)


def key_copy(id: str) -> KeyCopy:
    return KeyCopy(digest=f"hash of {id}", record=ApiKeyRecord(id=id, name="alice", created=1.0))


async def test_a_lost_key_is_noticed_and_a_revoked_one_never_comes_back(tmp_path: Path) -> None:
    data, kept, revoked = tmp_path / "data", key_copy("kept"), key_copy("revoked")
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            store = scene.store
            for copy in (kept, revoked):
                await store.api_keys.add(copy.digest, copy.record)
                keep_key(data, copy)
            mark_revoked(data, [revoked.digest])
            await require_complete(store, data)
            assert await store.api_keys.list() == [kept.record, revoked.record]
            assert await revoke_again(store, data) == ["API key alice (revoked) is revoked again"]
            assert await store.api_keys.list() == [kept.record]
            await scene.raw.flushall()
            with pytest.raises(LostWrites, match=r"API key alice \(kept\) has a copy"):
                await require_complete(store, data)

            done = await recover(store, data, await compare(store, data))

            assert done == ["API key alice (kept) is accepted again"]
            assert await store.api_keys.digests() == {kept.digest: kept.record}


async def test_after_a_restore_the_copies_of_keys_are_those_of_the_backup(tmp_path: Path) -> None:
    data, newer, restored = tmp_path / "data", key_copy("newer"), key_copy("restored")
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            keep_key(data, newer)
            await scene.store.api_keys.add(restored.digest, restored.record)
            await align(scene.store, data)
            await require_complete(scene.store, data)
            await scene.raw.flushall()
            lost = await compare(scene.store, data)
            assert lost.keys == [restored]


async def test_a_damaged_checkpoint_is_not_recovered_from(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            await scene.raw.flushall()
            (data / f"runs/{RUN}/checkpoints/step-000002-aaa/training/state.json").write_text("{}")
            await recover(scene.store, data, await compare(scene.store, data))
            run = await scene.store.runs.get(RUN)
            assert run is not None
            assert run.committed_step == 1
            await require_complete(scene.store, data)


async def test_a_restored_backup_takes_no_newer_copy_for_a_loss(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            keep_run(data, record("gone"))
            await scene.raw.hset(f"headrace:{{{RUN}}}:run", "committed_step", "1")
            await align(scene.store, data)
            assert [one.step for one in commits(data, RUN)] == [1]
            await require_complete(scene.store, data)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a killed Redis, with the record of what it wrote."""
    folder = tmp_path_factory.mktemp("written") / "redis"
    with server(folder) as one, redis.Redis.from_url(one.url) as client:
        chance = random.Random(7)
        pipe = client.pipeline(transaction=False)
        for number in range(1500):
            pipe.hset("blobs", str(number), chance.randbytes(2000))
        pipe.execute()
        asyncio.run(watched(folder, one.url))
        size = one.file.stat().st_size
        client.set("after the record", "1")
        one.kill()
        assert one.file.stat().st_size > size
    return folder


async def watched(folder: Path, url: str) -> None:
    """Watch until there is a record."""
    watching = asyncio.create_task(append_only.watch(folder, url))
    await asyncio.to_thread(eventually, (folder / append_only.RECORD).exists)
    watching.cancel()
    await asyncio.wait([watching])


async def test_a_command_that_a_killed_redis_had_half_written_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis cuts it off as it starts, and goes on from there."""
    monkeypatch.setattr(append_only, "EVERY", 0.01)
    server = Server(tmp_path / "redis")
    watching = asyncio.create_task(append_only.watch(server.folder, server.url))

    def recorded() -> bool:
        record = server.folder / append_only.RECORD
        if not record.exists():
            return False
        files = json.loads(record.read_bytes())["files"]
        name = str(server.file.relative_to(server.folder))
        return bool(files[name]["bytes"] == server.file.stat().st_size)

    async def write(key: str) -> None:
        async with Redis.from_url(server.url) as raw:
            await raw.set(key, key * 1000)
        await asyncio.to_thread(eventually, recorded)

    await write("a")
    server.kill()
    whole = server.file.stat().st_size
    with server.file.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1000\r\nbb")
    await asyncio.sleep(1)
    await asyncio.to_thread(server.start)
    assert server.file.stat().st_size == whole
    await write("c")
    watching.cancel()
    await asyncio.wait([watching])
    server.kill()

    append_only.check(server.folder)


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    files = shutil.ignore_patterns("*.sock")
    return Path(shutil.copytree(written, tmp_path / "redis", ignore=files))


def test_a_file_that_is_as_it_was_written_is_taken_also_with_a_torn_end(folder: Path) -> None:
    append_only.check(folder)
    file = append_only.files(folder)[-1]
    os.truncate(file, file.stat().st_size - 5)
    append_only.check(folder)


def test_a_file_that_was_cut_is_refused_with_both_sizes(folder: Path) -> None:
    file = append_only.files(folder)[-1]
    size = file.stat().st_size
    os.truncate(file, size * 8 // 10)
    with pytest.raises(LaunchError, match=f"has {size * 8 // 10:,} bytes, and had .*recover"):
        append_only.check(folder)


def test_values_that_were_changed_are_noticed_and_what_lies_before_them_is_kept(
    folder: Path, tmp_path: Path
) -> None:
    file = append_only.files(folder)[-1]
    content = bytearray(file.read_bytes())
    chance = random.Random(3)
    for place in chance.sample(range(2 * append_only.BLOCK, len(content)), 200):
        content[place] ^= 1 << chance.randrange(8)
    file.write_bytes(content)
    with pytest.raises(LaunchError, match=f"from byte {2 * append_only.BLOCK:,} on"):
        append_only.check(folder)

    assert "2,097,152" in str(append_only.mend(folder))

    (kept,) = tmp_path.glob("redis.damaged-*")
    assert append_only.files(kept)[-1].read_bytes() == content
    append_only.check(folder)
    with server(folder) as one, redis.Redis.from_url(one.url) as client:
        assert 900 < int(client.hlen("blobs")) < 1100


def test_whoever_does_not_accept_the_loss_has_the_files_as_they_were(
    folder: Path, tmp_path: Path
) -> None:
    keep_run(tmp_path, record("lost"))
    file = append_only.files(folder)[-1]
    os.truncate(file, file.stat().st_size * 8 // 10)
    before = file.read_bytes()
    asked = subprocess.run(
        [sys.executable, "-m", "services.cli", "recover", "--data", str(tmp_path)],
        env={k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")},
        input="n\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (asked.returncode, asked.stderr) == (1, "error: nothing was changed\n")
    assert "lost: run lost (lost) has files, and no record in Redis" in asked.stdout
    assert file.read_bytes() == before
    assert not list(tmp_path.glob("redis.damaged-*"))
    with pytest.raises(LaunchError, match="acknowledged writes are lost"):
        append_only.check(folder)


def test_files_that_redis_cannot_read_at_all_are_put_aside(folder: Path) -> None:
    (folder / append_only.RECORD).unlink()
    append_only.files(folder)[0].write_bytes(b"REDIS0009 and nothing that it could read")
    assert "Redis begins empty" in str(append_only.mend(folder))
    with server(folder) as one, redis.Redis.from_url(one.url) as client:
        assert client.dbsize() == 0


def test_a_file_that_redis_has_written_anew_since_the_record_is_taken(folder: Path) -> None:
    with server(folder) as one, redis.Redis.from_url(one.url) as client:
        before = one.file.stat().st_ino, one.file.name
        client.bgrewriteaof()
        eventually(lambda: (one.file.stat().st_ino, one.file.name) != before)
        one.kill()
    append_only.check(folder)


def test_tasks_that_nobody_names_are_those_that_a_lease_would_have_made() -> None:
    cursor = TaskPosition(3, 0, 5, 3)
    # The dataset has grown to 6 rows before the second epoch began.
    after, open_tasks = still_open(cursor, 6, ["1:0:5:1"], ["0:0:5:0", "2:0:5:2", "6:1:6:1"])
    assert open_tasks == ["1:0:5:1", "3:0:5:3", "4:0:5:4", "5:1:6:0"]
    assert str(after) == "7:1:6:2"


async def test_a_gateway_does_not_start_on_a_redis_that_has_lost_a_run(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        keep_run(data, record("gone"))
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "services.gateway", "--port", "0"],
            env=os.environ | {"HEADRACE_REDIS_URL": one.url, "HEADRACE_DATA": str(data)},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 2
        assert "run gone (gone) has files, and no record in Redis" in done.stderr
        assert "headrace recover" in done.stderr


async def test_a_learner_pauses_a_run_whose_commits_redis_has_lost_until_it_is_recovered(
    tmp_path: Path,
) -> None:
    # Imports torch.
    from learner.rank import next_run
    from learner.store.pool_lock import StoreThread

    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            key = f"headrace:{{{RUN}}}:run"
            await scene.raw.hset(key, "committed_step", "1")
            settings = Settings(redis_url=SecretStr(one.url), data=data)
            volume = Volume(data)

            def look(times: int) -> list[object]:
                with StoreThread(settings, threading.Event()) as thread:
                    thread.take_pool()
                    return [next_run(thread, volume) for _ in range(times)]

            assert await asyncio.to_thread(look, 2) == [None, None]
            run = await scene.store.runs.get(RUN)
            assert run is not None
            assert run.state == "paused"
            assert "Redis knows it up to step 1" in run.reason
            audit = await scene.store.ledger.audit(RUN)
            assert audit.unknown == []
            await recover(scene.store, data, await compare(scene.store, data))
            (taken,) = await asyncio.to_thread(look, 1)
            assert isinstance(taken, RunRecord)
            assert taken.committed_step == 2
