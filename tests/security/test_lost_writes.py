"""Redis loses writes that it had acknowledged: that is noticed, said, and mended."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from pydantic import SecretStr
from redis.asyncio import Redis
from typer.testing import CliRunner, Result

from services.cli.main import root
from services.contracts.records import ApiKeyRecord, RunRecord
from services.contracts.rows.task import TaskPosition
from services.launch import DataFolder
from services.launch.data_folder import AGREED, COPY, REDIS
from services.launch.redis import Listening, find_server, servers_here, write_config
from services.launch.redis_files import increments, use_copy
from services.recovery.copies import LEDGER, Commit, commits, keep_dataset, keep_run
from services.recovery.key_copies import KeyCopy, keep_key, mark_revoked, revoke_again
from services.recovery.lost_writes import compare, lost_commit, require_complete
from services.recovery.recover import align, cut_ledgers, recover, still_open
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
        """The file that Redis appends to."""
        return increments(self.folder)[-1]

    def rewrite(self) -> None:
        """Have Redis write its file anew, and wait until its child has written the snapshot."""
        with redis.Redis.from_url(self.url) as client:
            client.bgrewriteaof()
            eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
            assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"

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


async def begun(scene: Scene, data: Path, **options: Any) -> None:
    """A run on seven rows, with its copies."""
    await scene.start(rows=7, **options)
    record, dataset = await scene.store.runs.get(RUN), await scene.store.datasets.find("d")
    assert record is not None
    assert dataset is not None
    keep_run(data, record)
    keep_dataset(data, dataset)


async def trained(scene: Scene, data: Path, steps: int) -> list[int]:
    """Commit `steps` steps with their copies. Return the size of Redis' file after each."""
    await begun(scene, data)
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
            await begun(scene, data, eta=5)
            copied = await commit(scene, data, 1, "")
            copied = await commit(scene, data, 2, copied)
            await scene.leased(2)
            size = one.file.stat().st_size
            await scene.store.prompts.drop(RUN, (await scene.leased(1))[0].attempt, "too_long", "é")
            copied = await commit(scene, data, 3, copied)
            copied = await commit(scene, data, 4, copied)
            await require_complete(scene.store, data, one.url)
        one.kill()
        os.truncate(one.file, size + 20)
        one.start()

        async with one.scene() as scene:
            store = scene.store
            with pytest.raises(LostWrites, match=r"(?s)step 4.*up to step 2.*headrace recover"):
                await require_complete(store, data, one.url)
            behind = await store.runs.get(RUN)
            assert behind is not None
            assert "step 4" in str(lost_commit(data, behind, one.url))

            done = await recover_losses(store, data)

            assert "goes on from step 4" in done[0]
            await require_complete(store, data, one.url)
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
                await require_complete(scene.store, data, one.url)

            done = await recover_losses(scene.store, data)

            assert any(f"headrace resume {RUN}" in sentence for sentence in done)
            run = await scene.store.runs.get(RUN)
            assert run is not None
            assert (run.state, run.committed_step) == ("cancelled", 2)
            found = await scene.store.ledger.audit(RUN)
            assert (found.trained, found.lost, found.duplicated) == (4, 0, 0)
            assert await scene.store.datasets.find("d") is not None
            await require_complete(scene.store, data, one.url)


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
            await require_complete(store, data, one.url)
            assert await store.api_keys.list() == [kept.record, revoked.record]
            assert await revoke_again(store, data) == ["API key alice (revoked) is revoked again"]
            assert await store.api_keys.list() == [kept.record]
            await scene.raw.flushall()
            with pytest.raises(LostWrites, match=r"API key alice \(kept\) has a copy"):
                await require_complete(store, data, one.url)

            done = await recover_losses(store, data)

            assert done == ["API key alice (kept) is accepted again"]
            assert await store.api_keys.digests() == {kept.digest: kept.record}


