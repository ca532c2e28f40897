"""Write checkpoints during training: a thread writes, commits, then deletes older checkpoints.

At most one is in progress, so at most one copy of the training state is in memory. The commit
covers exactly the steps of the copy. The order makes a kill safe at any time:

- a checkpoint before its rename does not exist
- a renamed checkpoint without a commit is never loaded, and its groups are still in the stream
- steps are committed only after their rows (metrics, rollouts) are durable
- the ledger's copy gets a commit only after Redis has it
- older checkpoints are deleted only after a commit

If ranks write parts, rank 0 renames and commits after every rank has reported its part as durable.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from learner.checkpoints.captured import Captured
from learner.checkpoints.checkpoint_retention import KeepRule, retain
from learner.checkpoints.checkpoint_writer import (
    WrittenPart,
    complete,
    write_checkpoint,
    write_part,
)
from learner.distributed import Ranks
from learner.persist.background import Background
from learner.persist.disk_retry import CannotWrite, Disk
from learner.persist.jsonl import LedgerFile
from learner.store.run_store import RunStore

TOLD_TO_END, FAILED = b"told to end", b"failed"
"""Sent by a rank instead of its written files."""


class StepFiles(Protocol):
    """Files with the rows of each step."""

    def sync(self) -> None:
        """Make the rows so far durable."""


class PartWriter(Background[Captured]):
    """Makes this rank's parts of a run's checkpoints durable."""

    def __init__(self, disk: Disk, ranks: Ranks) -> None:
        super().__init__("checkpoint writer", self._make)
        self._disk, self._ranks = disk, ranks.of_threads()

    def _make(self, captured: Captured) -> None:
        self._parts(captured)

    def _parts(self, captured: Captured) -> list[WrittenPart]:
        """Return the files that all ranks have written. Raises CannotWrite if a rank was asked to
        end, and RuntimeError if a rank failed."""
        path = captured.progress.path
        write = partial(write_part, (self._disk.root / path).parent, captured)
        # The other ranks write parts of about the same size to the same disk at the same time.
        size = captured.size * captured.part.count
        message = FAILED
        try:
            message = msgspec.json.encode(self._disk.retry(path, write, size))
        except CannotWrite:
            message = TOLD_TO_END
            raise
        finally:
            # Sent in any case, because the other ranks wait for it.
            messages = self._ranks.gather(message)
        if FAILED in messages:
            raise RuntimeError("a rank could not write its part of a checkpoint; its log says why")
        if TOLD_TO_END in messages:
            raise CannotWrite("another rank was told to end before its part was written")
        return [msgspec.json.decode(each, type=WrittenPart) for each in messages]


class CheckpointWriter(PartWriter):
    """Makes checkpoints of one run durable and current (rank 0)."""

    def __init__(
        self, keep: KeepRule, disk: Disk, store: RunStore, rows: Sequence[StepFiles], ranks: Ranks
    ) -> None:
        """`keep`: the older checkpoints to keep; `rows`: files that must be durable with a
        step."""
        super().__init__(disk, ranks)
        self._keep, self._store, self._rows = keep, store, rows
        self._ledger = LedgerFile(disk.root, store.run, disk)
        self.covers = store.committed_step
        """Step of the newest submitted checkpoint."""
        self._left_out = False

    def submit(self, captured: Captured) -> None:
        """Submit a copy. Blocks while an earlier one is in progress."""
        self.wait()
        super().submit(captured)
        self.covers = captured.progress.step

    def leave_out(self, captured: Captured) -> None:
        """Tell the other ranks, which write their parts of a copy and wait for this rank's part,
        that the checkpoint is dropped. It must be the last call before `close`."""
        self._left_out = True
        self._waiting.put(captured)

    def _make(self, captured: Captured) -> None:
        if self._left_out:
            self._ranks.gather(TOLD_TO_END)
            return
        progress = captured.progress
        folder = (self._disk.root / progress.path).parent
        write: Callable[[], Path] = partial(write_checkpoint, folder, captured, self._store.hold)
        size = captured.size
        if captured.part.count > 1:
            parts, size = self._parts(captured), 0
            write = partial(complete, folder, captured, parts, self._store.hold)
        self._disk.retry(progress.path, write, size)
        for file in self._rows:
            file.sync()
        self._store.commit(progress.step, progress.path)
        # After the commit: the ledger's copy proves that Redis had it.
        self._ledger.add_commit(progress.step, progress.path, self._store)
        gone = retain(folder, self._keep, progress)
        event = {"step": progress.step, "directory": progress.path, "deleted": gone}
        self._store.event("checkpoint", event)
