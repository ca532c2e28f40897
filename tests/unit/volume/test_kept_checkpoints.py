"""Checkpoints on the volume: listed, pinned, and sent as an archive."""

import io
import shutil
import tarfile
from pathlib import Path

import pytest

from services.volume.kept_checkpoints import TarStream, kept_checkpoints, pin, pinned_names


def made(root: Path, name: str, **files: bytes) -> Path:
    folder = root / name
    (folder / "training").mkdir(parents=True)
    for file, content in files.items():
        (folder / file.replace("__", "/")).write_bytes(content)
    return folder


def test_checkpoints_are_listed_with_their_pins_the_newest_step_first(tmp_path: Path) -> None:
    assert kept_checkpoints(tmp_path / "missing") == []
    made(tmp_path, "step-000002-aaa", weights=b"12345")
    newest = made(tmp_path, "step-000010-bbb", weights=b"123", training__state=b"4567")
    for unfinished in (".step-000011-ccc.old", "other", "step-000012"):
        made(tmp_path, unfinished)
    pin(newest, True)
    pin(newest, True)

    found = kept_checkpoints(tmp_path)

    assert [(each.step, each.bytes, each.is_pinned) for each in found] == [
        (10, 7, True), (2, 5, False),
    ]  # fmt: skip
    pin(newest, False)
    pin(newest, False)
    assert pinned_names(tmp_path) == set()


def test_a_checkpoint_that_is_deleted_meanwhile_leaves_no_pin(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pin(tmp_path / "step-000001-a", True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, (1 << 20) + 7])
def test_an_archive_has_each_file_whole_and_its_size_is_known_before(
    tmp_path: Path, size: int
) -> None:
    content = bytes(i % 251 for i in range(size))
    long = "x" * 150
    folder = made(tmp_path, "step-000001-a", weights=content, **{f"training__{long}": b"state"})
    (folder / "link").symlink_to("/etc/passwd")
    stream = TarStream(folder, "r1-step-000001-a")
    # Files stay readable that are deleted after the archive has begun.
    shutil.rmtree(folder)

    archive = b"".join(stream.pieces())

    assert len(archive) == stream.bytes
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        names = tar.getnames()
        assert names == [f"r1-step-000001-a/training/{long}", "r1-step-000001-a/weights"]
        file = tar.extractfile(names[1])
        assert file is not None
        assert file.read() == content