async def test_after_a_restore_the_copies_of_keys_are_those_of_the_backup(tmp_path: Path) -> None:
    data, newer, restored = tmp_path / "data", key_copy("newer"), key_copy("restored")
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            keep_key(data, newer)
            await scene.store.api_keys.add(restored.digest, restored.record)
            await align(scene.store, data)
            await require_complete(scene.store, data, one.url)
            await scene.raw.flushall()
            lost = await compare(scene.store, data)
            assert lost.keys == [restored]


@pytest.mark.parametrize(
    ("redis_knows", "is_over", "said"),
    [
        (None, True, "is there again as succeeded, with all of its 2 steps"),
        (1, True, "stays succeeded, with the checkpoint of step 2"),
        (1, False, "has all of its 2 steps, and ends once a learner serves its pool"),
    ],
)
async def test_a_run_with_its_last_checkpoint_is_over_after_recover(
    tmp_path: Path, redis_knows: int | None, is_over: bool, said: str
) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            key = f"headrace:{{{RUN}}}:run"
            if redis_knows is None:
                copy = await scene.store.runs.get(RUN)
                assert copy is not None
                at_first = {"max_steps": 2, "committed_step": 0, "checkpoint": None}
                keep_run(data, copy.model_copy(update=at_first))
                await scene.raw.flushall()
            else:
                await scene.raw.hset(key, mapping={"committed_step": redis_knows, "max_steps": 2})
                if is_over:
                    await scene.store.runs.set_state(RUN, "succeeded", "")

            done = await recover_losses(scene.store, data)

            assert f"run {RUN} ({RUN}) {said}" in done
            run = await scene.store.runs.get(RUN)
            assert run is not None
            assert (run.state == "succeeded", run.committed_step) == (is_over, 2)


async def test_lost_writes_are_told_in_lines_with_the_command_to_copy(tmp_path: Path) -> None:
    data = tmp_path / "of Ann"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            await scene.raw.hset(f"headrace:{{{RUN}}}:run", "committed_step", "1")
            (data / "redis").mkdir()
            with pytest.raises(LostWrites) as own:
                await require_complete(scene.store, data, one.url)
            (data / "redis").rmdir()
            with pytest.raises(LostWrites) as other:
                await require_complete(scene.store, data, "redis://:secret@far:6379")
    first, fact, *_, command = str(own.value).splitlines()
    assert first == "Redis has lost acknowledged writes"
    assert "step 2" in fact
    assert command.endswith(f" recover --data '{data}'")
    assert str(other.value).endswith(f" --data '{data}' --redis-url 'redis://:***@far:6379'")


