"""Learners forked from a process that has already imported torch and transformers. The imports take
five seconds of a core, and the tests of this folder start about sixty processes."""

import faulthandler
import multiprocessing
import os
import runpy
import secrets
import signal
import sys
import time
from pathlib import Path

from headrace.death_signal import die_with
from learner.settings import RENDEZVOUS
from learner.store import thread
from learner.supervise.rank_processes import LOOPBACK

ROOT = Path(__file__).parents[3]
LOCK_SECONDS = 2.0
"""Seconds that the successor of a killed learner waits, instead of ten. A learner that a busy
machine holds up for longer loses its pool to any other learner."""
LOCK_VARIABLE = "TEST_LOCK_SECONDS"
"""The environment variable that gives a learner a longer lock."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "learner.rl",
        "learner.sft",
        "transformers.models.llama.modeling_llama",
        "tests.integration.learner.forked",
        # The parent's main module, which a child of multiprocessing imports.
        "pytest",
    ]
)


class Learner:
    """A process that runs `python -m` with `command`; used like a `subprocess.Popen`."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
        self._process = CONTEXT.Process(target=_run, args=(command, environment, log), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self._log = log

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float = 100.0) -> int:
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"not over after {timeout} s: {self._stacks()}"
        return self._process.exitcode

    def _stacks(self) -> str:
        """Return the state of the process and the stacks of its threads, after the end of its
        log."""
        state = Path(f"/proc/{self.pid}/status").read_text().partition("Tgid")[0]
        self.send_signal(signal.SIGUSR1)
        time.sleep(1)
        return f"{state}\n{self._log.read_text()[-8000:]}"

    async def stopped(self) -> bool:
        """Whether SIGSTOP has stopped it: the state in proc(5)."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def import_once() -> None:
    """Wait until everything is imported and learners start at once."""
    process = CONTEXT.Process()
    process.start()
    process.join()


def rank_variables(ranks: int, folder: Path) -> list[dict[str, str]]:
    """Return the environment variables that the supervisor sets for each of several ranks. The
    ranks meet in `folder`."""
    if ranks == 1:
        return [{}]
    size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    met = {RENDEZVOUS: str(folder / f"ranks-{secrets.token_hex(4)}"), **LOOPBACK}
    return [{"RANK": str(n), "LOCAL_RANK": str(n)} | size | met for n in range(ranks)]


def _run(command: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
    die_with(os.getppid())()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    thread.LOCK_SECONDS = float(environment.get(LOCK_VARIABLE, LOCK_SECONDS))  # type: ignore[attr-defined]
    with log.open("a") as file:
        os.dup2(file.fileno(), 2)
    faulthandler.register(signal.SIGUSR1)
    module, *sys.argv[1:] = command
    runpy.run_module(module, run_name="__main__", alter_sys=True)
