"""Checkpoints while training goes on: a thread writes, commits, then deletes older ones.

At most one is in progress, so that at most one copy of the training state lies in memory. The
commit covers exactly the steps of the copy. The order makes it safe to be killed anywhere: a
checkpoint that is not renamed does not exist; one that is renamed and not committed is never
loaded, and its groups are still in the stream; steps are committed only when their rows (metrics,
samples) are durable; the ledger's copy gets a commit only after Redis has it; older checkpoints are
deleted only after a commit.

Where ranks write parts, rank 0 renames and commits after every rank has said that its part is
durable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from learner.distributed import Ranks
from learner.persist.background import Background
from learner.persist.checkpoint_parts import (
    Captured,
    Written,
    complete,
    write_checkpoint,
    write_part,
)
from learner.persist.checkpoint_retention import retain
from learner.persist.disk_retry import CannotWrite, Disk
from learner.persist.jsonl import LedgerFile, RowsFile
from learner.store.run_store import RunStore

TOLD_TO_END, FAILED = b"told to end", b"failed"
"""In place of what a rank has written."""


@dataclass(frozen=True)
class OtherRank:
    """What a disk of a rank other than 0 says of its trouble. Rank 0 alone pauses the run, where
    its own disk takes nothing; else it waits for this rank, and the run stands still."""

    store: RunStore
    rank: int

    def pause(self, reason: str) -> None:
        """Have the run's events say why it stands still."""
        self.store.warn(f"rank {self.rank} waits for its disk: {reason}")

    def go_on(self) -> None:
        """Nothing."""

    def cancelled(self) -> bool:
        """Whether the run is to end."""
        return self.store.cancelled()

    def hold(self) -> None:
        """Nothing: rank 0 asks before it renames."""


class PartWriter(Background[Captured]):
    """Makes this rank's parts of a run's checkpoints durable."""

    def __init__(self, root: Path, disk: Disk, ranks: Ranks) -> None:
        """`root`: the data volume."""
        super().__init__("checkpoint writer", self._make)
        self._root, self._disk, self._ranks = root, disk, ranks.of_threads()

    def _make(self, captured: Captured) -> None:
        self._parts(captured)

    def _parts(self, captured: Captured) -> list[Written]:
        """What all ranks have written, each its part. Raises CannotWrite where one of them was told
        to end, RuntimeError where one failed."""
        path = captured.progress.path
        write = partial(write_part, (self._root / path).parent, captured)
        # The others write theirs, about as large, to the same disk at the same time.
        size = captured.size * captured.part.count
        message = FAILED
        try:
            message = msgspec.json.encode(self._disk.retry(path, write, size))
        except CannotWrite:
            message = TOLD_TO_END
            raise
        finally:
            # In any case: the others wait for it.
            messages = self._ranks.gather(message)
        if FAILED in messages:
            raise RuntimeError("a rank could not write its part of a checkpoint; its log says why")
        if TOLD_TO_END in messages:
            raise CannotWrite("another rank was told to end before its part was written")
        return [msgspec.json.decode(each, type=Written) for each in messages]


class CheckpointWriter(PartWriter):
    """Makes checkpoints of one run durable and current (rank 0)."""

    def __init__(
        self,
        root: Path,
        keep: int,
        disk: Disk,
        store: RunStore,
        rows: Sequence[RowsFile],
        ranks: Ranks,
    ) -> None:
        """`root`: the data volume; `keep`: newest checkpoints that stay on it; `rows`: what must
        be durable with a step."""
        super().__init__(root, disk, ranks)
        self._keep, self._store, self._rows = keep, store, rows
        self._ledger = LedgerFile(root, store.run, disk)
        self.covers = store.committed_step
        """Step of the newest checkpoint that was handed over."""
        self._left_out = False

    def submit(self, captured: Captured) -> None:
        """Hand a copy over. Blocks while an earlier one is in progress."""
        self.wait()
        super().submit(captured)
        self.covers = captured.progress.step

    def leave_out(self, captured: Captured) -> None:
        """Tell the other ranks, which write their parts of a copy, that none is made of it: they
        wait for this rank's. Nothing else follows it."""
        self._left_out = True
        self._waiting.put(captured)

    def _make(self, captured: Captured) -> None:
        if self._left_out:
            self._ranks.gather(TOLD_TO_END)
            return
        progress = captured.progress
        folder = (self._root / progress.path).parent
        write: Callable[[], Path] = partial(write_checkpoint, folder, captured, self._store.hold)
        size = captured.size
        if captured.part.count > 1:
            parts, size = self._parts(captured), 0
            write = partial(complete, folder, captured, parts, self._store.hold)
        self._disk.retry(progress.path, write, size)
        for file in self._rows:
            file.sync()
        self._store.commit(progress.step, progress.path)
        # After the commit: its copy proves that Redis had it.
        self._ledger.add_commit(progress.step, progress.path, self._store)
        retain(folder, self._keep, progress)
        self._store.event("checkpoint", {"step": progress.step, "directory": progress.path})
