"""Rank 0's part in a run of any kind: it writes rows, makes checkpoints, and ends the run.

The training loop only waits for copies; a thread writes to the disk. The thread must not outlive
the run, and an error on it ends the run. A run ends only after its newest state is committed.
"""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from learner.checkpoints.background_writer import CheckpointWriter, StepFiles
from learner.checkpoints.captured import Captured
from learner.checkpoints.checkpoint_retention import KeepRule
from learner.coordinate.checkpoint_schedule import CheckpointSchedule
from learner.coordinate.crash_limit import CrashLimit
from learner.coordinate.run_rank import RunRank
from learner.environment import RunEnvironment
from learner.persist.disk_retry import CannotWrite, DiskStatus
from learner.persist.jsonl import MetricsFile
from learner.state import TrainingState
from learner.store.commands import Command
from services.contracts.config import RLConfig, SFTConfig
from services.runtime.logs import get_logger

log = get_logger(__name__)

P = ParamSpec("P")
F = TypeVar("F", bound="FirstRank")

PAUSE_SECONDS = 0.5
"""Seconds between two looks of a paused run."""


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


class FirstRank(RunRank):
    _writer: CheckpointWriter

    def __init__(
        self,
        config: RLConfig | SFTConfig,
        environment: RunEnvironment,
        state: TrainingState,
        schedule: CheckpointSchedule,
        keep: KeepRule,
    ) -> None:
        """`schedule`: when checkpoints are due; `keep`: the older checkpoints to keep."""
        self._keep_checkpoints = keep
        super().__init__(config, environment, state)
        self._folder = environment.volume.path(f"runs/{self._store.run}")
        self._schedule = schedule
        self._captured: Captured | None = None
        """A checkpoint that waits for the rows of its step."""
        self._ending: Command | None = None
        """Set if the run ends here although its newest state cannot be written."""
        self._end_kind = ""

    @property
    def _disk_status(self) -> DiskStatus:
        return self._store

    def _open_writer(self) -> CheckpointWriter:
        disk, store = self._disk, self._store
        self._file = MetricsFile(disk.root, store.run, disk)
        durable: list[StepFiles] = [self._file, *([self._rollouts] if self._rollouts else [])]
        return CheckpointWriter(self._keep_checkpoints, disk, store, durable, self._ranks)

    def end(self, command: Command, crash_limit: CrashLimit) -> str:
        """Commit the steps that are still uncommitted. Returns the kind of command that ends the
        run: the kind of `command`, unless the last state could not be written or the run was asked
        to end before its work was done."""
        self._end_kind = command.kind
        super().end(command, crash_limit)
        return self._ending.kind if self._ending else self._end_kind

    def _before_end(self, kind: str) -> str:
        """Finish the work that the run's end waits for. Returns the kind of command that ends the
        run."""
        return kind

    def _should_end(self) -> bool:
        """Wait while the run is paused on request. Return whether the run should end. Called
        between two steps and during long waits. Raises CannotWrite, Fenced."""
        while not (ends := self._environment.should_end) and self._store.heed_pause():
            self._while_paused()
            self._environment.stop.wait(PAUSE_SECONDS)
        return ends

    def _while_paused(self) -> None:
        """Do what cannot wait for the end of a pause."""
        self._writer.check()

    def close(self) -> None:
        """End the threads. They finish their current work, unless the disk cannot be written."""
        self._disk.abandon()
        if self._captured and self._sharded:
            # The rows of its step could not be written: drop the checkpoint.
            self._writer.leave_out(self._captured)
        super().close()
        self._file.close()

    def _keep(self, captured: Captured) -> None:
        # `report` submits it, because a commit needs the rows of its step.
        self._captured = captured

    @on_rank_0
    def _finish(self, captured: Captured) -> None:
        self._hand_over(captured)
        self._writer.wait()

    def _hand_over_captured(self) -> None:
        """Submit the checkpoint that `checkpoint` has copied, if any."""
        if self._captured:
            self._hand_over(self._captured)
            self._captured = None

    def _hand_over(self, captured: Captured) -> None:
        self._writer.submit(captured)
        self._schedule.handed_over()

    def _agreed(self, decide: Callable[[], bool]) -> bool:
        """Return the result of `decide`, or False once the run ends here because it cannot be
        written."""

        def decided() -> bool:
            try:
                return self._ending is None and decide()
            except CannotWrite as error:
                self._give_up(error)
                return False

        return super()._agreed(decided)

    def _checkpoint_due(self) -> bool:
        free = self._store.payload_bytes_free()
        if not self._schedule.due(self._state.progress.step, self._writer.busy, free):
            return False
        self._writer.wait()
        return True

    def _is_uncovered(self) -> bool:
        self._end_kind = self._before_end(self._end_kind)
        self._writer.wait()
        return self._ending is None and self._state.progress.step > self._writer.covers

    def _give_up(self, error: CannotWrite) -> Command:
        """End the run here: the process or the run was asked to end while nothing could be written.
        Steps after the current checkpoint are trained again when the run resumes."""
        log.error("the run ends before its newest state is written", reason=str(error))
        return self._end_early()

    def _end_early(self) -> Command:
        self._ending = Command("cancel" if self._store.cancelled() else "yield")
        return self._ending
