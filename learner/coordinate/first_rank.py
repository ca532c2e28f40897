"""What rank 0 does in a run of any kind: it keeps its rows, makes its checkpoints, and ends it.

Only copies are made on the training loop's time; a thread writes to the disk. It may not outlive
the run, and an error on it ends the run. A run ends when its newest state is committed, never
before.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from learner.coordinate.checkpoint_schedule import CheckpointSchedule
from learner.coordinate.crash_limit import CrashLimit
from learner.distributed import Ranks
from learner.model.placement.parallel import is_sharded
from learner.persist.checkpoint_parts import Captured, capture, part_of
from learner.persist.checkpoint_writer import CheckpointWriter
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
    """Work of rank 0 alone between two batches. The others hear of it where it ends the run; it is
    left out once the run ends here because it cannot be written."""

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
    """Rank 0 beside the training of `state`. `Follower` is what the other ranks do meanwhile."""

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
        """`schedule`: when checkpoints are due; `keep`: how many of the newest stay."""
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
        """Set where the run ends here although its newest state cannot be written."""

    def _more_rows(self, volume: Volume) -> Sequence[RowsFile]:
        """What must be durable with a step besides its metrics."""
        return ()

    @abstractmethod
    def next_command(self) -> Command:
        """What all ranks do next. May take its time."""

    def checkpoint(self) -> None:
        """Copy the training state to the host where a checkpoint is due. `report` hands it to the
        thread that writes it: a commit needs the rows of its step."""
        if self._with_all_ranks(self._checkpoint_due):
            self._captured = capture(self._state, part_of(self._state, self._ranks))

    def end(self, command: Command, crash_limit: CrashLimit) -> str:
        """Commit what is still open. Returns the kind of command that the run ends with:
        `command`'s, unless its last state could not be written, or it was to end before its work
        was done."""
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
        """Finish what the run's end waits for. Returns the kind of command that it ends with."""
        return kind

    @on_rank_0
    def _finish(self, captured: Captured) -> None:
        self._hand_over(captured)
        self._writer.wait()

    def close(self) -> None:
        """End the thread. It finishes what it has begun, unless the disk takes nothing."""
        self._disk.abandon()
        if self._captured and self._sharded:
            # Nobody hands it over any more: the rows of its step could not be written.
            self._writer.leave_out(self._captured)
        self._writer.close()
        for file in self._rows:
            file.close()

    def _hand_over_captured(self) -> None:
        """Have the checkpoint written, if `checkpoint` has copied one."""
        if self._captured:
            self._hand_over(self._captured)
            self._captured = None

    def _hand_over(self, captured: Captured) -> None:
        self._writer.submit(captured)
        self._schedule.handed_over()

    def _with_all_ranks(self, decide: Callable[[], bool]) -> bool:
        """What `decide` finds, which may take its time; of a sharded state the other ranks hear it,
        and take part. False once the run ends here because it cannot be written."""

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
        # Waited for first: two copies of the training state may be more than memory holds.
        self._writer.wait()
        return True

    def _give_up(self, error: CannotWrite) -> Command:
        """End here: the process or the run was told to end while nothing could be written. Steps
        after the current checkpoint are trained again when the run goes on."""
        log.error("the run ends before its newest state is written", reason=str(error))
        self._ending = Command("cancel" if self._store.cancelled() else "yield")
        return self._ending
