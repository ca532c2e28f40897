"""Why a run cannot go on, where the user can put it right: the message is the run's reason.

Whatever is not one of these is a crash: the ranks start again and the run resumes.
"""

from learner.logprobs import UnusableHead
from services.contracts.config import ConfigError
from services.datasets import DatasetError
from services.store import Fenced
from services.volume import DamagedFile


class RunCannotGoOn(ValueError):
    """The message names the thing, the value and the way out."""


class PeerFailed(RunCannotGoOn):
    """Another rank cannot go on; its own log says why."""


USER_ERRORS: tuple[type[Exception], ...] = (
    RunCannotGoOn,
    ConfigError,
    DatasetError,
    DamagedFile,
    UnusableHead,
)

ENDINGS: tuple[type[Exception], ...] = (Fenced, *USER_ERRORS)
"""What ends this learner's work on a run, and not the learner."""
