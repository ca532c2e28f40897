"""Checkpoints while training goes on: a thread writes, then commits, then lets old ones go.

At most one is on its way, so that at most one copy of the training state lies in memory. The
commit covers exactly the steps of the copy. The order is what makes it safe to be killed anywhere:
a checkpoint that is not renamed does not exist; one that is renamed and not committed is never
loaded, and its groups are still in the stream; steps are committed only when their rows (metrics,
samples) are durable; only after a commit are older checkpoints deleted.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from learner.background import Background
from learner.checkpoint import Captured, retain, write_checkpoint
from learner.disk import Disk
from learner.link import RunLink
from learner.metrics_file import RowsFile


class Checkpointer(Background[Captured]):
    """Makes checkpoints of one run durable and current."""

    def __init__(
        self, root: Path, keep: int, disk: Disk, link: RunLink, rows: Sequence[RowsFile]
    ) -> None:
        """`root`: the data volume; `keep`: newest checkpoints that stay on it; `rows`: what must
        be durable with a step."""
        super().__init__("checkpointer", self._make)
        self._root, self._keep, self._disk, self._link = root, keep, disk, link
        self._rows = rows
        self.covers = link.committed_step
        """Step of the newest checkpoint that was handed over."""

    def submit(self, captured: Captured) -> None:
        """Hand a copy over. Blocks while an earlier one is on its way."""
        self.wait()
        super().submit(captured)
        self.covers = captured.state.step

    def _make(self, captured: Captured) -> None:
        state = captured.state
        folder = (self._root / state.path).parent
        write: Callable[[], Path] = partial(write_checkpoint, folder, captured, self._link.hold)
        self._disk.insist(state.path, write, captured.size)
        for file in self._rows:
            file.sync()
        self._link.commit(state.step, state.path)
        retain(folder, self._keep, state)
        self._link.event("checkpoint", {"step": state.step, "directory": state.path})
