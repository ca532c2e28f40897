"""Which versions are published whole: an anchor, then deltas, until they have grown too large.

A worker without any of them reads the whole chain, so a chain must not be much larger than a whole
version. Each chain begins at a version of its own lineage: what an earlier learner published last
may be beyond the checkpoint at which this one starts.
"""

from services.contracts.weights import WeightFile

SHARE = 0.18
"""Bytes of a chain's deltas at most, as a share of its anchor: a host that starts late has all of
them in less than 1.2 times the time of an anchor (`bench.push`)."""
LONGEST = 64
"""Deltas of a chain at most: each costs a reader a request, and a manifest 130 bytes."""


class Chain:
    """The files that lead to the newest version."""

    def __init__(self) -> None:
        self.files: list[WeightFile] = []
        self._version = -1

    def takes(self, version: int, size: int) -> bool:
        """Whether `version` may be a delta of `size` bytes against the newest one."""
        if not self.files or version != self._version + 1 or len(self.files) > LONGEST:
            return False
        anchor, *deltas = self.files
        return size + sum(delta.bytes for delta in deltas) <= SHARE * anchor.bytes

    def begin(self, version: int, anchor: WeightFile) -> None:
        """`version` is whole."""
        self.files, self._version = [anchor], version

    def add(self, version: int, delta: WeightFile) -> None:
        """`version` is a delta, which `takes` has allowed."""
        self.files, self._version = [*self.files, delta], version
