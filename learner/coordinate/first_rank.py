"""Rank 0's part in a run of any kind: it writes rows, makes checkpoints, and ends the run.

The training loop only waits for copies; a thread writes to the disk. The thread must not outlive
the run, and an error on it ends the run. A run ends only after its newest state is committed.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from learner.checkpoints.background_writer import CheckpointWriter
from learner.checkpoints.captured import Captured, capture, part_of
from learner.coordinate.checkpoint_schedule import CheckpointSchedule
from learner.coordinate.crash_limit import CrashLimit
from learner.distributed import Ranks
from learner.model.placement.parallel import is_sharded
from learner.persist.disk_retry import CannotWrite, Disk
from learner.persist.jsonl import MetricsFile, RowsFile
from learner.state import TrainingState
from learner.store.commands import Command
from learner.store.run_store import RunStore
from services.runtime.logs import get_logger
from services.volume import Volume

log = get_logger(__name__)

P = ParamSpec("P")
F = TypeVar("F", bound="FirstRank")


def on_rank_0(
    action: Callable[Concatenate[F, P], None],
) -> Callable[Concatenate[F, P], None]:
    """Mark work of rank 0 alone between two batches. If the work ends the run, the other ranks
    learn it. The work is skipped once the run ends here because it cannot be written."""

    def guarded(self: F, /, *arguments: P.args, **options: P.kwargs) -> None:
        if self._ending is not None:
            return
        with self._ranks.announcing():
            try:
                action(self, *arguments, **options)
            except CannotWrite as error:
                self._give_up(error)

    return guarded


class FirstRank(ABC):
    """Rank 0 next to the training of `state`. See `RankFollower` for the other ranks."""

    def __init__(
        self,
        ranks: Ranks,
        store: RunStore,
        volume: Volume,
        state: TrainingState,
        stop: threading.Event,
        schedule: CheckpointSchedule,
        keep: int,
    ) -> None:
        """`schedule`: when checkpoints are due; `keep`: number of newest checkpoints to keep."""
        self._ranks, self._store, self._state, self._stop = ranks, store, state, stop
        self._folder = volume.path(f"runs/{store.run}")
        self._disk = Disk(volume.root, store, stop)
        self._file = MetricsFile(volume.root, store.run, self._disk)
        self._rows = [self._file, *self._more_rows(volume)]
        self._writer = CheckpointWriter(volume.root, keep, self._disk, store, self._rows, ranks)
        self._schedule = schedule
        self._sharded = is_sharded(state.loaded.model)
        self._captured: Captured | None = None
        """A checkpoint that waits for the rows of its step."""
        self._ending: Command | None = None
        """Set if the run ends here although its newest state cannot be written."""

    def _more_rows(self, volume: Volume) -> Sequence[RowsFile]:
        """Files of rows, besides metrics, that must be durable with a step."""
        return ()

    @abstractmethod
    def next_command(self) -> Command:
        """Return the next command for all ranks. May take long."""

    def checkpoint(self) -> None:
        """Copy the training state to the host if a checkpoint is due. `report` later submits the
        copy to the writing thread, because a commit needs the rows of its step."""
        if self._with_all_ranks(self._checkpoint_due):
            self._captured = capture(self._state, part_of(self._state, self._ranks))

    def end(self, command: Command, crash_limit: CrashLimit) -> str:
        """Commit the steps that are still uncommitted. Returns the kind of command that ends the
        run: the kind of `command`, unless the last state could not be written or the run was asked
        to end before its work was done."""
        kind: str = command.kind

        def uncovered() -> bool:
            nonlocal kind
            kind = self._before_end(kind)
            self._writer.wait()
            return self._ending is None and self._state.progress.step > self._writer.covers

        if self._with_all_ranks(uncovered):
            crash_limit.busy(self._state.progress.step)
            self._finish(capture(self._state, part_of(self._state, self._ranks)))
        return self._ending.kind if self._ending else kind

    def _before_end(self, kind: str) -> str:
        """Finish the work that the run's end waits for. Returns the kind of command that ends the
        run."""
        return kind

    @on_rank_0
    def _finish(self, captured: Captured) -> None:
        self._hand_over(captured)
        self._writer.wait()

    def close(self) -> None:
        """End the thread. It finishes its current work, unless the disk cannot be written."""
        self._disk.abandon()
        if self._captured and self._sharded:
            # The rows of its step could not be written: drop the checkpoint.
            self._writer.leave_out(self._captured)
        self._writer.close()
        for file in self._rows:
            file.close()

    def _hand_over_captured(self) -> None:
        """Submit the checkpoint that `checkpoint` has copied, if any."""
        if self._captured:
            self._hand_over(self._captured)
            self._captured = None

    def _hand_over(self, captured: Captured) -> None:
        self._writer.submit(captured)
        self._schedule.handed_over()

    def _with_all_ranks(self, decide: Callable[[], bool]) -> bool:
        """Return the result of `decide`, which may take long. If the state is sharded, the other
        ranks receive the result and take part. Return False once the run ends here because it
        cannot be written."""

        def decided() -> bytes:
            try:
                return b"1" if self._ending is None and decide() else b""
            except CannotWrite as error:
                self._give_up(error)
                return b""

        if self._sharded:
            return bool(self._ranks.from_first(decided))
        with self._ranks.announcing():
            return bool(decided())

    def _checkpoint_due(self) -> bool:
        room = self._store.payload_room()
        if not self._schedule.due(self._state.progress.step, self._writer.busy, room):
            return False
        # Wait first: memory may not hold two copies of the training state.
        self._writer.wait()
        return True

    def _give_up(self, error: CannotWrite) -> Command:
        """End the run here: the process or the run was asked to end while nothing could be written.
        Steps after the current checkpoint are trained again when the run resumes."""
        log.error("the run ends before its newest state is written", reason=str(error))
        self._ending = Command("cancel" if self._store.cancelled() else "yield")
        return self._ending
