"""Watch over rank 0's wait for groups or answers.

A long wait is warned of with the likely reason. If workers cannot load the newest version because a
file is damaged, the version is published again.
"""

import time
from collections.abc import Callable, Sequence

from learner.publishing.publisher import Publisher
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig
from services.contracts.config.episodes import Sessions
from services.contracts.records import WorkerRecord
from services.runtime.logs import get_logger

log = get_logger(__name__)

PATIENCE_SECONDS = 60.0
"""A longer wait is worth a warning."""
LOOK_SECONDS = 5.0
"""Seconds between two checks of the workers. Each check is one call to Redis."""


class WaitWatcher:
    def __init__(
        self,
        store: RunStore,
        publisher: Publisher,
        config: RLConfig,
        filtered: Callable[[], int],
        publish_again: Callable[[], bool],
    ) -> None:
        """`filtered`: number of groups filtered since the last step; `publish_again`: publishes the
        newest version again, whole, and returns whether it did."""
        self._store, self._publisher = store, publisher
        self._live = config.data.live
        self._by_agents = isinstance(config.rollout.episode, Sessions)
        self._filtered, self._publish_again = filtered, publish_again
        self._began = self._warned = self._looked = time.monotonic()
        self._compared = -PATIENCE_SECONDS
        """Time at which the files of the newest version were last read. For a large model a read
        takes long."""

    def begin(self) -> None:
        self._began = self._warned = self._looked = time.monotonic()

    def look(self, what: str) -> None:
        """Check the wait for `what`. Called repeatedly during the wait."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        workers = self._store.workers()
        if now - self._warned >= PATIENCE_SECONDS:
            self._warned = now
            self._warn(what, now - self._began, workers)
            suspected = any(worker.error for worker in workers)
        else:
            suspected = self._publisher.distrusted(workers)
        if suspected and now - self._compared >= PATIENCE_SECONDS:
            self._compared = now
            self._mend()

    def _mend(self) -> None:
        if (damage := self._publisher.damage()) and self._publish_again():
            self._store.warn(f"the newest version is published again: {damage}")

    def _warn(self, what: str, seconds: float, workers: Sequence[WorkerRecord]) -> None:
        troubled = [f"{w.id}: {w.error}" for w in workers if w.error]
        if not troubled and any(w.state == "starting" for w in workers):
            # No problem: vLLM takes minutes to start, and its worker reports when it gives up.
            log.info("waiting for workers to start", what=what, seconds=round(seconds))
            return
        served = any(w.serves(self._store.run) and not w.evaluation_only for w in workers)
        if not troubled and self._live and served:
            # No problem: users bring sessions when they come.
            return
        if not workers:
            reason = "no rollout worker serves this pool; start one (python -m rollout)"
        elif troubled:
            reason = "; ".join(troubled)
        elif self._by_agents and served:
            # The workers are idle: the run waits for agents, not for workers.
            reason = "no agent plays, or agents have ended too few of their sessions"
        else:
            reason = ", ".join(f"{w.id} is {w.state}" for w in workers)
        if filtered := self._filtered():
            reason += f"; {filtered} groups were filtered since the last step"
        self._store.warn(f"waiting for {what} for {seconds:.0f} s: {reason}")
