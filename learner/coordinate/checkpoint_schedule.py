"""When a checkpoint is due. Pure, but for a clock.

Training must not wait for the disk, and must not run so far ahead of it that groups which only a
commit can delete fill what the stream may hold, or the disk.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class CheckpointSchedule:
    """Counts what the newest checkpoint that was handed over does not cover."""

    every: int
    """Steps between checkpoints."""
    last_step: int
    budget: int
    """Bytes that untrained and unacknowledged groups may take."""
    uncovered_bytes: int = 0
    uncovered_files: int = 0
    """Bytes of payloads on the data volume."""
    overdue: bool = False
    seconds: float | None = None
    """Seconds after the last hand-over that make a checkpoint due, whatever its step."""
    clock: Callable[[], float] = time.monotonic
    since: float = field(init=False)
    """When the last checkpoint was handed over, or the learner started."""

    def __post_init__(self) -> None:
        self.since = self.clock()

    def trained(self, size: int, files: int = 0) -> None:
        """A batch was trained of so many bytes in the stream, and so many in files."""
        self.uncovered_bytes += size
        self.uncovered_files += files

    def due(self, step: int, busy: bool, room: int | None = None) -> bool:
        """Whether to hand a checkpoint over after `step`; `busy`: an earlier one is on its way,
        and handing one over would wait for it; `room`: bytes that payloads may still take on the
        data volume, None where they lie elsewhere.

        It falls due early when uncovered groups fill a quarter of the budget, or their payloads
        that of the disk: the batch in training
        and the next one need room, too. One that falls due while another is on its way is made when
        that is done. It is waited for at the end, and when uncovered groups fill half the budget:
        the other half may be those of the checkpoint on its way.
        """
        filled = self.uncovered_bytes / self.budget
        if room is not None and self.uncovered_files:
            filled = max(filled, self.uncovered_files / (max(room, 0) + self.uncovered_files))
        late = self.seconds is not None and self.clock() - self.since >= self.seconds
        self.overdue |= step % self.every == 0 or filled > 1 / 4 or late
        pressed = filled > 1 / 2
        return step >= self.last_step or pressed or (self.overdue and not busy)

    def handed_over(self) -> None:
        """A checkpoint of all batches so far is on its way."""
        self.uncovered_bytes = self.uncovered_files = 0
        self.overdue = False
        self.since = self.clock()
