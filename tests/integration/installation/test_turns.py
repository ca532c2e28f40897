"""Learner and vLLM take turns, as on one GPU that is too small for both, and die at any moment of a
turn: the run ends as it would have ended."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.launch import Stack, supervised_part
from tests.chaos.victims import command_line, part, ranks, vllm
from tests.integration.installation.conftest import Installation

pytestmark = pytest.mark.timeout(600)

STEPS = 16
FINAL = ("succeeded", "failed", "cancelled")


def holder(stack: Stack) -> int | None:
    """The process that has the device, by the kernel's list of locks (proc_locks(5))."""
    file = stack.data / "gpu-locks/cpu.use.lock"
    inode = str(file.stat().st_ino) if file.exists() else ""
    for line in Path("/proc/locks").read_text().splitlines():
        _, kind, _, _, pid, place, *_ = line.split()
        if kind == "FLOCK" and place.rpartition(":")[2] == inode:
            return int(pid)
    return None


def training(stack: Stack) -> int | None:
    """The learner's rank, while it has the device."""
    found = holder(stack)
    return found if found in ranks(stack) else None


def sampling(stack: Stack) -> int | None:
    """The worker, while its vLLM has the device."""
    found = holder(stack)
    return found if found in part("rollout")(stack) else None


def in_turns(stack: Stack) -> list[int]:
    """A vLLM that takes turns, not the one that an earlier run has left."""
    return [pid for pid in vllm(stack) if "--enable-sleep-mode" in command_line(pid)]


def is_asleep(server: int) -> bool:
    command = command_line(server).split("\0")
    socket = command[command.index("--uds") + 1]
    with httpx.Client(transport=httpx.HTTPTransport(verify=False, uds=socket), timeout=30) as http:
        return bool(http.get("http://vllm/is_sleeping").json()["is_sleeping"])


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has stopped it: the state in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class Turns:
    """A run whose learner and vLLM take turns."""

    def __init__(self, installation: Installation, staleness: int) -> None:
        self.stack, self.api = installation.stack, installation.api
        self.installation = installation
        self.run = installation.submit(
            data={"dataset": "sums"},
            rollout={
                "max_staleness": staleness,
                "lease_seconds": 10,
                "vllm": {"sleeps": True},
            },
            training={"max_steps": STEPS, "checkpoint_every": 2},
        )

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = self.api.get(f"/v1/runs/{self.run}")
        assert record["state"] not in FINAL, f"{record['state']}: {record['reason']}"
        return record

    def one_more_step(self) -> None:
        """Wait until the run has gone on."""
        before = self.record()["step"]
        while self.record()["step"] <= before:
            threading.Event().wait(0.05)

    @contextmanager
    def stopped_in_training(self) -> Iterator[None]:
        """The learner's rank does nothing meanwhile, and has the device."""
        while True:
            self.record()
            if (rank := training(self.stack)) is None:
                threading.Event().wait(0.002)
                continue
            os.kill(rank, signal.SIGSTOP)
            try:
                while not is_stopped(rank):
                    pass
                if training(self.stack) == rank:
                    yield
                    return
            finally:
                os.kill(rank, signal.SIGCONT)

    def kill(
        self, moment: Callable[[Stack], int | None], victims: Callable[[Stack], list[int]]
    ) -> None:
        """Send SIGKILL to the last victim at a moment of this kind."""
        while self.record():
            self.stack.check()
            if moment(self.stack) and (found := victims(self.stack)):
                with suppress(ProcessLookupError):
                    os.kill(found[-1], signal.SIGKILL)
                    return
            threading.Event().wait(0.002)

    def ended_well(self, staleness: int) -> None:
        record, _ = self.installation.ended(self.run)
        assert (record["state"], record["reason"]) == ("succeeded", "")
        assert record["committed_step"] == STEPS
        audit = self.api.get(f"/v1/runs/{self.run}/audit")
        assert (audit["lost"], audit["duplicated"], audit["in_flight"]) == (0, 0, 0)
        assert audit["trained"] == 4 * STEPS
        assert audit["max_staleness_seen"] <= staleness


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause before a restart doubles with each death of a part within a minute."""
    monkeypatch.setattr(supervised_part, "LONGEST_PAUSE", 0.5)


def test_vllm_sleeps_whenever_the_learner_trains_and_any_of_them_may_die_then(
    installation: Installation,
) -> None:
    turns = Turns(installation, staleness=0)
    for _ in range(3):
        # The learner also has the device while it loads the model, before there is a vLLM.
        turns.one_more_step()
        with turns.stopped_in_training():
            (server,) = in_turns(turns.stack)
            assert is_asleep(server)
    turns.one_more_step()

    turns.kill(training, ranks)
    turns.one_more_step()
    turns.kill(training, vllm)
    turns.one_more_step()
    turns.kill(training, part("rollout"))

    turns.ended_well(staleness=0)


def test_one_step_ahead_the_one_that_samples_may_die(installation: Installation) -> None:
    turns = Turns(installation, staleness=1)
    turns.one_more_step()

    turns.kill(sampling, ranks)
    turns.one_more_step()
    turns.kill(sampling, part("rollout"))
    turns.one_more_step()
    turns.kill(sampling, vllm)

    turns.ended_well(staleness=1)
