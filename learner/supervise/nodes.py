"""Which ranks a node runs now, and where they meet; the whole of it for a learner of one node."""

import os
import shutil
import tempfile
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
    rendezvous: str
    """The ranks meet there: a file, or `redis:ID`."""
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

    Its ranks meet in a file of a folder that only this user may enter, a new one for each start.
    """

    LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._start: Start | None = None

    async def agree(self, running: Start | None, ended: str) -> Start | None:
        """As `Nodes` says."""
        if running is None and (self._start is None or self._start.id == ended):
            await self.leave()
            folder = tempfile.mkdtemp(prefix="headrace-ranks-")
            file = os.path.join(folder, "store")
            self._start = Start(folder, 0, self._ranks, self._ranks, file, self.LOOPBACK)
        return self._start

    async def leave(self) -> None:
        """As `Nodes` says."""
        if self._start is not None:
            shutil.rmtree(self._start.id, ignore_errors=True)
            self._start = None
