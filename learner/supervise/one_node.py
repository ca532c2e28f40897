"""The ranks that a node runs now and their meeting place, and the nodes of a learner with one
host."""

import os
import secrets
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class RankStart:
    """One start of all ranks of a learner, as seen by one node."""

    id: str
    first: int
    """Number of the first rank on this node."""
    here: int
    """Ranks on this node."""
    size: int
    """Ranks on all nodes."""
    rendezvous: int | str
    """The ranks' meeting place: the descriptor of a file that they inherit, or `redis:ID`."""
    environment: dict[str, str]
    """Environment variables for the ranks."""


class Nodes(Protocol):
    """The nodes of one learner, seen from this node."""

    async def agree(self, running: RankStart | None, ended: str) -> RankStart | None:
        """Return the start whose ranks should run now, or None. `running`: the start whose ranks
        run on this node; `ended`: id of the last start whose ranks have ended here, or ''."""

    async def leave(self) -> None:
        """Leave for good: no rank runs here any more."""


class OneNode:
    """A learner on one host, out of reach of other hosts and other users.

    Its ranks meet in a file without a name, which they inherit. Each start has a new file.
    """

    LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._start: RankStart | None = None
        self._file = -1

    async def agree(self, running: RankStart | None, ended: str) -> RankStart | None:
        if running is None and (self._start is None or self._start.id == ended):
            await self.leave()
            self._file = os.memfd_create("headrace-ranks")
            id = secrets.token_hex(16)
            self._start = RankStart(id, 0, self._ranks, self._ranks, self._file, self.LOOPBACK)
        return self._start

    async def leave(self) -> None:
        if self._start is not None:
            os.close(self._file)
            self._start = None
