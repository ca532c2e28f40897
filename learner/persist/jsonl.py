"""A run's rows by step: `metrics.jsonl` has a line for each step and each evaluation.

Invariant: a step's row is durable before a checkpoint with that step is committed. A crash
therefore leaves no committed step without its row. Rows of steps that will be trained again are
deleted first.
"""

import json
import os
import time
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar

from learner.metrics.step_metrics import finite
from learner.persist.disk_retry import Disk, append, replaced
from learner.store.run_store import RunStore
from services.recovery.record_copies import LEDGER, commits
from services.runtime.logs import get_logger
from services.volume import fsync

log = get_logger(__name__)


class RowsFile:
    """Rows of one run, each with its step. Every call may raise CannotWrite."""

    name: ClassVar[str]
    """File name in the run's folder."""

    def __init__(self, root: Path, run: str, disk: Disk) -> None:
        self._name = f"runs/{run}/{self.name}"
        self._file, self._disk = root / self._name, disk
        self._opened: FileIO | None = None
        """The file, open since `begin`. If the learner was replaced while it slept, its successor
        has replaced the file: a row that this learner adds when it wakes is lost."""

    def begin(self, step: int) -> set[str]:
        """Go back to `step`: delete rows of later steps, and damaged lines. Rows of evaluations
        stay, like their answers. Returns the ids of the evaluations."""
        kept: list[str] = []
        evaluated: set[str] = set()
        if self._file.exists():
            for line in self._file.read_bytes().splitlines(keepends=True):
                try:
                    row = json.loads(line)
                    if row.get("step", 0) <= step and line.endswith(b"\n"):
                        kept.append(line.decode())
                        if "evaluation/id" in row:
                            evaluated.add(row["evaluation/id"])
                # A damaged disk may have turned a line into other text.
                except (ValueError, AttributeError, TypeError, RecursionError):
                    log.warning("a line that is no row is dropped", file=self._name)
        self.close()
        self._opened = self._disk.retry(self._name, lambda: replaced(self._file, "".join(kept)))
        return evaluated

    def add(self, *rows: dict[str, Any]) -> None:
        """Add rows, all or nothing."""
        self._add("".join(json.dumps(finite(row)) + "\n" for row in rows))

    def _add(self, text: str) -> None:
        def add() -> None:
            if self._opened is not None:
                append(self._opened, text)
                return
            with FileIO(self._file, "a") as file:
                append(file, text)

        self._disk.retry(self._name, add)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def sync(self) -> None:
        """Make the rows so far durable."""
        self._disk.retry(self._name, lambda: fsync(self._file))


class MetricsFile(RowsFile):
    name = "metrics.jsonl"


class LedgerFile(RowsFile):
    """The copy of one run's ledger: see `services.recovery.record_copies`."""

    name = LEDGER

    def __init__(self, root: Path, run: str, disk: Disk) -> None:
        super().__init__(root, run, disk)
        rows = [row for commit in commits(root, run) for row in commit.rows]
        self._last = rows[-1][0] if rows else ""

    def add_commit(self, step: int, checkpoint: str, store: RunStore) -> None:
        """Add a commit that Redis has acknowledged, durably."""
        rows = store.call(store.ledger.rows_after, self._last)
        if self._is_torn():
            self._add("\n")
        self.add({"time": time.time(), "step": step, "checkpoint": checkpoint, "rows": rows})
        self.sync()
        self._last = rows[-1][0] if rows else self._last

    def _is_torn(self) -> bool:
        """Whether a power cut has torn the last line. Reads one byte, because the file grows with
        each commit."""
        if not self._file.exists() or not self._file.stat().st_size:
            return False
        with self._file.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
