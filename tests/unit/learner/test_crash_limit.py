"""When a run that ends its learner again and again fails: after few crashes, after many deaths."""

from pathlib import Path

import pytest

from learner.coordinate.crash_limit import CrashedRepeatedly, CrashLimit


def starts(folder: Path, at: list[int], checkpoint: int = 50) -> CrashLimit:
    """Start a learner at `checkpoint`, kill it at work on each step in turn, and start it once
    more."""
    for step in at:
        crashes = CrashLimit(folder / "crashes-0.json", checkpoint)
        crashes.check()
        crashes.busy(checkpoint + 1)
        crashes.idle()
        crashes.busy(step)
    return CrashLimit(folder / "crashes-0.json", checkpoint)


def test_a_run_that_crashes_again_at_the_same_step_fails_with_the_last_error(
    tmp_path: Path,
) -> None:
    for number in range(3):
        crashes = CrashLimit(tmp_path / "crashes-0.json", 10)
        crashes.check()
        crashes.record(MemoryError(f"out of memory, time {number}"))
    crashes = CrashLimit(tmp_path / "crashes-0.json", 10)
    with pytest.raises(CrashedRepeatedly, match=r"3 times after step 10.*MemoryError.*time 2"):
        crashes.check()
    CrashLimit(tmp_path / "crashes-0.json", 20).check()


@pytest.mark.parametrize(
    "said",
    [
        "[pair.cc:553] Connection closed by peer [127.0.0.1]:33478. This is typically caused by",
        "[pair.cc:537] Read error [127.0.0.1]:30921: Connection reset by peer. This is typically",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exited",
    ],
)
def test_a_killed_peer_does_not_count_as_a_crash(tmp_path: Path, said: str) -> None:
    for _ in range(5):
        crashes = CrashLimit(tmp_path / "crashes-0.json", 10)
        crashes.check()
        crashes.record(RuntimeError(said))
        crashes.idle()


def test_a_learner_that_is_killed_ten_times_and_never_gets_further_fails_the_run(
    tmp_path: Path,
) -> None:
    starts(tmp_path, [57, 57, 53, 57, 51, 57, 57, 57, 57]).check()
    last = starts(tmp_path, [57])
    with pytest.raises(CrashedRepeatedly, match=r"killed 10 times after step 50.* on step 57"):
        last.check()


def test_a_kill_at_a_later_step_clears_the_count_of_kills(tmp_path: Path) -> None:
    # Nine kills, one at a later step, and nine more.
    starts(tmp_path, [52] * 9 + [53] + [52] * 8).check()


def test_kills_before_and_after_a_checkpoint_are_not_added_up(tmp_path: Path) -> None:
    starts(tmp_path, [57] * 9).check()
    starts(tmp_path, [67] * 9, checkpoint=60).check()


def test_kills_while_groups_are_waited_for_do_not_count(tmp_path: Path) -> None:
    for _ in range(30):
        crashes = CrashLimit(tmp_path / "crashes-0.json", 50)
        crashes.check()
        crashes.busy(51)
        crashes.idle()


def test_a_count_that_a_kill_has_torn_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "crashes-0.json").write_text('{"step": 50, "cra')
    CrashLimit(tmp_path / "crashes-0.json", 50).check()
