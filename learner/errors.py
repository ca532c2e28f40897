"""Errors that end a run and that the user can fix: the message becomes the run's reason.

Any other error is a crash: the ranks start again and the run resumes.
"""


class RunCannotGoOn(ValueError):
    """The message names the thing, the value and the way out."""


class PeerFailed(RunCannotGoOn):
    """Another rank cannot continue. Its own log says why."""

    passes = False
    """Whether the other rank's error may pass by the next start (`learner.transient_errors`)."""
    passes_when_new = False
    """The same for a run that has trained no step."""


class UnusableModel(RunCannotGoOn):
    """The run's model cannot be trained. The message says why and what to do."""


class UnreadableGroups(Exception):
    """Groups of a batch that cannot be read, with the reason for each, by the position of its task.
    Raised on all ranks; the groups are sampled again."""

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = reasons
