"""Ranks that write a checkpoint together, with a stand-in for the disk and for the ranks."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from learner.checkpoints import checkpoint_writer
from learner.checkpoints.background_writer import PartWriter
from learner.checkpoints.captured import capture
from learner.checkpoints.checkpoint_reader import verify
from learner.checkpoints.checkpoint_writer import WrittenPart, complete, write_part
from learner.optim.optimizers import Optimizers
from learner.persist.disk_retry import Disk, OtherRank
from learner.slices import RankPart
from services.contracts.config.optimizer import AdamW
from services.volume import fsync
from tests.unit.learner.disks import Status
from tests.unit.learner.policies import state_of, tiny_model


class Others:
    """Ranks that have all written the same files as this rank."""

    def of_threads(self) -> "Others":
        return self

    def gather(self, message: bytes) -> list[bytes]:
        return [message] * 4


class Asked:
    """A disk that records the requested space."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.root = Path("/")

    def retry(self, name: str, write: Callable[[], Any], size: int = 0) -> WrittenPart:
        self.sizes.append(size)
        return WrittenPart({})


def test_each_rank_asks_for_the_room_that_all_of_them_take() -> None:
    disk = Asked()
    writer = PartWriter(disk, Others())  # type: ignore[arg-type]
    path = "runs/r/checkpoints/step-000001-a"
    captured: Any = SimpleNamespace(
        size=100, part=RankPart(1, 4), progress=SimpleNamespace(path=path)
    )
    writer.submit(captured)
    writer.wait()
    writer.close()
    assert disk.sizes == [400]


class Warned:
    """A run's store that records its warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def cancelled(self) -> bool:
        return False


def test_a_run_that_stands_still_for_the_disk_of_another_rank_says_so(tmp_path: Path) -> None:
    store, full = Warned(), [OSError(errno.ENOSPC, "")]

    def write() -> None:
        if full:
            raise full.pop()

    status = OtherRank(store, 3)  # type: ignore[arg-type]
    Disk(tmp_path, status, threading.Event()).retry("runs/r/x", write)
    (warning,) = store.warnings
    assert warning.startswith(
        "rank 3 waits for its disk: cannot write runs/r/x: No space left on device"
    )


def test_a_rename_of_parts_that_the_disk_has_not_taken_yet_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts are already under their final name, and no rank writes them again."""
    loaded = tiny_model()
    state = state_of(loaded, Optimizers(loaded.model, AdamW(type="adamw")))
    captured = [capture(state, RankPart(number, 2)) for number in (0, 1)]
    written = [write_part(tmp_path, one) for one in captured]
    failing = [OSError(errno.EIO, "")]

    def failing_fsync(path: Path) -> None:
        if path == tmp_path and failing:
            raise failing.pop()
        fsync(path)

    monkeypatch.setattr(checkpoint_writer, "fsync", failing_fsync)
    disk = Disk(tmp_path, Status(), threading.Event())
    folder = disk.retry("x", lambda: complete(tmp_path, captured[0], written, lambda: None))

    assert not failing
    assert verify(folder).run == captured[0].progress.run
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
