"""The files of the newest version: an anchor, which is a whole version, then deltas until they are
too large.

A worker that has no version yet reads all files, so they must not be much larger than a
whole version. The anchor is a version of this learner's lineage: an earlier learner's last version
may be later than the checkpoint at which this learner starts.
"""

from services.contracts.weights import WeightFile

SHARE = 0.18
"""Largest size of all deltas, as a share of their anchor. With this share a host that starts
late has all of them in less than 1.2 times the time of an anchor (`bench.push`)."""
LONGEST = 64
"""Most deltas after an anchor. Each costs a reader a request, and a manifest 130 bytes."""


class DeltaFiles:
    """Decides whether the next version may be a delta, and lists the files of the newest."""

    def __init__(self) -> None:
        self.files: list[WeightFile] = []
        self._version = -1

    def takes(self, version: int, size: int) -> bool:
        """Whether `version` may be a delta of `size` bytes against the newest version."""
        if not self.files or version != self._version + 1 or len(self.files) > LONGEST:
            return False
        anchor, *deltas = self.files
        return size + sum(delta.bytes for delta in deltas) <= SHARE * anchor.bytes

    def begin(self, version: int, anchor: WeightFile) -> None:
        """Begin again with `version`, which is whole."""
        self.files, self._version = [anchor], version

    def add(self, version: int, delta: WeightFile) -> None:
        """Add `version`, a delta that `takes` has allowed."""
        self.files, self._version = [*self.files, delta], version
