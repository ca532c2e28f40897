"""`headrace recover` mends Redis' damaged files on a copy, and changes nothing without consent."""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner, Result

from headrace.cli.main import root
from services.launch import DataFolder
from services.launch.data_folder import AGREED, COPY, REDIS
from services.launch.redis import bundled_server
from services.launch.redis_trial import increments, use_copy
from services.recovery.record_copies import LEDGER, commits
from tests.integration.store.scene import RUN
from tests.security.redis_losses import begun, commit, recover_losses, server, trained

MORE_SERVERS = os.environ.get("HEADRACE_TEST_SERVERS", "")
"""Paths of other servers, with `:` between them."""
SERVERS = [bundled_server()]
SERVERS += [Path(path) for path in MORE_SERVERS.split(":") if path]


@pytest.fixture(params=SERVERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundled server, and each of HEADRACE_TEST_SERVERS."""

    def only() -> Path:
        return Path(request.param)

    monkeypatch.setattr("services.launch.redis.bundled_server", only)
    monkeypatch.setattr("services.launch.redis_trial.bundled_server", only)
    monkeypatch.setattr("tests.security.redis_losses.bundled_server", only)
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


async def test_a_file_that_the_disk_cannot_read_is_kept_up_to_there(rewritten: Path) -> None:
    file = increments(rewritten / "redis")[-1]
    file.unlink()
    # The kernel answers EIO: nothing of a process' memory is at address 0.
    file.symlink_to("/proc/self/mem")
    asked = await asyncio.to_thread(recovering, rewritten)
    assert f"lost: Redis' file {file.name} cannot be read" in asked.output
    done = await asyncio.to_thread(recovering, rewritten, "--yes")
    assert done.exit_code == 0, done.output
    assert "Input/output error after 0 bytes" in done.output
    with recovered(rewritten) as client:
        assert committed(client) == 2


async def test_recover_on_a_full_disk_says_so_in_a_line_and_has_changed_nothing(
    rewritten: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(rewritten)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    done = await asyncio.to_thread(recovering, rewritten, "--yes")
    assert str(done.exception) == f"{rewritten}: No space left on device"
    assert contents(rewritten) == before
    assert not list(rewritten.glob("redis.*"))


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
