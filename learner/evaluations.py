"""Evaluations of a run, as rank 0 has them made: when one is due, and what came of it.

One is open at a time. Each version is evaluated once, also by a learner that takes the run over.
"""

import time

from learner.checkpoint import TrainingState
from learner.link import RunLink
from learner.metrics_file import MetricsFile
from services.contracts.config.training import Evaluation


class Evaluations:
    """Those of one run; none where its config asks for none."""

    def __init__(
        self, config: Evaluation | None, max_steps: int, link: RunLink, file: MetricsFile
    ) -> None:
        self._config, self._max_steps, self._link, self._file = config, max_steps, link, file
        self._evaluated: set[int] = set()

    def begin(self, state: TrainingState, reported: set[int]) -> None:
        """Go on with what an earlier learner asked for, or ask for the one at the start.
        `reported`: versions of which the outcome is known."""
        self._evaluated = reported
        if self._config is None:
            return
        if self._link.take_up_evaluation(state.step) == state.step:
            self._evaluated.add(state.version)
        # Asked for before the first lease: a worker answers it before it takes training work.
        elif self._config.at_start and state.step == 0 and not self._evaluated:
            self._ask(state)

    def after_step(self, state: TrainingState) -> None:
        """Ask for one where it is due."""
        every = self._config.every if self._config else None
        due = every and state.step % every == 0 and state.step < self._max_steps
        if due and not self._link.evaluation_open():
            self._ask(state)

    def last(self, state: TrainingState) -> bool:
        """Ask for that of the last version, where none was. Returns whether it was asked for."""
        if self._config is None or state.version in self._evaluated:
            return False
        self._ask(state)
        return True

    def follow(self) -> bool:
        """Report an outcome that has come. Returns whether one is still open."""
        outcome = self._link.finished_evaluation()
        if outcome is not None:
            named = {f"evaluation/{name}": value for name, value in outcome.items()}
            self._file.add({"time": time.time(), **named})
            self._link.event("evaluation", outcome)
            self._link.close_evaluation()
        return self._link.evaluation_open()

    def _ask(self, state: TrainingState) -> None:
        assert self._config is not None
        self._evaluated.add(state.version)
        self._link.ask_evaluation(self._config, state.step, state.version)
