"""Learner and vLLM take turns, as on one GPU that is too small for both, and die at any moment of a
turn: the run ends as it would have ended."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.launch import Stack, supervised_part
from tests.chaos.victims import part, ranks, vllm
from tests.integration.installation.conftest import Installation

pytestmark = pytest.mark.timeout(600)

STEPS = 12
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
    return [pid for pid in vllm(stack) if "--enable-sleep-mode" in arguments(pid)]


def arguments(pid: int) -> list[str]:
    """Those of a process; none of one that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []


def sleep_of(server: int) -> tuple[bool, int]:
    """Whether it is asleep, and how often it has been put to sleep."""
    command = arguments(server)
    socket = command[command.index("--uds") + 1]
    with httpx.Client(transport=httpx.HTTPTransport(verify=False, uds=socket), timeout=30) as http:
        found = http.get("http://vllm/is_sleeping").json()
    return found["is_sleeping"], found["sleeps"]


class Turns:
    """A run of which learner and vLLM take turns."""

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

    def kill(
        self, moment: Callable[[Stack], int | None], victims: Callable[[Stack], list[int]]
    ) -> None:
        """SIGKILL to the last of these processes, at such a moment."""
        while True:
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
    seen = 0
    while seen < 3:
        turns.record()
        try:
            server = in_turns(turns.stack)[0]
            before, trains, after = sleep_of(server), training(turns.stack), sleep_of(server)
        except (IndexError, ValueError, httpx.TransportError):
            # It is being started, or has ended.
            continue
        if trains and before == after:
            # No sleep began between the two looks: it was asleep all the time, or awake.
            assert before[0]
            seen += 1

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
