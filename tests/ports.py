"""Ports that a test names before its server listens there, or across a server's restarts."""

import functools
import itertools
import os
import socket
from collections.abc import Iterator

from services.launch.options import cannot_listen

# Below the range (32768 and up) from which the kernel takes the ports of connections: one of those
# may be taken at any moment.
_FIRST, _LAST, _BLOCK = 12_000, 32_000, 500
_HOLDERS: list[socket.socket] = []
"""Open for as long as the process lives."""


def own_ports(host: str, count: int) -> list[int]:
    """`count` ports on which nobody listens, and which no other test is given."""
    free = (port for port in _ports(os.getpid()) if cannot_listen(host, port) is None)
    return list(itertools.islice(free, count))


@functools.cache
def _ports(process: int) -> Iterator[int]:
    """The ports of this process, again and again. Each process that runs tests has a block of its
    own, also when several test runs share the machine: it holds the block's first port."""
    for first in range(_FIRST, _LAST, _BLOCK):
        # Without SO_REUSEADDR only one socket may have the port. It need not listen.
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", first))
        except OSError:
            holder.close()
            continue
        _HOLDERS.append(holder)
        return itertools.cycle(range(first + 1, first + _BLOCK))
    raise RuntimeError(f"more than {(_LAST - _FIRST) // _BLOCK} processes run tests at once")
