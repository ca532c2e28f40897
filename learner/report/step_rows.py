"""The row of metrics of each step, from what ranks, workers and the store have measured."""

import time
from collections.abc import Sequence
from typing import Any

from learner.distributed import Ranks
from learner.model.mfu import work
from learner.report.reward_metrics import outcome_metrics, selection_metrics
from learner.report.step_metrics import (
    StepTime,
    admission_wait,
    bottleneck,
    peak_memory,
    staleness_metrics,
    time_metrics,
)
from learner.state import TrainingState
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig


class StepRows:
    """Makes the rows of one run, and remembers what the next one counts from."""

    def __init__(
        self, config: RLConfig, ranks: Ranks, store: RunStore, state: TrainingState
    ) -> None:
        self._config, self._store, self._state = config, store, state
        critic = state.critic.model if state.critic else None
        self._work = work(state.loaded.model, config.algorithm, ranks, critic)
        self._waits: dict[str, float] = {}
        self._filtered = (0, 0.0)
        """Groups without reward variance until the last step, and the sum of their mean rewards."""

    def begin(self) -> None:
        """Count from now on."""
        self._filtered = self._store.call(self._store.trajectories.filtered)
        _, self._waits = admission_wait({}, self._store.workers())

    def newly_filtered(self) -> int:
        """Groups without reward variance since the last row."""
        return self._store.call(self._store.trajectories.filtered)[0] - self._filtered[0]

    def row(
        self,
        spent: StepTime,
        staleness: Sequence[int],
        wire: Sequence[int],
        metrics: dict[str, float],
        sums: dict[str, float],
    ) -> dict[str, Any]:
        """The row of the step that `state` has just made. `staleness` and `wire`: of each group of
        the batch, versions and bytes. `metrics` are of its training, `sums` over all ranks'
        outcomes."""
        workers = self._store.workers()
        wait, self._waits = admission_wait(self._waits, workers)
        samples, tokens = int(sums["samples"]), int(sums["completion_tokens"])
        return {
            "step": self._state.progress.step,
            "version": self._state.progress.version,
            "time": time.time(),
            **metrics,
            **outcome_metrics(sums, self._config.algorithm.samples_per_prompt),
            **self._selection(sums),
            **staleness_metrics(staleness),
            **time_metrics(spent, samples, tokens, int(sums["prompt_tokens"])),
            **self._utilisation(spent, sums, metrics),
            "time/workers_waiting_for_admission": wait,
            "workers": len(workers),
            "memory/peak_bytes": peak_memory(),
            "wire/bytes_per_token": sum(wire) / max(tokens, 1),
            "bottleneck": bottleneck(spent.total, spent.waiting, wait),
        }

    def _selection(self, sums: dict[str, float]) -> dict[str, float]:
        algorithm = self._config.algorithm
        if algorithm.dynamic_sampling is None and algorithm.best_of is None:
            return {}
        groups, reward = self._filtered
        self._filtered = self._store.call(self._store.trajectories.filtered)
        return selection_metrics(sums, self._filtered[0] - groups, self._filtered[1] - reward)

    def _utilisation(
        self, spent: StepTime, sums: dict[str, float], metrics: dict[str, float]
    ) -> dict[str, float]:
        if self._work is None:
            return {}
        passes = metrics["train/updates"] / self._config.algorithm.minibatches
        # What several samples share counts once.
        computed = 1 - metrics.get("train/shared_tokens", 0.0)
        tokens, squares = sums["row_tokens"] * computed, sums["row_tokens_squared"] * computed
        return self._work.metrics(tokens, squares, passes, spent.training)
