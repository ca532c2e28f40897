"""A machine burns down in the middle of a run, and a backup was made a moment before. The other
machine has another number of ranks."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from headrace.cli.client import Gateway
from services.launch import Stack
from tests.chaos.killing import REAL, ROOT, Chaos, options
from tests.chaos.victims import ranks

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900 if REAL else 240)]

# A step of a real vLLM takes a fraction of a scripted one's, and the run must outlast the backup.
STEPS = 160 if REAL else 20


def headrace(*arguments: str) -> dict[str, object]:
    """A command as a user gives it, without any HEADRACE_* variable."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, object] = json.loads(done.stdout)
    return said


@contextmanager
def held_before_its_end(chaos: Chaos, run: str) -> Iterator[Callable[[], None]]:
    """Yield a function to call repeatedly. It stops the learner before the run ends, because on a
    busy machine a backup may take longer than the run. The learner goes on after the block."""
    stopped: list[int] = []

    def hold() -> None:
        if not stopped and chaos.record(run)["step"] >= STEPS - 8:
            stopped.extend(ranks(chaos.stack))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)

    try:
        yield hold
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def test_a_run_goes_on_from_a_backup_on_another_machine(
    chaos: Chaos, chance: random.Random, tmp_path: Path
) -> None:
    run = chaos.submit(STEPS)
    chaos.reaches(run, chance.randrange(2, 10))
    file, elsewhere = tmp_path / "all.tar", tmp_path / "elsewhere"

    with ThreadPoolExecutor(1) as pool, held_before_its_end(chaos, run) as hold:
        backup = pool.submit(
            headrace,
            *("backup", str(file), "--data", str(chaos.stack.data)),
            *("--redis-url", chaos.stack.redis_url),
        )
        while not backup.done():
            hold()
            time.sleep(0.05)
        made = backup.result()
        chaos.api.post(f"/v1/runs/{run}/cancel")
    chaos.ended(run)

    # No Redis runs for a folder that does not exist: one is started for as long as it takes.
    assert headrace("restore", str(file), "--data", str(elsewhere)) == made
    assert [path.name for path in elsewhere.glob(".re*")] == []
    with Stack(options(elsewhere, rollouts=1, ranks=1)) as stack:
        there = Chaos(stack, Gateway(stack.gateway_url, stack.check, stack.api_key))
        there.done.append("the first machine")
        there.unharmed(run, STEPS)
