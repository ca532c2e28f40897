"""A full disk pauses the run, and the run continues when the disk accepts writes again."""

import errno
import resource
import shutil
import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import pytest
from safetensors import SafetensorError

from learner.persist.disk_retry import CannotWrite, Disk, append, disk_error
from tests.unit.learner.disks import Status


def disk_of(status: Status) -> Disk:
    return Disk(Path("/"), status, threading.Event())


def failing(times: int, error: OSError) -> Callable[[], str]:
    left = [error] * times

    def write() -> str:
        if left:
            raise left.pop()
        return "written"

    return write


def test_a_write_is_tried_until_it_works_and_the_run_pauses_meanwhile() -> None:
    status = Status()
    full = OSError(errno.ENOSPC, "No space left on device")

    assert disk_of(status).retry("runs/r/weights/v1", failing(2, full)) == "written"

    assert status.said == [
        "cannot write runs/r/weights/v1: No space left on device; make room on the data volume, of "
        "which 64 MiB stay free for Redis (/), and the run goes on by itself",
        "",
    ]


def test_a_write_into_the_space_reserved_for_redis_does_not_start() -> None:
    status, begun = Status(end=True), []
    # The free space changes while other tests write.
    size = shutil.disk_usage("/").total

    with pytest.raises(CannotWrite, match="cannot write a: No space left on device"):
        disk_of(status).retry("a", lambda: begun.append("a"), size)

    assert begun == []
    disk_of(status).retry("b", lambda: begun.append("b"))
    assert begun == ["b"]


def test_the_run_goes_on_only_when_everything_is_written() -> None:
    status, both = Status(), threading.Event()
    disk = disk_of(status)
    full, broken = OSError(errno.ENOSPC, ""), OSError(errno.EIO, "")

    def second() -> None:
        both.wait()
        disk.retry("second", failing(2, broken))

    thread = threading.Thread(target=second)
    thread.start()
    tries = iter([full, full])

    def first() -> None:
        if error := next(tries, None):
            if status.said:
                both.set()
            raise error
        thread.join()

    disk.retry("first", first)

    said = [text.partition(":")[0] for text in status.said]
    assert sorted(said[:-2]) == ["cannot write first", "cannot write second"]
    assert said[-2:] == ["cannot write first", ""]


def test_a_learner_that_is_asked_to_end_does_not_wait_for_the_disk() -> None:
    with pytest.raises(CannotWrite, match="cannot write a: File too large"):
        disk_of(Status(end=True)).retry("a", failing(9, OSError(errno.EFBIG, "")))


def test_after_abandon_a_failure_is_not_waited_for() -> None:
    disk = disk_of(Status())
    disk.abandon()
    with pytest.raises(CannotWrite, match="cannot write a: Input/output error"):
        disk.retry("a", failing(9, OSError(errno.EIO, "")))
    assert disk.retry("b", failing(0, OSError())) == "written"


def test_an_error_that_waiting_cannot_mend_is_raised_at_once() -> None:
    status = Status()
    with pytest.raises(PermissionError):
        disk_of(status).retry("a", failing(1, PermissionError(errno.EACCES, "no")))
    assert status.said == []


def test_a_successor_that_cleared_away_what_was_half_written_is_the_reason() -> None:
    gone = FileNotFoundError(errno.ENOENT, "no such file", "/data/.step-000003-a")
    with pytest.raises(RuntimeError, match="fenced"):
        disk_of(Status(replaced=True)).retry("a", failing(1, gone))
    with pytest.raises(FileNotFoundError):
        disk_of(Status()).retry("a", failing(1, gone))


def test_safetensors_names_the_error_in_its_text_only() -> None:
    text = "Error while serializing: I/O error: No space left on device (os error 28)"
    assert disk_error(SafetensorError(text)) == errno.ENOSPC
    assert disk_error(SafetensorError("invalid header")) is None


def test_a_line_that_cannot_be_appended_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with FileIO(path, "a") as file:
        append(file, "1\n")
        append(file, "2\n")
        assert path.read_text() == "1\n2\n"

        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                append(file, "3333\n")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert path.read_text() == "1\n2\n"
