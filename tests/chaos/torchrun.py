"""A learner on several hosts as torchrun starts it. All "hosts" are this machine."""

import os
import subprocess
import sys
from pathlib import Path

from headrace.death_signal import die_with
from tests.integration.learner.conftest import Place
from tests.ports import own_ports


class Node:
    """torchrun on one host, and its ranks."""

    def __init__(self, place: Place, node: int, port: int, **variables: str) -> None:
        self.log = place.data / f"node-{node}.log"
        job = ("--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1")
        at = ("--master-addr", "127.0.0.1", "--master-port", str(port))
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *job, *at, "-m", "learner"],
                stdout=log,
                stderr=log,
                preexec_fn=die_with(os.getpid()),
                env=os.environ
                | {
                    "HEADRACE_REDIS_URL": place.redis_url,
                    "HEADRACE_DATA": str(place.data),
                    "OMP_NUM_THREADS": "1",
                }
                | variables,
            )

    @property
    def ranks(self) -> list[int]:
        """The pids of its ranks."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children]

    def wait(self, timeout: float = 100) -> int:
        return self.process.wait(timeout)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def both(place: Place, **variables: str) -> list[Node]:
    """Start the two hosts of a learner."""
    (port,) = own_ports("127.0.0.1", 1)
    return [Node(place, node, port, **variables) for node in range(2)]
