"""How often a run crashed its learner without getting further: a limit against going round.

torchrun restarts crashed ranks, and the run resumes from its checkpoint. Where that ends in the
same crash again and again, the run has to fail with the reason instead of hanging for ever. Each
rank counts its own crashes: that a peer was lost, which may have been killed, is none.
"""

import contextlib
import json
from pathlib import Path

from learner.disk import write_whole
from learner.errors import RunCannotGoOn

LIMIT = 3
PEER_LOST = ("closed by peer", "reset by peer", "broken pipe", "remote process exited")
"""In what gloo and NCCL say (torch 2.13) when a rank that they talk to is no more."""


class CrashedRepeatedly(RunCannotGoOn):
    """A run crashed its learner too often at the same checkpoint."""


class Crashes:
    """One rank's count, in a small file beside the run's metrics."""

    def __init__(self, file: Path, committed_step: int) -> None:
        self.file, self.step = file, committed_step

    def check(self) -> None:
        """Raise CrashedRepeatedly where trying again has not helped."""
        count, error = self._read()
        if count >= LIMIT:
            raise CrashedRepeatedly(
                f"the learner crashed {count} times after step {self.step}, last with: {error}"
            )

    def record(self, error: BaseException) -> None:
        """Count a crash at this checkpoint, unless it only says that a peer was lost."""
        if isinstance(error, RuntimeError) and any(s in str(error).lower() for s in PEER_LOST):
            return
        count, _ = self._read()
        reason = f"{type(error).__name__}: {error}"
        said = {"step": self.step, "count": count + 1, "error": reason[:500]}
        # Where the disk takes nothing, that is likely the reason, and is raised by who calls this.
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.file, json.dumps(said))

    def _read(self) -> tuple[int, str]:
        try:
            found = json.loads(self.file.read_text())
            if found["step"] == self.step:
                return int(found["count"]), str(found["error"])
        except (FileNotFoundError, json.JSONDecodeError, KeyError):
            return 0, ""
        return 0, ""
