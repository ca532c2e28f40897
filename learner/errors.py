"""Why a run cannot go on, where the user can put it right: the message is the run's reason.

Everything else is a crash: the ranks start again and the run resumes.
"""


class RunCannotGoOn(ValueError):
    """The message names the thing, the value and the way out."""


class PeerFailed(RunCannotGoOn):
    """Another rank cannot go on; its own log says why."""

    passes = False
    """Whether that rank's error may be over at the next start (`learner.passing`)."""


class UnusableModel(RunCannotGoOn):
    """The run's model cannot be trained; the message says why and what to do."""


class UnreadableGroups(Exception):
    """Groups of a batch that cannot be read: why, by the position of their tasks. Raised on all
    ranks; the groups are sampled again."""

    def __init__(self, reasons: dict[int, str]) -> None:
        super().__init__("; ".join(reasons.values()))
        self.reasons = reasons
