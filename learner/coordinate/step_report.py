"""The row of metrics of each step, from the training loop, the workers, and the store's counts."""

import time
from collections.abc import Sequence
from typing import Any

from learner.model.passes.mfu import Work
from learner.publishing.publisher import Pushed
from learner.report.reward_metrics import dataset_metrics, outcome_metrics, selection_metrics
from learner.report.step_metrics import (
    StepTime,
    admission_wait,
    bottleneck,
    canary_metrics,
    peak_memory,
    staleness_metrics,
    time_metrics,
)
from learner.state import TrainingProgress
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig
from services.contracts.config.objective.terms import ReverseKL


class StepReport:
    """The rows of metrics of one run."""

    def __init__(self, config: RLConfig, store: RunStore, work: Work | None) -> None:
        """`work`: FLOPs of a step, None if the speed of the device is unknown."""
        self._config, self._store, self._work = config, store, work
        self._waits: dict[str, float] = {}
        """Seconds that each worker had waited for admission until the last step."""
        self._filtered = (0, 0.0)
        """Groups without reward variance until the last step, and the sum of their mean rewards."""
        self._dataset_names = [name for name in config.datasets if name]
        """Dataset names of a mixture."""
        self._filtered_of: dict[str, int] = {}
        """Groups without reward variance until the last step, for each dataset of a mixture."""
        self._skipped = 0
        """Tasks that the curriculum has skipped until the last step."""
        self._discarded = 0
        """Live sessions that were discarded until the last step."""
        teaching = isinstance(config.algorithm.advantage, ReverseKL)
        self._rewarded = bool(config.rewards) or not teaching
        """Whether the run has rewards at all."""

    def begin(self) -> None:
        """Start counting now."""
        self._filtered = self._store.call(self._store.trajectories.filtered)
        self._filtered_of = self._filtered_by_dataset()
        self._skipped = self._store.call(self._store.trajectories.skipped)
        if self._config.data.live:
            self._discarded = self._store.call(self._store.live_sessions.counts).discarded
        _, self._waits = admission_wait({}, self._store.workers())

    def filtered(self) -> int:
        """Groups that were filtered since the last row."""
        total, _ = self._store.call(self._store.trajectories.filtered)
        return total - self._filtered[0]

    def row(
        self,
        progress: TrainingProgress,
        metrics: dict[str, float],
        sums: dict[str, float],
        spent: StepTime,
        staleness: Sequence[int],
        pushed: Pushed | None,
        bytes: int,
    ) -> dict[str, Any]:
        """Return the row of the step that led to `progress`. `metrics`: metrics of the training
        step; `sums`: outcomes summed over ranks (`outcome_sums`); `staleness`: staleness of each
        group; `bytes`: size of the groups' payloads."""
        workers = self._store.workers()
        wait, self._waits = admission_wait(self._waits, workers)
        samples, tokens = int(sums["samples"]), int(sums["completion_tokens"])
        return {
            "step": progress.step,
            "version": progress.version,
            "time": time.time(),
            **metrics,
            **outcome_metrics(sums, self._config.algorithm.samples_per_prompt, self._rewarded),
            **self._selection(sums),
            **self._datasets(sums),
            **self._curriculum(sums),
            **self._live(),
            **canary_metrics(workers),
            **staleness_metrics(staleness),
            **time_metrics(spent, samples, tokens, int(sums["prompt_tokens"])),
            **self._utilisation(sums, metrics, spent.training),
            **(pushed.metrics() if pushed else {}),
            "time/workers_waiting_for_admission": wait,
            "workers": len(workers),
            "memory/peak_bytes": peak_memory(),
            "wire/bytes_per_token": bytes / max(tokens, 1),
            "bottleneck": bottleneck(spent.total, spent.waiting, wait),
        }

    def _selection(self, sums: dict[str, float]) -> dict[str, float]:
        algorithm = self._config.algorithm
        if algorithm.dynamic_sampling is None and algorithm.best_of is None:
            return {}
        groups, reward = self._filtered
        self._filtered = self._store.call(self._store.trajectories.filtered)
        return selection_metrics(sums, self._filtered[0] - groups, self._filtered[1] - reward)

    def _curriculum(self, sums: dict[str, float]) -> dict[str, float]:
        if self._config.data.curriculum is None:
            return {}
        before, self._skipped = self._skipped, self._store.call(self._store.trajectories.skipped)
        skipped = self._skipped - before
        return {"curriculum/skipped": skipped / max(skipped + sums["groups"], 1.0)}

    def _live(self) -> dict[str, float]:
        if not self._config.data.live:
            return {}
        now = self._store.call(self._store.live_sessions.counts)
        before, self._discarded = self._discarded, now.discarded
        return {
            "session/open": now.open,
            "session/waiting": now.waiting,
            "session/ready": now.ready,
            "session/discarded": now.discarded - before,
        }

    def _datasets(self, sums: dict[str, float]) -> dict[str, float]:
        names = self._dataset_names
        if self._config.algorithm.dynamic_sampling is None:
            return dataset_metrics(sums, names, {})
        before, self._filtered_of = self._filtered_of, self._filtered_by_dataset()
        filtered = {name: count - before[name] for name, count in self._filtered_of.items()}
        return dataset_metrics(sums, names, filtered)

    def _filtered_by_dataset(self) -> dict[str, int]:
        count = self._store.trajectories.filtered_by_dataset
        return self._store.call(count, self._dataset_names)

    def _utilisation(
        self, sums: dict[str, float], metrics: dict[str, float], seconds: float
    ) -> dict[str, float]:
        if self._work is None:
            return {}
        passes = metrics["train/updates"] / self._config.algorithm.minibatches
        # A prefix that several samples share counts once.
        computed = 1 - metrics.get("train/shared_tokens", 0.0)
        tokens, squares = sums["row_tokens"] * computed, sums["row_tokens_squared"] * computed
        return self._work.metrics(tokens, squares, passes, seconds)
