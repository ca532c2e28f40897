"""Which ranks a node runs now, and where they meet; the whole of it for a learner of one node."""

import os
import secrets
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Start:
    """One start of all ranks of a learner, as one node sees it."""

    id: str
    first: int
    """The number of the first rank on this node."""
    here: int
    """Ranks on this node."""
    size: int
    """Ranks on all nodes."""
    rendezvous: int | str
    """The ranks meet there: the descriptor of a file that they inherit, or `redis:ID`."""
    environment: dict[str, str]
    """For the ranks."""


class Nodes(Protocol):
    """The nodes of one learner, seen from this one."""

    async def agree(self, running: Start | None, ended: str) -> Start | None:
        """The start whose ranks run now; None: none runs now. `running`: on this node. `ended`: id
        of the last one whose ranks have ended here, or ''."""

    async def leave(self) -> None:
        """No rank runs here, and none will."""


class OneNode:
    """A learner on one host: nothing of it can be reached from others, or by other users.

    Its ranks meet in a file that has no name: they inherit it, a new one for each start.
    """

    LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._start: Start | None = None
        self._file = -1

    async def agree(self, running: Start | None, ended: str) -> Start | None:
        """As `Nodes` says."""
        if running is None and (self._start is None or self._start.id == ended):
            await self.leave()
            self._file = os.memfd_create("headrace-ranks")
            id = secrets.token_hex(16)
            self._start = Start(id, 0, self._ranks, self._ranks, self._file, self.LOOPBACK)
        return self._start

    async def leave(self) -> None:
        """As `Nodes` says."""
        if self._start is not None:
            os.close(self._file)
            self._start = None
