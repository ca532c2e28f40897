"""Log files of parts: what is shown of them, and that they stay bounded."""

import os
from pathlib import Path

import pytest

from services.launch.part import LogFile
from services.launch.supervised_part import how_it_ended, pause_before_restart


def test_tail_shows_only_what_the_current_process_wrote(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "logs" / "gateway.log")
    first = log.open(("one",))
    os.write(first, b"from the first start\n")
    second = log.open(("two",))
    os.write(second, b"a\n\nb\nc\n")
    assert log.tail(lines=2) == "    b\n    c"
    assert "first start" not in log.tail()


def test_tail_of_a_silent_process_says_so(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "gateway.log")
    log.open(("one",))
    assert log.tail() == "    (it wrote nothing)"


def test_each_start_has_a_heading(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "gateway.log")
    log.open(("python", "-m", "reward"))
    assert (tmp_path / "gateway.log").read_text().endswith(" python -m reward\n")


def test_the_error_of_a_part_is_its_last_words_without_the_log_before(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "gateway.log")
    writer = log.open(("one",))
    os.write(writer, b"starting\nerror: Redis has lost\n  run a\n    headrace recover\n")
    assert log.error() == "Redis has lost\n  run a\n    headrace recover"
    os.write(writer, b"stopped\n")
    assert log.error() == ""


def test_a_full_log_moves_aside_while_its_writer_goes_on(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "gateway.log", limit=100)
    writer = log.open(("one",))
    os.write(writer, b"x" * 200 + b"\n")
    log.rotate()
    os.write(writer, b"after\n")
    assert (tmp_path / "gateway.log").read_text() == "after\n"
    assert "x" * 200 in (tmp_path / "gateway.log.1").read_text()
    assert log.tail() == "    after"


def test_a_small_log_is_not_rotated(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "gateway.log", limit=1000)
    log.open(("one",))
    log.rotate()
    assert not (tmp_path / "gateway.log.1").exists()


@pytest.mark.parametrize(
    ("deaths", "seconds"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (7, 30.0), (50, 30.0)]
)
def test_pauses_double_up_to_half_a_minute(deaths: int, seconds: float) -> None:
    assert pause_before_restart(deaths) == seconds


def test_exit_statuses_in_words() -> None:
    assert how_it_ended(-9) == "was killed by SIGKILL"
    assert how_it_ended(2) == "exited with code 2"
