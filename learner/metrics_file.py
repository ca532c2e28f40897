"""What a run writes down by step: `metrics.jsonl`, one line for each step on the way to where the
run stands, evaluations between, and `samples.jsonl`, some of each step's answers.

Invariant: a step's row is durable before a checkpoint that holds the step is committed. So a crash
leaves no committed step without its row; the rows of steps that are trained again are cut off
before anything is added.
"""

import json
from pathlib import Path
from typing import Any

from learner.disk import Disk, append, write_whole
from learner.metrics import finite
from services.logs import get_logger
from services.volume import fsync

log = get_logger(__name__)


class RowsFile:
    """Rows of one run, each with its step. Every call may raise CannotWrite."""

    def __init__(self, root: Path, run: str, name: str, disk: Disk) -> None:
        """`root`: the data volume; `name`: in the run's folder."""
        self._name = f"runs/{run}/{name}"
        self._file, self._disk = root / self._name, disk

    def begin(self, step: int) -> set[int]:
        """Go back to `step`: what was written of later ones, and a torn line, goes. Returns the
        steps of which an evaluation is there."""
        kept: list[str] = []
        evaluated: set[int] = set()
        if self._file.exists():
            for line in self._file.read_text().splitlines(keepends=True):
                try:
                    row = json.loads(line)
                    at = row.get("step", row.get("evaluation/step", 0))
                    if at <= step and line.endswith("\n"):
                        kept.append(line)
                        if "evaluation/step" in row:
                            evaluated.add(int(row["evaluation/step"]))
                except json.JSONDecodeError:
                    log.warning("a torn line is dropped", file=self._name)
        self._disk.insist(self._name, lambda: write_whole(self._file, "".join(kept)))
        return evaluated

    def add(self, *rows: dict[str, Any]) -> None:
        """Add rows, all of them or nothing."""
        lines = "".join(json.dumps(finite(row)) + "\n" for row in rows)
        self._disk.insist(self._name, lambda: append(self._file, lines))

    def sync(self) -> None:
        """Make the rows so far durable."""
        self._disk.insist(self._name, lambda: fsync(self._file))


class MetricsFile(RowsFile):
    """The metrics of one run."""

    def __init__(self, root: Path, run: str, disk: Disk) -> None:
        super().__init__(root, run, "metrics.jsonl", disk)


class SamplesFile(RowsFile):
    """Some of the answers that one run was trained on."""

    def __init__(self, root: Path, run: str, disk: Disk) -> None:
        super().__init__(root, run, "samples.jsonl", disk)