async def test_a_damaged_checkpoint_is_not_recovered_from(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            await scene.raw.flushall()
            (data / f"runs/{RUN}/checkpoints/step-000002-aaa/training/state.json").write_text("{}")
            await recover_losses(scene.store, data)
            run = await scene.store.runs.get(RUN)
            assert run is not None
            assert run.committed_step == 1
            await require_complete(scene.store, data, one.url)


async def test_a_restored_backup_takes_no_newer_copy_for_a_loss(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            keep_run(data, record("gone"))
            await scene.raw.hset(f"headrace:{{{RUN}}}:run", "committed_step", "1")
            await align(scene.store, data)
            assert [one.step for one in commits(data, RUN)] == [1]
            await require_complete(scene.store, data, one.url)


MORE_SERVERS = os.environ.get("HEADRACE_TEST_SERVERS", "")
"""Paths of other servers, with `:` between them."""
SERVERS = [path for path in servers_here() if path.exists()]
SERVERS += [Path(path) for path in MORE_SERVERS.split(":") if path]


@pytest.fixture(params=SERVERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each server of this machine in turn, and each of HEADRACE_TEST_SERVERS."""

    def only() -> list[Path]:
        return [request.param]

    monkeypatch.setattr("services.launch.redis.servers_here", only)
    monkeypatch.setattr("services.launch.redis_files.servers_here", only)
    monkeypatch.setattr(sys.modules[__name__], "servers_here", only)
    return Path(request.param)


@pytest.fixture
async def rewritten(tmp_path: Path, installed: Path) -> Path:
    """A data folder with a run of two commits, whose Redis has written its file anew after the
    first and was killed."""
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await begun(scene, tmp_path)
            copied = await commit(scene, tmp_path, 1, "")
            await asyncio.to_thread(one.rewrite)
            (tmp_path / "snapshot_bytes").write_text(str(one.file.stat().st_size))
            await commit(scene, tmp_path, 2, copied)
    return tmp_path


def snapshot_bytes(data: Path) -> int:
    """Bytes before the first command in the newest file of a rewritten Redis: 0, or in Redis 6 the
    snapshot, which is in the same file."""
    return int((data / "snapshot_bytes").read_text())


def snapshot(data: Path) -> Path:
    """The file with the snapshot of a rewritten Redis."""
    return next((data / "redis").rglob("*.base.*"), increments(data / "redis")[-1])


def flipped(data: Path, place: str) -> Path | None:
    """Flip bits of one byte in a file of a rewritten Redis. Return the file if Redis has it."""
    file, at, bits = increments(data / "redis")[-1], 0, 0x15
    match place:
        case "increment":
            middle = (snapshot_bytes(data) + file.stat().st_size) // 2
            at = file.read_bytes().index(b"\r\n*", middle) + 2
        case "snapshot":
            file, at = snapshot(data), 40
        case "manifest" | "name":
            manifest = next((data / "redis").rglob("*.manifest"), None)
            if manifest is None:
                return None
            file = manifest
            if place == "name":
                at, bits = file.read_bytes().rindex(b"."), ord(".") ^ ord("/")
    content = bytearray(file.read_bytes())
    content[at] ^= bits
    file.write_bytes(content)
    return file


def cut(data: Path) -> None:
    """Cut the newest file of a rewritten Redis after its first commands."""
    os.truncate(increments(data / "redis")[-1], snapshot_bytes(data) + 100)


async def recover_losses(store: Store, data: Path) -> list[str]:
    """Recover as `headrace recover` does it on a Redis that runs."""
    done, steps = await recover(store, data, await compare(store, data))
    cut_ledgers(data, steps)
    return done


def recovering(data: Path, *options: str) -> Result:
    return CliRunner().invoke(root, ["recover", "--data", str(data), *options])


def contents(data: Path) -> dict[str, bytes]:
    """The files of Redis and of the ledger's copy."""
    files = [*(data / "redis").rglob("*.aof*"), *(data / "redis").rglob("*.rdb")]
    files += (data / "runs").rglob(LEDGER)
    return {str(path.relative_to(data)): path.read_bytes() for path in files}


@contextmanager
def recovered(data: Path) -> Iterator[redis.Redis]:
    """The Redis of a data folder that was recovered."""
    with server(data / "redis") as one, redis.Redis.from_url(one.url) as client:
        yield client


def committed(client: redis.Redis) -> int:
    return int(client.hget(f"headrace:{{{RUN}}}:run", "committed_step") or 0)


@pytest.mark.parametrize("options", [(), ("--yes",), ("--json",), ("--json", "--yes")])
async def test_recover_leaves_files_that_have_lost_nothing_as_they_are(
    rewritten: Path, options: tuple[str, ...]
) -> None:
    before = contents(rewritten)
    done = await asyncio.to_thread(recovering, rewritten, *options)
    assert done.exit_code == 0, done.output
    assert ('"done": []' if "--json" in options else "nothing is lost") in done.output
    assert contents(rewritten) == before
    assert not list(rewritten.glob("redis.*"))
    with recovered(rewritten) as client:
        assert committed(client) == 2


async def test_recover_goes_on_from_the_newest_checkpoint_after_a_cut_in_a_rewritten_file(
    rewritten: Path,
) -> None:
    cut(rewritten)
    file = snapshot(rewritten)
    content = file.read_bytes()
    done = await asyncio.to_thread(recovering, rewritten, "--yes")
    assert done.exit_code == 0, done.output
    assert f"({RUN}) goes on from step 2" in done.output
    (kept,) = rewritten.glob("redis.damaged-*")
    assert (kept / file.relative_to(rewritten / "redis")).read_bytes() == content
    with recovered(rewritten) as client:
        assert committed(client) == 2
    again = await asyncio.to_thread(recovering, rewritten)
    assert "nothing is lost" in again.output


@pytest.mark.parametrize(
    ("place", "lost"),
    [
        ("increment", "is damaged: "),
        ("snapshot", "cannot be read: Redis begins empty"),
        ("manifest", "cannot be read: Redis begins empty"),
        ("name", "cannot be read: Redis begins empty"),
    ],
)
async def test_recover_keeps_what_lies_before_a_damage_and_changes_nothing_without_consent(
    rewritten: Path, place: str, lost: str
) -> None:
    file = flipped(rewritten, place)
    if file is None:
        pytest.skip("Redis 6 has no manifest")
    before = contents(rewritten)

    refused = await asyncio.to_thread(recovering, rewritten, "--json")
    assert refused.exit_code == 1
    assert "Nothing was changed: add --yes" in str(refused.exception)
    asked = await asyncio.to_thread(
        CliRunner().invoke, root, ["recover", "--data", str(rewritten)], input="n\n"
    )
    nobody = await asyncio.to_thread(recovering, rewritten)
    for done in (asked, nobody):
        assert done.exit_code == 1
        assert str(done.exception).startswith("nothing was changed; --yes")
    assert lost in asked.output
    assert contents(rewritten) == before
    assert not list(rewritten.glob("redis.*"))

    done = await asyncio.to_thread(recovering, rewritten, "--yes")
    assert done.exit_code == 0, done.output
    with recovered(rewritten) as client:
        assert committed(client) == 2
        if place == "increment":
            assert lost in str(client.hget(f"headrace:{{{RUN}}}:run", "lost_writes"))
    (kept,) = rewritten.glob("redis.damaged-*")
    name = str(file.relative_to(rewritten / "redis"))
    assert (kept / name).read_bytes() == before[f"redis/{name}"]


async def test_an_empty_snapshot_counts_as_damaged(rewritten: Path) -> None:
    """Redis would load no record, and apply the later commands to nothing."""
    file = snapshot(rewritten)
    if file == increments(rewritten / "redis")[-1]:
        pytest.skip("Redis 6 has the snapshot and the commands in one file")
    os.truncate(file, 0)
    done = await asyncio.to_thread(recovering, rewritten, "--yes")
    assert done.exit_code == 0, done.output
    assert "Redis begins empty" in done.output
    assert f"({RUN}) is there again as cancelled, up to step 2" in done.output
    with recovered(rewritten) as client:
        assert committed(client) == 2


async def test_remains_of_a_run_without_a_record_are_deleted_before_it_comes_back(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            await scene.raw.flushall()
            await scene.raw.hset(f"headrace:{{{RUN}}}:run", "state", "running")
            await scene.raw.zadd(f"headrace:{{{RUN}}}:returned", {"7:0:7:0": 7})

            await recover_losses(scene.store, data)

            run = await scene.store.runs.get(RUN)
            assert run is not None
            assert (run.state, run.committed_step) == ("cancelled", 2)
            found = await scene.store.ledger.audit(RUN)
            assert (found.trained, found.lost, found.duplicated) == (4, 0, 0)


async def test_recover_that_fails_half_way_has_changed_nothing(
    rewritten: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(rewritten)
    before = contents(rewritten)

    async def fails(*_: object) -> None:
        raise RuntimeError("half way")

    monkeypatch.setattr("services.recovery.recover.revoke_again", fails)
    done = await asyncio.to_thread(recovering, rewritten, "--yes")
    assert isinstance(done.exception, RuntimeError)
    assert contents(rewritten) == before
    assert not list(rewritten.glob("redis.*"))


async def test_recover_refuses_a_folder_without_an_installation(tmp_path: Path) -> None:
    done = await asyncio.to_thread(recovering, tmp_path)
    assert done.exit_code == 1
    assert "name the data folder with --data" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", ["redis", "redis.recovered/redis"])
async def test_recover_that_cannot_swap_folders_has_changed_nothing(
    rewritten: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    cut(rewritten)
    before, rename = contents(rewritten), Path.rename

    def fails(path: Path, target: Path) -> Path:
        if path == (rewritten / source).resolve():
            raise OSError(5, "Input/output error", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails)
    done = await asyncio.to_thread(recovering, rewritten, "--yes")
    assert done.exit_code == 1
    assert contents(rewritten) == before
    assert not list(rewritten.glob("redis.damaged-*"))


def killed_before_rename(data: Path, number: int) -> None:
    """Run `headrace recover` in a child that kills itself before a rename: 1 to 3 swap the folders,
    4 replaces the ledger."""
    renames = []
    swapped = {str(data / name) for name in (COPY, REDIS, f"{AGREED}/{REDIS}")}

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and (str(arguments[0]) in swapped or LEDGER in str(arguments[1])):
            renames.append(arguments)
            if len(renames) == number:
                os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        sys.addaudithook(watch)
        recovering(data, "--yes")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_a_swap_is_on_the_disk_before_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    rename = Path.rename

    def noted(path: Path, target: Path) -> Path:
        calls.append(path.name)
        return rename(path, target)

    monkeypatch.setattr(os, "sync", lambda: calls.append("sync"))
    monkeypatch.setattr(Path, "rename", noted)
    for folder in ("redis", "redis.recovering/redis"):
        (tmp_path / folder).mkdir(parents=True)
    use_copy(tmp_path)
    assert calls == ["sync", "redis.recovering", "redis", "redis", "sync"]


@pytest.mark.parametrize(
    ("number", "left"),
    [(1, {COPY, REDIS}), (2, {AGREED, REDIS}), (3, {AGREED}), (4, {REDIS})],
)
async def test_recover_that_is_killed_loses_nothing_and_is_finished_by_the_next(
    rewritten: Path, number: int, left: set[str]
) -> None:
    cut(rewritten)
    before = contents(rewritten)
    await asyncio.to_thread(killed_before_rename, rewritten, number)
    assert {name for name in (COPY, AGREED, REDIS) if (rewritten / name).exists()} == left
    with DataFolder(rewritten):
        # As `headrace up` begins.
        assert (rewritten / "redis").exists()
        assert not list(rewritten.glob("redis.reco*"))
    done = await asyncio.to_thread(recovering, rewritten, "--yes")
    assert done.exit_code == 0, done.output
    with recovered(rewritten) as client:
        assert committed(client) == 2
    assert [commit.step for commit in commits(rewritten, RUN)] == [1, 2]
    (kept,) = rewritten.glob("redis.*")
    assert {f"redis/{path.relative_to(kept)}" for path in kept.rglob("*.aof*")} <= before.keys()


async def test_redis_cuts_off_a_half_written_last_command_without_a_loss(rewritten: Path) -> None:
    with increments(rewritten / "redis")[-1].open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1000\r\nbb")
    done = await asyncio.to_thread(recovering, rewritten)
    assert "nothing is lost" in done.output


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
    from learner.store.thread import StoreThread

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
            await recover_losses(scene.store, data)
            (taken,) = await asyncio.to_thread(look, 1)
            assert isinstance(taken, RunRecord)
            assert taken.committed_step == 2
