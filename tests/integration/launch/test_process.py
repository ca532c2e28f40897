"""The two guards against orphans, each on real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.death_signal import die_with
from services.runtime.process import (
    INSTANCE,
    PART,
    SUPERVISOR,
    kill_marked,
    marked,
    started_at,
)
from tests.integration.launch.conditions import eventually

PAUSE = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]


def gone(pid: int) -> bool:
    return started_at(pid) is None


def pause(**environment: str) -> subprocess.Popen[str]:
    """A process that is up and does nothing, with `environment` added to its own."""
    process = subprocess.Popen(
        PAUSE, env=os.environ | environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def parent_of(child_code: str, preexec: str = "None") -> tuple[subprocess.Popen[str], int]:
    """A process that starts a child and then waits; the child's pid comes with it."""
    code = (
        "import os, signal, subprocess, sys\n"
        "from headrace.death_signal import die_with\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child_code!r}],\n"
        "                         start_new_session=True, stdout=subprocess.PIPE,\n"
        f"                         preexec_fn={preexec})\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "signal.pause()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


TIES_ITSELF = (
    "from services.runtime.process import die_with_parent; die_with_parent(); "
    "import signal; print('up', flush=True); signal.pause()"
)


def test_a_child_that_ties_itself_dies_with_its_parent() -> None:
    parent, child = parent_of(TIES_ITSELF)
    parent.kill()
    parent.wait()
    eventually(lambda: gone(child))


def test_a_child_tied_from_outside_dies_with_its_parent() -> None:
    parent, child = parent_of(PAUSE[2], preexec="die_with(os.getpid())")
    parent.kill()
    parent.wait()
    eventually(lambda: gone(child))


def test_a_child_whose_parent_has_ended_already_does_not_start() -> None:
    code = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', 'import os; os.read(0, 1);' + {TIES_ITSELF!r}])\n"
    )
    reader, writer = os.pipe()
    out_reader, out_writer = os.pipe()
    # The supervisor named here is the parent, which ends before its child reads its first byte.
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import os; os.environ['{SUPERVISOR}'] = str(os.getpid())\n{code}"],
        stdin=reader,
        stdout=out_writer,
        stderr=subprocess.STDOUT,
    )
    os.close(reader)
    os.close(out_writer)
    parent.wait()
    os.write(writer, b"x")
    os.close(writer)
    with os.fdopen(out_reader) as output:
        said = output.read()
    assert f"headrace up (pid {parent.pid}) has ended, and so does this process" in said
    assert "up\n" not in said.splitlines()


def test_preexec_refuses_a_parent_that_is_not_there() -> None:
    with subprocess.Popen(PAUSE, preexec_fn=die_with(os.getpid() + 1)) as child:
        assert child.wait(100) == 1


def test_only_what_carries_the_whole_marker_is_killed() -> None:
    ours = pause(**{INSTANCE: "test-a", PART: "learner"})
    sibling = pause(**{INSTANCE: "test-a", PART: "gateway"})
    stranger = pause(**{INSTANCE: "test-ab", PART: "learner"})
    try:
        assert marked({INSTANCE: "test-a"}) == sorted([ours.pid, sibling.pid])
        killed, alive = kill_marked({INSTANCE: "test-a", PART: "learner"})
        assert (killed, alive) == ([ours.pid], [])
        assert ours.wait(100) == -signal.SIGKILL
        assert sibling.poll() is None
        assert stranger.poll() is None
    finally:
        for process in (ours, sibling, stranger):
            process.kill()
            process.wait()


def test_an_empty_marker_would_match_everything() -> None:
    with pytest.raises(ValueError, match="needs a marker"):
        kill_marked({})


def test_a_zombie_counts_as_ended() -> None:
    process = pause()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{process.pid}").exists()
    assert started_at(process.pid) is None
    process.wait()


def test_killing_reaches_descendants_that_were_re_parented() -> None:
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'],\n"
        "                         start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
    )
    parent = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {INSTANCE: "test-b"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    assert parent.returncode == 0
    eventually(lambda: len(marked({INSTANCE: "test-b"})) == 1)
    killed, alive = kill_marked({INSTANCE: "test-b"})
    assert (len(killed), alive) == (1, [])
