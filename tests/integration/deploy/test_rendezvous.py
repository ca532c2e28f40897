"""The learner's pods meet by the chart's own settings, and meet again after a death on any host.

Two real supervisors on one machine, each with the environment of its host."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.death_signal import die_with
from services.settings import EXIT_SETTINGS
from tests.integration.launch.conditions import eventually
from tests.integration.store.servers import DURABLE, Server
from tests.unit.deploy.test_chart import EVERYTHING, environment, of_kind

PASSWORD = "s3cr3t"
HOST = """
import sys
from learner.settings import LearnerSettings
from learner.supervise.rank_supervisor import supervise
module = ["tests.integration.deploy.meeting_rank", sys.argv.pop()]
sys.exit(supervise(LearnerSettings(), module))
"""


class Hosts:
    """The supervisors of a learner on two hosts, with one rank and with two."""

    def __init__(self, folder: Path, redis_port: int) -> None:
        self.log = folder / "ranks.log"
        self.errors = folder / "errors.log"
        self.alive = folder / "alive"
        (job,) = of_kind("Job", EVERYTHING).values()
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["args"] == ["python", "-m", "learner"]
        self.given = {
            name: value for name, value in environment(container).items() if "LEARNER" in name
        }
        assert self.given["HEADRACE_LEARNER_NODES"] == "4"
        self.redis = f"redis://127.0.0.1:{redis_port}/0"
        self.supervisors: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, node: int, password: str = PASSWORD) -> subprocess.Popen[bytes]:
        with self.errors.open("a") as errors:
            self.supervisors[node] = one = subprocess.Popen(
                [sys.executable, "-c", HOST, str(self.log)],
                stderr=errors,
                preexec_fn=die_with(os.getpid()),
                env=os.environ
                | self.given
                | {
                    "HEADRACE_LEARNER_NODES": "2",
                    "HEADRACE_LEARNER_NODE": str(node),
                    "HEADRACE_RANKS": str(node + 1),
                    "HEADRACE_REDIS_URL": self.redis,
                    "HEADRACE_REDIS_PASSWORD": password,
                    "HEADRACE_ALIVE_FILE": str(self.alive),
                    "GLOO_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": "1",
                },
            )
        return one

    def met(self) -> list[list[str]]:
        """Pid, number and peers of each rank that has met the others, in the order of that."""
        return [line.split(" ", 2) for line in self.log.read_text().splitlines()]

    def meet(self, times: int) -> dict[str, int]:
        """Wait for the ranks' meeting of this number; the pid of each rank."""

        def all_there() -> bool:
            codes = [one.poll() for one in self.supervisors.values()]
            assert codes == [None, None], self.errors.read_text()
            return self.log.exists() and len(self.met()) >= 3 * times

        eventually(all_there, what="meeting")
        last = self.met()[-3:]
        assert sorted(rank for _, rank, _ in last) == ["0", "1", "2"]
        assert {peers for _, _, peers in last} == {"0 1 2"}
        return {rank: int(pid) for pid, rank, _ in last}


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    server = Server(tmp_path / "redis", 0, *DURABLE, "--requirepass", PASSWORD)
    server.wait(password=PASSWORD)
    both = Hosts(tmp_path, server.port)
    yield both
    for one in both.supervisors.values():
        one.kill()
        one.wait()
    server.kill()


@pytest.mark.multirank
def test_ranks_of_two_hosts_meet_again_after_the_death_of_one_and_of_a_host(hosts: Hosts) -> None:
    hosts.start(1)
    # Else an orchestrator would restart it, and the hosts would miss each other for ever.
    eventually(hosts.alive.exists, what="a host that waits for the other says it is well")
    hosts.start(0)
    ranks = hosts.meet(1)
    hosts.alive.unlink()
    eventually(hosts.alive.exists, what="a host without rank 0 says it is well")

    os.kill(ranks["2"], signal.SIGKILL)
    again = hosts.meet(2)
    assert not set(again.values()) & set(ranks.values()), "all ranks start again"

    hosts.supervisors[0].kill()
    hosts.supervisors[0].wait()
    hosts.start(0)
    hosts.meet(3)

    for one in hosts.supervisors.values():
        one.terminate()
    assert [one.wait(100) for one in hosts.supervisors.values()] == [0, 0]
    assert "another node's" not in hosts.errors.read_text()


def test_a_node_with_a_wrong_password_ends_and_says_so(hosts: Hosts) -> None:
    assert hosts.start(0, password="wr0ng").wait(100) == EXIT_SETTINGS
    said = hosts.errors.read_text()
    assert "error: cannot use Redis at redis://:***@127.0.0.1" in said
    assert "invalid username-password pair" in said
    assert "wr0ng" not in said
