"""Workers that leave a running run: told to, killed, or stopped for longer than their lease.

The worker of the installation is quick; a second one, which each test treats badly, is slow, so
that it holds leases for as long as the test needs.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from headrace.death_signal import die_with
from services.store.keys import run_key
from tests.bad_link import BadLink
from tests.integration.installation.conftest import SCRIPTED, Installation
from tests.integration.launch.conditions import eventually

NAME = "slow"
LEASE = 3.0


class SlowWorker:
    """`python -m rollout` whose vLLM samples `tokens_per_second`."""

    def __init__(
        self,
        installation: Installation,
        log: Path,
        tokens_per_second: float,
        *options: str,
        redis_url: str | None = None,
    ) -> None:
        stack = installation.stack
        self.log = log
        self._redis = redis.Redis.from_url(stack.redis_url)
        script = {"vocabulary": 20, "tokens_per_second": tokens_per_second}
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rollout", "--worker", NAME, *options],
                stderr=file,
                preexec_fn=die_with(os.getpid()),
                env=os.environ
                | SCRIPTED
                | {
                    "HEADRACE_SCRIPTED_VLLM": json.dumps(script),
                    "HEADRACE_REDIS_URL": redis_url or stack.redis_url,
                    "HEADRACE_REWARD_URL": stack.reward_url,
                    "HEADRACE_GATEWAY_URL": stack.gateway_url,
                    "HEADRACE_DATA": str(stack.data),
                },
            )

    def holds(self, run: str) -> set[int]:
        """Positions of the tasks that it holds, as the store knows them."""
        held = self._redis.hvals(run_key(run, "held"))
        found = [record.decode().split(" ") for record in held]  # type: ignore[union-attr]
        return {int(task.partition(":")[0]) for task, worker, *_ in found if worker == NAME}

    def alone_seated(self, run: str) -> bool:
        """Whether it has a seat for evaluations, and no other worker has one."""
        return self._redis.zrange(run_key(run, "evaluation_seats"), 0, -1) == [NAME.encode()]

    def signal(self, number: signal.Signals) -> float:
        """Send it a signal; returns when."""
        os.kill(self.process.pid, number)
        return time.monotonic()

    def end(self) -> None:
        """Whatever state it is in."""
        self.process.kill()
        self.process.wait()
        self._redis.close()


@contextmanager
def running(
    installation: Installation,
    log: Path,
    lease_seconds: float,
    tokens_per_second: float,
    redis_url: str | None = None,
) -> Iterator[tuple[str, SlowWorker]]:
    """A run on which both workers are at work, the slow one with leases in its hands. At the end
    the run is cancelled, and each task is accounted for."""
    run = installation.submit(
        data={"dataset": "sums"},
        training={"max_steps": 5000, "checkpoint_every": 20},
        # One group at a time, or the quick worker and the learner would take all cores.
        rollout={"max_staleness": 4, "lease_seconds": lease_seconds, "groups_in_flight": 1},
        sampling={"max_tokens": 8, "ignore_eos": True},
    )
    worker = SlowWorker(installation, log, tokens_per_second, redis_url=redis_url)
    try:
        # A busy machine takes a minute to start a worker.
        eventually(lambda: worker.holds(run), within=180)
        yield run, worker
    finally:
        worker.end()
        installation.api.post(f"/v1/runs/{run}/cancel")
    record, _ = installation.ended(run)
    assert record["state"] == "cancelled", record["reason"]
    audit = installation.api.get(f"/v1/runs/{run}/audit")
    assert (audit["lost"], audit["duplicated"], audit["dropped"]) == (0, 0, {}), audit
    assert audit["trained"] == record["step"] * 4
    assert audit["max_staleness_seen"] <= 4


def trained(installation: Installation, run: str) -> int:
    return int(installation.api.get(f"/v1/runs/{run}")["step"])


def test_told_to_stop_it_hands_its_leases_back_at_once(
    installation: Installation, tmp_path: Path
) -> None:
    with running(installation, tmp_path / "log", 60, tokens_per_second=0.2) as (run, worker):
        told = worker.signal(signal.SIGTERM)
        eventually(lambda: not worker.holds(run))
        took = time.monotonic() - told
        # At once, not after the lease of 60 s: a busy machine takes some seconds.
        assert took < 30.0, f"its tasks were leased again after {took:.1f} s"
        assert worker.process.wait(60) == 0
        after = trained(installation, run)
        eventually(lambda: trained(installation, run) > after + 1)
    assert "Traceback" not in worker.log.read_text()


def test_killed_it_is_noticed_after_its_lease_time(
    installation: Installation, tmp_path: Path
) -> None:
    with running(installation, tmp_path / "log", LEASE, tokens_per_second=1) as (run, worker):
        # Longer than its lease: it renews, because tokens move.
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > LEASE + 1 and worker.holds(run))
        worker.signal(signal.SIGKILL)
        eventually(lambda: not worker.holds(run))
        after = trained(installation, run)
        eventually(lambda: trained(installation, run) > after + 1)


def test_over_a_link_that_delays_cuts_and_stalls_no_task_is_lost_or_twice(
    installation: Installation, tmp_path: Path
) -> None:
    link = BadLink(installation.stack.redis_url, seed=7)
    try:
        with running(installation, tmp_path / "log", LEASE, 40, link.url) as (run, worker):
            eventually(lambda: (link.cuts >= 3 and link.stalls) or worker.process.poll(), 200)
            after = trained(installation, run)
            # It works on, on tasks of later steps.
            eventually(lambda: max(worker.holds(run), default=0) > 4 * (after + 5), 200)
            assert worker.process.poll() is None
    finally:
        link.close()
    assert "Traceback" not in worker.log.read_text()


def test_two_workers_of_one_name_train_each_task_once(
    installation: Installation, tmp_path: Path
) -> None:
    with running(installation, tmp_path / "log", LEASE, tokens_per_second=4) as (run, worker):
        twin = SlowWorker(installation, tmp_path / "twin", 4)
        try:
            eventually(lambda: "working" in twin.log.read_text(), 180)
            after = trained(installation, run)
            eventually(lambda: trained(installation, run) > after + 12, 200)
            # The death of one takes no lease of the other's.
            twin.signal(signal.SIGKILL)
            after = trained(installation, run)
            eventually(lambda: trained(installation, run) > after + 4 and worker.holds(run), 200)
        finally:
            twin.end()
    assert "Traceback" not in worker.log.read_text() + twin.log.read_text()


def test_stopped_for_longer_than_its_lease_its_work_is_refused(
    installation: Installation, tmp_path: Path
) -> None:
    def refused() -> int:
        said = worker.log.read_text()
        return said.count("lease lost") + said.count("came too late and is discarded")

    with running(installation, tmp_path / "log", LEASE, tokens_per_second=2) as (run, worker):
        worker.signal(signal.SIGSTOP)
        # On a busy machine it may have lost a lease before.
        stopped_with, before = worker.holds(run), refused()
        # Its vLLM goes on meanwhile, and has all answers when it wakes.
        eventually(lambda: not stopped_with & worker.holds(run))
        after = trained(installation, run)
        eventually(lambda: trained(installation, run) > after + 1)
        assert refused() == before
        worker.signal(signal.SIGCONT)
        eventually(lambda: refused() >= before + len(stopped_with))
        # The worker takes new work with the same vLLM.
        eventually(lambda: worker.holds(run))
        assert worker.log.read_text().count("vLLM serves") == 1


def test_the_worker_that_only_evaluates_answers_and_the_other_trains_on(
    installation: Installation, tmp_path: Path
) -> None:
    run = installation.submit(
        data={"dataset": "sums"},
        training={"max_steps": 5000, "checkpoint_every": 100},
        rollout={"max_staleness": 4, "groups_in_flight": 1},
        evaluation={"dataset": "sums", "rows": 4, "every": 5, "at_start": False},
        sampling={"max_tokens": 8, "ignore_eos": True},
    )
    worker = SlowWorker(installation, tmp_path / "log", 1, "--evaluation-only", "true")
    try:

        def evaluations() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = installation.api.get(f"/v1/runs/{run}/evaluations")[
                "evaluations"
            ]
            return found

        def all_workers() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = installation.api.get("/v1/workers")["workers"]
            return found

        eventually(
            lambda: (
                worker.alone_seated(run)
                and not any(one["evaluation_rows"] for one in all_workers() if one["id"] != NAME)
            ),
            within=180,
        )
        first = max((one["step"] for one in evaluations()), default=0)

        def later() -> list[dict[str, Any]]:
            """Return the evaluations after the first one."""
            return [one for one in evaluations() if one["step"] > first]

        at_work: set[str] = set()

        def done() -> bool:
            for one in all_workers():
                if one["evaluation_rows"] and later():
                    at_work.add(one["id"])
                assert one["id"] != NAME or not one["groups_in_flight"]
            return any(one["state"] == "done" for one in later())

        eventually(done)
        assert at_work == {NAME}
        # Training did not wait for it: η is 4.
        assert trained(installation, run) > min(one["step"] for one in later()) + 5
    finally:
        worker.end()
        installation.api.post(f"/v1/runs/{run}/cancel")
    installation.ended(run)
