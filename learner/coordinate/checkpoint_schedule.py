"""Decide when a checkpoint is due. Pure, except for a clock.

Training must not wait for the disk. It also must not run so far ahead that groups, which only a
commit can delete, fill the stream's budget or the disk.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class CheckpointSchedule:
    every: int
    """Steps between checkpoints."""
    last_step: int
    budget: int
    """Bytes that untrained and unacknowledged groups may take."""
    uncovered_bytes: int = 0
    uncovered_files: int = 0
    """Bytes of the uncovered payloads on the data volume."""
    overdue: bool = False
    seconds: float | None = None
    """Seconds after the last submitted checkpoint that make a checkpoint due at any step."""
    clock: Callable[[], float] = time.monotonic
    since: float = field(init=False)
    """Time at which the last checkpoint was submitted, or the learner started."""

    def __post_init__(self) -> None:
        self.since = self.clock()

    def trained(self, size: int, files: int = 0) -> None:
        """Count a trained batch with `size` bytes in the stream and `files` bytes in files."""
        self.uncovered_bytes += size
        self.uncovered_files += files

    def due(self, step: int, busy: bool, free: int | None = None) -> bool:
        """Whether to submit a checkpoint after `step`. `busy`: an earlier checkpoint is still being
        written, so submitting would wait for it; `free`: bytes that payloads may still take on the
        data volume, None if payloads are not there.

        A checkpoint falls due every `every` steps, and `seconds` after the one before. It falls due
        early when uncovered groups fill a quarter of the budget, or their payloads a quarter of the
        space that they and `free` have together: the batch in training and the next one need
        space too. A checkpoint that falls due while another is written waits until that one is
        done, except at the end of the run and when uncovered groups fill half the budget. The
        checkpoint that is being written may cover the other half.
        """
        filled = self.uncovered_bytes / self.budget
        if free is not None and self.uncovered_files:
            filled = max(filled, self.uncovered_files / (max(free, 0) + self.uncovered_files))
        late = self.seconds is not None and self.clock() - self.since >= self.seconds
        self.overdue |= step % self.every == 0 or filled > 1 / 4 or late
        pressed = filled > 1 / 2
        return step >= self.last_step or pressed or (self.overdue and not busy)

    def handed_over(self) -> None:
        """Record that a checkpoint of all batches so far was submitted."""
        self.uncovered_bytes = self.uncovered_files = 0
        self.overdue = False
        self.since = self.clock()
