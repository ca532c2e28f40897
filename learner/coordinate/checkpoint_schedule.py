"""When a checkpoint is due. Pure.

Training must not wait for the disk, and must not run so far ahead of it that groups which only a
commit can delete fill what the stream may hold.
"""

from dataclasses import dataclass


@dataclass
class CheckpointSchedule:
    """Counts what the newest checkpoint that was handed over does not cover."""

    every: int
    """Steps between checkpoints."""
    last_step: int
    budget: int
    """Bytes that untrained and unacknowledged groups may take."""
    uncovered_bytes: int = 0
    overdue: bool = False

    def trained(self, size: int) -> None:
        """A batch of so many bytes was trained."""
        self.uncovered_bytes += size

    def due(self, step: int, busy: bool) -> bool:
        """Whether to hand a checkpoint over after `step`; `busy`: an earlier one is on its way,
        and handing one over would wait for it.

        It falls due early when uncovered groups fill a quarter of the budget: the batch in training
        and the next one need room, too. One that falls due while another is on its way is made when
        that is done. It is waited for at the end, and when uncovered groups fill half the budget:
        the other half may be those of the checkpoint on its way.
        """
        self.overdue |= step % self.every == 0 or 4 * self.uncovered_bytes > self.budget
        pressed = 2 * self.uncovered_bytes > self.budget
        return step >= self.last_step or pressed or (self.overdue and not busy)

    def handed_over(self) -> None:
        """A checkpoint of all batches so far is on its way."""
        self.uncovered_bytes = 0
        self.overdue = False
