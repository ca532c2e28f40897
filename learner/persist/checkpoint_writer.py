"""Checkpoints while training goes on: a thread writes, commits, then deletes older ones.

At most one is in progress, so that at most one copy of the training state lies in memory. The
commit covers exactly the steps of the copy. The order makes it safe to be killed anywhere: a
checkpoint that is not renamed does not exist; one that is renamed and not committed is never
loaded, and its groups are still in the stream; steps are committed only when their rows (metrics,
samples) are durable; the ledger's copy gets a commit only after Redis has it; older checkpoints are
deleted only after a commit.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from learner.persist.background import Background
from learner.persist.checkpoint import Captured, retain, write_checkpoint
from learner.persist.disk_retry import Disk
from learner.persist.jsonl import LedgerFile, RowsFile
from learner.store.run_store import RunStore


class CheckpointWriter(Background[Captured]):
    """Makes checkpoints of one run durable and current."""

    def __init__(
        self, root: Path, keep: int, disk: Disk, store: RunStore, rows: Sequence[RowsFile]
    ) -> None:
        """`root`: the data volume; `keep`: newest checkpoints that stay on it; `rows`: what must
        be durable with a step."""
        super().__init__("checkpoint writer", self._make)
        self._root, self._keep, self._disk, self._store = root, keep, disk, store
        self._rows = rows
        self._ledger = LedgerFile(root, store.run, disk)
        self.covers = store.committed_step
        """Step of the newest checkpoint that was handed over."""

    def submit(self, captured: Captured) -> None:
        """Hand a copy over. Blocks while an earlier one is in progress."""
        self.wait()
        super().submit(captured)
        self.covers = captured.progress.step

    def _make(self, captured: Captured) -> None:
        progress = captured.progress
        folder = (self._root / progress.path).parent
        write: Callable[[], Path] = partial(write_checkpoint, folder, captured, self._store.hold)
        self._disk.retry(progress.path, write, captured.size)
        for file in self._rows:
            file.sync()
        self._store.commit(progress.step, progress.path)
        # After the commit: its copy proves that Redis had it.
        self._ledger.add_commit(progress.step, progress.path, self._store)
        retain(folder, self._keep, progress)
        self._store.event("checkpoint", {"step": progress.step, "directory": progress.path})
