"""A backup's file is whole or refused, never half-written."""

import json
import os
import tarfile
from pathlib import Path

import pytest
from redis.asyncio import Redis

from services.backup.archive import BackupError, _folder, back_up, restore
from services.contracts.schema import SchemaMismatch
from services.store import Store
from services.store.server.dumps import Dump, NotEmpty
from tests.integration.store.scene import RUN, Scene

WEIGHTS = f"runs/{RUN}/weights/v000001-aaa.safetensors"
METRICS = f"runs/{RUN}/metrics.jsonl"
FILE = "openai/files/file-0/content"


def quiet(text: str) -> None:
    assert text


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A volume with a file of every kind."""
    data = tmp_path / "data"
    for name in (WEIGHTS, METRICS, FILE, "datasets/d/0.arrow", "logs/gateway.log", "api-key"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(f"{name}\n")
    unfinished = data / f"runs/{RUN}/checkpoints/.step-000002-aaa"
    unfinished.mkdir(parents=True)
    (unfinished / "model.safetensors").write_text("half")
    return data


def files(data: Path) -> list[str]:
    return sorted(str(p.relative_to(data)) for p in data.rglob("*") if p.is_file())


async def test_a_backup_leaves_out_secrets_logs_and_unfinished_files(
    scene: Scene, store: Store, raw: Redis, data: Path, tmp_path: Path
) -> None:
    await scene.start()
    index = await back_up(store, data, tmp_path / "all.tar", quiet)
    assert (index.runs, index.datasets, index.files) == (1, 1, 4)
    assert (tmp_path / "all.tar").stat().st_mode & 0o077 == 0, "it holds all prompts and answers"
    assert not list(data.glob(".backup*"))

    await raw.flushall()
    there = tmp_path / "there"
    assert await restore(store, there, tmp_path / "all.tar", quiet) == index
    assert files(there) == ["datasets/d/0.arrow", FILE, METRICS, WEIGHTS]
    assert (there / METRICS).read_text() == f"{METRICS}\n"
    assert [run.id for run in await store.runs.all()] == [RUN]


async def test_a_backup_leaves_the_staging_folder_of_another_backup(
    scene: Scene, store: Store, data: Path, tmp_path: Path
) -> None:
    await scene.start()
    (data / ".backup-killed").mkdir()
    with _folder(data, ".backup-") as other:
        assert sorted(data.glob(".backup-*")) == [other]
        (other / "store").mkdir()
        await back_up(store, data, tmp_path / "all.tar", quiet)
        assert (other / "store").is_dir()
    assert not list(data.glob(".backup-*"))


async def test_large_files_are_linked_and_growing_ones_copied(
    store: Store, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked: list[str] = []
    link = os.link

    def noted(source: Path, to: Path) -> None:
        linked.append(Path(source).name)
        link(source, to)

    monkeypatch.setattr(os, "link", noted)
    await back_up(store, data, tmp_path / "all.tar", quiet)
    assert sorted(linked) == ["0.arrow", "v000001-aaa.safetensors"]


async def test_a_torn_file_is_refused_and_changes_nothing(
    scene: Scene, store: Store, raw: Redis, data: Path, tmp_path: Path
) -> None:
    await scene.start()
    await back_up(store, data, tmp_path / "all.tar", quiet)
    await raw.flushall()
    whole = (tmp_path / "all.tar").read_bytes()
    there = tmp_path / "there"
    for size in (0, 100, len(whole) // 2, len(whole) - 10_240):
        (tmp_path / "torn.tar").write_bytes(whole[:size])
        with pytest.raises(BackupError, match=r"torn\.tar is no whole backup"):
            await restore(store, there, tmp_path / "torn.tar", quiet)
        assert files(there) == []
        assert await raw.keys("*") == []


@pytest.mark.parametrize("name", ["missing.tar", "folder.tar", "text.tar"])
async def test_an_invalid_backup_file_is_named(store: Store, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.tar").mkdir()
    (tmp_path / "text.tar").write_text("hello\n" * 1000)
    with pytest.raises(BackupError, match=name):
        await restore(store, tmp_path / "there", tmp_path / name, quiet)


async def test_a_member_that_leads_out_of_the_folder_is_refused(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "evil").write_text("x")
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        archive.add(tmp_path / "evil", "data/../../../evil")
    with pytest.raises(BackupError, match=r"'data/\.\./\.\./\.\./evil' leads out of it"):
        await restore(store, tmp_path / "there", tmp_path / "evil.tar", quiet)


async def test_a_link_is_refused(store: Store, tmp_path: Path) -> None:
    link = tarfile.TarInfo("data/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        archive.addfile(link)
    with pytest.raises(BackupError, match="'data/link' is neither a file nor a folder"):
        await restore(store, tmp_path / "there", tmp_path / "evil.tar", quiet)


@pytest.mark.parametrize(("field", "what"), [("schema", "the backup"), ("state", "the state in")])
async def test_a_newer_schema_is_refused(
    store: Store, raw: Redis, data: Path, tmp_path: Path, field: str, what: str
) -> None:
    await back_up(store, data, tmp_path / "all.tar", quiet)
    opened = tmp_path / "opened"
    with tarfile.open(tmp_path / "all.tar") as archive:
        archive.extractall(opened, filter="data")
    index = json.loads((opened / "backup.json").read_text())
    (opened / "backup.json").write_text(json.dumps(index | {field: 99}))
    with tarfile.open(tmp_path / "newer.tar", "w") as archive:
        for name in ("store", "data", "backup.json"):
            archive.add(opened / name, name)
    await raw.flushall()
    with pytest.raises(SchemaMismatch, match=rf"{what} .*newer\.tar has schema 99, this process"):
        await restore(store, tmp_path / "there", tmp_path / "newer.tar", quiet)
    assert (files(tmp_path / "there"), await raw.keys("*")) == ([], [])


async def test_state_of_another_version_is_not_backed_up(
    store: Store, raw: Redis, data: Path, tmp_path: Path
) -> None:
    await raw.set("headrace:schema", 2)
    with pytest.raises(SchemaMismatch, match="the state in Redis has schema 2"):
        await back_up(store, data, tmp_path / "all.tar", quiet)
    assert not (tmp_path / "all.tar").exists()


async def test_no_learner_takes_a_run_before_it_is_restored(
    scene: Scene,
    store: Store,
    raw: Redis,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await scene.start()
    await back_up(store, data, tmp_path / "all.tar", quiet)
    await raw.flushall()
    written: list[str] = []
    write = store.dumps.write

    async def noted(part: Dump) -> None:
        written.append(part.of)
        await write(part)

    monkeypatch.setattr(store.dumps, "write", noted)
    await restore(store, tmp_path / "there", tmp_path / "all.tar", quiet)
    # Chains come last: a gateway would submit the missing runs of a chain.
    assert written == [*["shared"] * 4, "run", "pool", *["shared"] * 2]


async def test_a_restore_overwrites_no_data(
    scene: Scene, store: Store, raw: Redis, data: Path, tmp_path: Path
) -> None:
    await scene.start()
    await back_up(store, data, tmp_path / "all.tar", quiet)
    with pytest.raises(NotEmpty, match="this Redis holds 1 run "):
        await restore(store, tmp_path / "there", tmp_path / "all.tar", quiet)
    await raw.flushall()
    before = files(data)
    with pytest.raises(BackupError, match="datasets is not empty; a backup goes into an empty"):
        await restore(store, data, tmp_path / "all.tar", quiet)
    assert files(data) == before


async def test_an_interrupted_restore_goes_on(
    scene: Scene, store: Store, raw: Redis, data: Path, tmp_path: Path
) -> None:
    await scene.start()
    index = await back_up(store, data, tmp_path / "all.tar", quiet)
    await raw.flushall()
    there = tmp_path / "there"
    # The state after a first attempt: its mark, some files, its claim on Redis.
    (there / "datasets").mkdir(parents=True)
    (there / f".restored-{index.id}").touch()
    await store.dumps.begin(index.id)
    await restore(store, there, tmp_path / "all.tar", quiet)
    assert files(there) == ["datasets/d/0.arrow", FILE, METRICS, WEIGHTS]
    assert [run.id for run in await store.runs.all()] == [RUN]
