"""What rank 0's process reports with each step: its memory, and what it has compiled."""

from learner.metrics.step_metrics import memory_metrics
from learner.model.compiling import compile_metrics
from learner.store.run_store import RunStore


class ProcessReport:
    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._failed = 0
        """Pieces of code that the run was warned of."""

    def metrics(self) -> dict[str, float]:
        """Return the metrics of this process. Adds a warning to the run for code that could not be
        compiled, which torch only logs."""
        compiled = compile_metrics()
        failed = int(compiled.get("compile/failed", 0))
        if failed > self._failed:
            self._store.warn(
                f"torch.compile failed for {failed} of {failed + int(compiled['compile/graphs'])} "
                "pieces of the learner's code, which run uncompiled: slower, with the same result. "
                "The learner's log says why; set training.compile to true to have the run fail "
                "instead, or to false"
            )
        self._failed = max(failed, self._failed)
        return memory_metrics() | compiled
