"""Engines and ranks lend each other their cores, and get them back at once."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.runtime.core_loans import BORROWED, LOCKS, CoreLoan, Side, core_loan
from tests.integration.launch.conditions import eventually

HOLDS = """
import sys, time
from pathlib import Path
from services.runtime.core_loans import CoreLoan
with CoreLoan(Path(sys.argv[1]), "generating", 1, 1).computing():
    print("computing", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)))


def loan(folder: Path, side: Side, cores: int, linger: float = 0.0, running: int = 1) -> CoreLoan:
    """On a machine of four cores, on which so many threads run; one core is its own."""
    loadavg = folder / f"loadavg-{running}"
    loadavg.write_text(f"3.00 2.00 1.00 {running}/321 4711\n")
    return CoreLoan(folder, side, 1, cores, linger, loadavg)


def test_cores_are_available_only_while_nobody_of_the_other_side_computes(tmp_path: Path) -> None:
    engines = [loan(tmp_path, "generating", 1) for _ in range(2)]
    rank = loan(tmp_path, "training", 3)
    assert rank.available() == 3
    with engines[0].computing():
        with engines[1].computing():
            assert rank.available() == 0
        assert rank.available() == 0
    assert rank.available() == 3
    with rank.computing():
        assert [engine.available() for engine in engines] == [0, 0]
        # Its own side does not matter.
        assert rank.available() == 3
    assert engines[0].available() == 1


@pytest.mark.parametrize(("running", "available"), [(1, 3), (2, 2), (4, 0), (9, 0)])
def test_cores_that_other_programs_use_are_left_to_them(
    tmp_path: Path, running: int, available: int
) -> None:
    assert loan(tmp_path, "training", 3, running=running).available() == available


def test_a_pause_lends_nothing_until_it_is_long(tmp_path: Path) -> None:
    engine = loan(tmp_path, "generating", 1, linger=600)
    rank = loan(tmp_path, "training", 1)
    for _ in range(3):
        with engine.computing():
            pass
        time.sleep(0.05)
        assert rank.available() == 0

    (elsewhere := tmp_path / "elsewhere").mkdir()
    engine = loan(elsewhere, "generating", 1, linger=0.1)
    rank = loan(elsewhere, "training", 1)
    with engine.computing():
        pass
    eventually(lambda: rank.available() == 1)


def test_a_killed_process_gives_back_what_it_held(tmp_path: Path) -> None:
    rank = loan(tmp_path, "training", 1)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "computing\n"
        assert rank.available() == 0
    finally:
        process.kill()
        process.wait()
    assert rank.available() == 1


def test_who_has_nothing_to_borrow_still_says_that_it_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(LOCKS, raising=False)
    assert core_loan("training", 1) is None
    monkeypatch.setenv(LOCKS, str(tmp_path))
    monkeypatch.setenv(BORROWED, "")
    rank = core_loan("training", 1)
    assert rank is not None
    engine = loan(tmp_path, "generating", 2)
    with rank.computing():
        assert (rank.available(), engine.available()) == (0, 0)
    assert engine.available() == 2
