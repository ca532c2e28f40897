"""The row of metrics of each step, from the training loop, the workers, and the store's counts."""

import time
from collections.abc import Mapping
from typing import Any

from learner.coordinate.process_report import ProcessReport
from learner.metrics.reward_metrics import (
    FILTERED,
    dataset_metrics,
    outcome_metrics,
    selection_metrics,
)
from learner.metrics.step_metrics import (
    admission_wait,
    bottleneck,
    canary_metrics,
    time_metrics,
)
from learner.model.passes.mfu import Work
from learner.state import TrainingProgress
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig
from services.contracts.config.objective.terms import ReverseKL


class StepReport:
    def __init__(self, config: RLConfig, store: RunStore, work: Work | None) -> None:
        """`work`: FLOPs of a step, None if the speed of the device is unknown."""
        self._config, self._store, self._work = config, store, work
        self._process = ProcessReport(store)
        self._waits: dict[str, float] = {}
        """Seconds that each worker had waited for admission until the last step."""
        self._before: dict[str, float] = {}
        """The store's totals until the last step (`_totals`)."""
        self._dataset_names = [name for name in config.datasets if name]
        """Dataset names of a mixture."""
        teaching = isinstance(config.algorithm.advantage, ReverseKL)
        self._rewarded = bool(config.rewards) or not teaching
        """Whether the run has rewards at all."""

    def begin(self) -> None:
        self._before = self._totals()
        _, self._waits = admission_wait({}, self._store.workers())

    def filtered(self) -> int:
        total, _ = self._store.call(self._store.trajectories.filtered)
        return total - int(self._before.get("filtered", total))

    def row(
        self,
        progress: TrainingProgress,
        metrics: dict[str, float],
        sums: dict[str, float],
        spent: Mapping[str, float],
        bytes: int,
    ) -> dict[str, Any]:
        """Return the row of the step that led to `progress`. `metrics`: metrics of the training
        step; `sums`: outcomes summed over ranks (`outcome_sums`); `spent`: seconds of the
        step by activity; `bytes`: size of the groups' payloads."""
        workers = self._store.workers()
        wait, self._waits = admission_wait(self._waits, workers)
        samples, tokens = int(sums["samples"]), int(sums["completion_tokens"])
        totals = self._totals()
        grown = {name: total - self._before.get(name, 0) for name, total in totals.items()}
        self._before = totals
        return {
            "step": progress.step,
            "version": progress.version,
            "time": time.time(),
            **metrics,
            **outcome_metrics(sums, self._config.algorithm.samples_per_prompt, self._rewarded),
            **self._selection(sums, grown),
            **dataset_metrics(sums, self._dataset_names, grown),
            **self._live(grown),
            **canary_metrics(workers),
            **time_metrics(spent, samples, tokens, int(sums["prompt_tokens"])),
            **self._utilisation(sums, metrics, spent["training"]),
            "time/workers_waiting_for_admission": wait,
            "workers": len(workers),
            **self._process.metrics(),
            "wire/bytes_per_token": bytes / max(tokens, 1),
            "bottleneck": bottleneck(sum(spent.values()), spent["waiting"], wait),
        }

    def _totals(self) -> dict[str, float]:
        """Return what the store has counted since the run began, as far as the run's config makes
        it count: filtered groups, the sum of their mean rewards, filtered groups by dataset name,
        skipped tasks, discarded sessions."""
        call, trajectories = self._store.call, self._store.trajectories
        algorithm, data = self._config.algorithm, self._config.data
        totals: dict[str, float] = {}
        if algorithm.dynamic_sampling or algorithm.best_of:
            totals["filtered"], totals["filtered reward"] = call(trajectories.filtered)
        if algorithm.dynamic_sampling:
            by_dataset = call(trajectories.filtered_by_dataset, self._dataset_names)
            totals |= {f"{FILTERED}{name}": count for name, count in by_dataset.items()}
        if data.curriculum:
            totals["skipped"] = call(trajectories.skipped)
        if data.live:
            totals["discarded"] = call(self._store.live_sessions.counts).discarded
        return totals

    def _selection(self, sums: dict[str, float], grown: dict[str, float]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if "filtered" in grown:
            metrics = selection_metrics(sums, grown["filtered"], grown["filtered reward"])
        if "skipped" in grown:
            skipped = grown["skipped"]
            metrics["curriculum/skipped"] = skipped / max(skipped + sums["groups"], 1.0)
        return metrics

    def _live(self, grown: dict[str, float]) -> dict[str, float]:
        if not self._config.data.live:
            return {}
        now = self._store.call(self._store.live_sessions.counts)
        return {
            "session/open": now.open,
            "session/waiting": now.waiting,
            "session/ready": now.ready,
            "session/discarded": grown["discarded"],
        }

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
