"""Evaluations of a run, as rank 0 requests them: when one is due, and what came of it.

One is open at a time; one that falls due meanwhile is requested when the open one is done. Each
version is evaluated once, also by a learner that takes the run over.
"""

import time

from learner.persist.jsonl import MetricsFile
from learner.state import Progress
from learner.store.run_store import RunStore
from services.contracts.config.training import Evaluation
from services.runtime.logs import get_logger

log = get_logger(__name__)


class Evaluations:
    """Those of one run; none where its config has none."""

    def __init__(
        self, config: Evaluation | None, max_steps: int, store: RunStore, file: MetricsFile
    ) -> None:
        self._config, self._max_steps, self._store, self._file = config, max_steps, store, file
        self._open = ""
        """Id of the evaluation that was requested and is not reported."""
        self._due: Progress | None = None
        """The newest progress, where an evaluation is due that is not requested yet."""
        self._evaluated: set[int] = set()

    def begin(self, progress: Progress, reported: set[int]) -> None:
        """Continue with the evaluation that an earlier learner requested, or request the one at
        the start. `reported`: versions whose outcome is known."""
        self._evaluated = reported
        if self._config is None:
            return
        if self._take_up(progress.step):
            self._evaluated.add(progress.version)
        # Requested before the first lease: a worker answers it before it takes training work.
        elif self._config.at_start and progress.step == 0 and not self._evaluated:
            self._ask(progress)
        elif (every := self._config.every) and not self._open:
            # A version has the number of its step.
            newest = max(self._evaluated, default=0)
            if newest < progress.step - progress.step % every and progress.step < self._max_steps:
                self._due = progress

    def after_step(self, progress: Progress) -> None:
        """Request one where it is due."""
        every = self._config.every if self._config else None
        if progress.step >= self._max_steps:
            # The last version is evaluated in any case.
            self._due = None
        elif every and progress.step % every == 0:
            if self._open:
                self._store.warn(
                    f"the evaluation of step {progress.step} waits for the one that is still open: "
                    "raise evaluation.every, or lower evaluation.rows"
                )
            self._due = progress
        elif self._due:
            self._due = progress
        self._ask_due()

    def last(self, progress: Progress) -> bool:
        """Request the evaluation of the last version, unless it was made. Returns whether it
        was requested."""
        if self._config is None or progress.version in self._evaluated:
            return False
        self._ask(progress)
        return True

    def follow(self) -> bool:
        """Report an outcome that has come, and request the next where one is due. Returns whether
        one is open."""
        if self._open:
            self._report()
        self._ask_due()
        return bool(self._open)

    def _report(self) -> None:
        evaluations = self._store.evaluations
        try:
            outcome = self._store.call(evaluations.outcome, self._open)
        except KeyError as error:
            log.warning("an evaluation is gone", reason=str(error))
            self._open = ""
            return
        if outcome is not None:
            named = {f"evaluation/{name}": value for name, value in outcome.items()}
            self._file.add({"time": time.time(), **named})
            self._store.event("evaluation", outcome)
            self._store.call(evaluations.close, self._open)
            self._open = ""

    def _take_up(self, step: int) -> bool:
        """Continue with what an earlier learner requested and did not report. Returns whether that
        is of `step`. One of a later step, which was lost, is requested again when the run gets
        there."""
        evaluations = self._store.evaluations
        id, asked_at = self._store.call(evaluations.left) or ("", 0)
        if id and asked_at > step:
            self._store.call(evaluations.close, id)
            return False
        self._open = id
        return bool(id) and asked_at == step

    def _ask_due(self) -> None:
        if self._due and not self._open:
            self._ask(self._due)

    def _ask(self, progress: Progress) -> None:
        assert self._config is not None
        self._due = None
        self._evaluated.add(progress.version)
        evaluations = self._store.evaluations
        self._open = self._store.fenced(
            evaluations.ask, self._config, step=progress.step, min_version=progress.version
        )
