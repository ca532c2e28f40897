"""Ports that a test names before its server listens there, or across a server's restarts."""

import itertools
import os

from services.launch.options import cannot_listen

# Below the range (32768 and up) from which the kernel takes the ports of connections: one of those
# may be taken at any moment. Each of the processes that run tests has ports of its own.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
_PORTS = itertools.cycle(range(12_000 + 5_000 * _WORKER, 17_000 + 5_000 * _WORKER))


def own_ports(host: str, count: int) -> list[int]:
    """`count` ports on which nobody listens, and which no other test is given."""
    free = (port for port in _PORTS if cannot_listen(host, port) is None)
    return list(itertools.islice(free, count))
