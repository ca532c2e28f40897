"""Move the answers of evaluations from Redis to files, and compute the results from the files.

Invariant: a row's answers are deleted from Redis only after a part with them is durable. Redis
counts the parts. If a learner dies in between, its successor writes the same part again, so each
row is in exactly one counted part.
"""

import time
from dataclasses import dataclass, field
from functools import partial

from learner.persist.disk_retry import Disk
from learner.store.run_store import RunStore
from services.contracts.evaluation import (
    EvaluationRecord,
    EvaluationRequest,
    EvaluationState,
    record_of,
)
from services.evaluations import (
    copy_parts,
    folder_of,
    measured,
    outcome,
    part_path,
    write_part,
    write_result,
)
from services.store.work.evaluations import Standing

PART_ROWS = 64
"""Approximate rows of a part. Redis holds the answers of few more rows than that."""
PART_SECONDS = 5.0
"""Seconds after which waiting answers are stored in any case, so they can be browsed."""


@dataclass
class EvaluationFiles:
    store: RunStore
    disk: Disk
    _moved: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Time of the last move, and rows with stored answers at that time."""

    def move(self, standing: Standing, whole: bool = False) -> int:
        """Store waiting answers: once PART_ROWS rows wait, or after PART_SECONDS, or all of them if
        `whole` or if the evaluation has ended. Returns the number of files. Raises CannotWrite,
        Fenced."""
        id, parts = standing.id, standing.parts
        whole = whole or standing.state != "open"
        before, moved = self._moved.get(id, (0.0, 0))
        waiting, soon = standing.answered - moved, time.monotonic() - before < PART_SECONDS
        if not whole and (waiting == 0 or (soon and waiting < PART_ROWS)):
            return parts
        while rows := self.store.call(self.store.evaluations.answers, id, PART_ROWS):
            parts += 1
            path = part_path(folder_of(self.disk.root, self.store.run, id), parts)
            # A successor may have stored these and other answers under this number.
            write = partial(write_part, path, rows, self.store.hold)
            self.disk.retry(str(path.relative_to(self.disk.root)), write)
            numbers = [row.row for row in rows]
            self.store.fenced(self.store.evaluations.stored, id, parts, numbers)
        self._moved[id] = time.monotonic(), standing.answered
        return parts

    def take_over(self, id: str) -> tuple[int, list[int]]:
        """Copy this evaluation's answers from a run that this run resumes. Returns the number of
        files, and the rows in them. Raises CannotWrite."""
        folder = folder_of(self.disk.root, self.store.run, id)
        for run in self.store.resumed():
            copy = partial(copy_parts, folder_of(self.disk.root, run, id), folder)
            parts, rows = self.disk.retry(str(folder.relative_to(self.disk.root)), copy)
            if parts:
                return parts, rows
        return 0, []

    def end(
        self, request: EvaluationRequest, state: EvaluationState, reason: str = "", parts: int = 0
    ) -> EvaluationRecord:
        """Write the record of an ended evaluation, with the figures of its first `parts` files. The
        state `done` becomes `failed` if these files lack rows. Raises CannotWrite."""
        run = self.store.run
        rows = measured(folder_of(self.disk.root, run, request.id), parts)
        record = record_of(run, request, state)
        if state == "done" and [row.row for row in rows] != list(range(request.rows)):
            state = "failed"
            reason = (
                f"its files have the answers of {len(rows)} rows, and {request.rows} were "
                "answered: files of the data volume were lost"
            )
        figures = outcome(rows, request.set.samples) if state == "done" else None
        record = record.model_copy(
            update={
                "state": state,
                "reason": reason,
                "answered": len(rows),
                "finished": time.time(),
                "metrics": figures.metrics if figures else {},
                "categories": figures.categories if figures else {},
            }
        )
        name = f"runs/{run}/evaluations/{request.id}/result.json"
        self.disk.retry(name, lambda: write_result(self.disk.root, record))
        return record
