"""The limit on crashes without progress: the only limit that ends a run.

The supervisor, the launcher and Kubernetes restart processes without limit, and the run resumes
from its checkpoint. If the learner fails there again and again, the run fails with the reason. Each
rank counts its own crashes, but not the loss of a peer. It also counts its deaths by a signal,
which leave no message, only the note that the rank was busy. The run may have caused such a death
(too little memory, a fault in native code), or it may have come from outside, which must not end a
run. Therefore more deaths are allowed than crashes, only deaths while busy count, and progress by a
step clears them.
"""

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from learner.errors import RunCannotGoOn

LIMIT = 3
DEATHS = 10
PEER_LOST = ("closed by peer", "reset by peer", "broken pipe", "remote process exited")
"""Parts of gloo's and NCCL's error messages (torch 2.13) when a peer is gone."""


class CrashedRepeatedly(RunCannotGoOn):
    """A run ended its learner too often at the same checkpoint."""


@dataclass
class CrashCounts:
    """Counts since checkpoint `step` became the current one."""

    step: int
    crashes: int = 0
    error: str = ""
    """Message of the last crash."""
    deaths: int = 0
    """Deaths while busy, since step `furthest` was reached."""
    furthest: int = 0
    """The furthest step at which the rank died."""
    at: int = 0
    """The step in progress; 0 if none."""


class CrashLimit:
    """One rank's counts, in a small file next to the run's metrics."""

    def __init__(self, file: Path, committed_step: int) -> None:
        self._file = file
        self._counts = self._read(committed_step)

    def check(self) -> None:
        """Raise CrashedRepeatedly if restarts have not helped. Call it once per start, before
        `busy`: it counts the death that ended the previous start, if that start was busy."""
        counts = self._counts
        if counts.at > counts.furthest:
            counts.furthest, counts.deaths = counts.at, 1
        elif counts.at:
            counts.deaths += 1
        self.idle()
        if counts.crashes >= LIMIT:
            raise CrashedRepeatedly(
                f"the learner crashed {counts.crashes} times after step {counts.step}, last with: "
                f"{counts.error}"
            )
        if counts.deaths >= DEATHS:
            raise CrashedRepeatedly(
                f"the learner was killed {counts.deaths} times after step {counts.step}, never "
                f"further than at work on step {counts.furthest}, and left no error of its own: "
                "either the machine lacks memory (the kernel's log says so), or native code crashed"
            )

    def busy(self, step: int) -> None:
        """Count a death from now on: batch `step` is being trained or prepared."""
        self._counts.at = step
        self._write()

    def idle(self) -> None:
        """Do not count a death from now on: the rank waits for groups or for other ranks."""
        self._counts.at = 0
        self._write()

    def record(self, error: BaseException) -> None:
        """Count a crash at this checkpoint, unless the error only reports a lost peer."""
        if isinstance(error, RuntimeError) and any(s in str(error).lower() for s in PEER_LOST):
            return
        self._counts.crashes += 1
        # The words of RunCannotGoOn are for users already.
        kind = "" if isinstance(error, RunCannotGoOn) else f"{type(error).__name__}: "
        self._counts.error = f"{kind}{error}"[:500]
        self._write()

    def _write(self) -> None:
        # Not fsynced: the file is written twice a step, and a power cut is not the run's fault.
        # Other writes report a full disk.
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps(asdict(self._counts)))

    def _read(self, committed_step: int) -> CrashCounts:
        try:
            counts = CrashCounts(**json.loads(self._file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return CrashCounts(committed_step)
        return counts if counts.step == committed_step else CrashCounts(committed_step)
