"""Rank 0's side of a run: it reads the stream, forms batches, asks for evaluations, and reports.

The only part of the learner that decides what happens next. It records a batch's plan before
anyone trains on it, replays plans that an earlier learner recorded, and never acknowledges a
group (that is the commit's).
"""

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from learner.checkpoint import TrainingState
from learner.collector import Collector, Waiting
from learner.disk import CannotWrite
from learner.evaluations import Evaluations
from learner.flops import Work
from learner.link import RunLink
from learner.metrics import (
    Spent,
    admission_wait,
    bottleneck,
    peak_memory,
    staleness_metrics,
    time_metrics,
)
from learner.metrics_file import MetricsFile
from learner.orders import Order, Plan
from learner.outcomes import outcome_metrics, selection_metrics
from learner.pace import CheckpointPace
from learner.packing import share
from learner.staleness import Ancestry, UnknownLineage
from services.contracts.config import RLConfig
from services.contracts.weights import parse_version_tag
from services.contracts.why import ALL_ZERO
from services.logs import get_logger
from services.store import Fenced

log = get_logger(__name__)

POLL_SECONDS = 1.0
AWAITED_SECONDS = 0.05
PATIENCE_SECONDS = 60.0
"""Waiting this long for groups is worth a warning that names the likely reason."""


class Conductor:
    """Plans batches of one run from `state` on."""

    def __init__(
        self,
        config: RLConfig,
        max_steps: int,
        ranks: int,
        link: RunLink,
        state: TrainingState,
        stop: threading.Event,
        file: MetricsFile,
        work: Work | None,
        check: Callable[[], None],
        mend: Callable[[], str],
    ) -> None:
        """`work`: what a batch takes, where that is known. `check` raises what went wrong on the
        threads that publish and make checkpoints. `mend` publishes the newest version again where
        its file is damaged, and says what is wrong with it; '' where nothing is."""
        self.config, self.max_steps, self.ranks = config, max_steps, ranks
        self.link, self.state, self.stop = link, state, stop
        self.file, self.work, self.check, self.mend = file, work, check, mend
        self.ancestry = Ancestry(tuple(state.lineages))
        self.collector = Collector(config.algorithm.prompts_per_step, config.rollout.max_staleness)
        self.recorded: dict[int, Plan] = {}
        self.read: dict[str, Waiting] = {}
        self.plan: Plan | None = None
        self.distances: list[int] = []
        self.waited = 0.0
        self.pace = CheckpointPace(
            config.training.checkpoint_every, max_steps, config.rollout.stream_bytes
        )
        self.ending: Order | None = None
        """Why the run ends here although the disk takes nothing."""
        self.evaluations = Evaluations(config.evaluation, max_steps, link, file)
        self.waits: dict[str, float] = {}
        self.left_out = (0, 0.0)
        """Groups left out for want of a signal until the last step, and the sum of their mean
        rewards."""
        self.silent = False
        """Whether the last batch had no reward other than 0."""

    def open(self) -> None:
        """Say that the run runs, and go back to what an earlier learner had planned."""
        # A version has the number of the step that made it.
        evaluated = self.file.begin(self.state.step)
        pending = self.link.pending_groups()
        known = self.read = {group.entry: group for group in pending}
        for step, pairs in self.link.plans().items():
            entries = [entry for entry, _ in pairs]
            sizes = [known[entry].bytes if entry in known else 1 for entry in entries]
            self.recorded[step] = Plan(entries, [draw for _, draw in pairs], sizes)
            self.collector.planned(entries, step)
        self.collector.arrive(pending)
        self.evaluations.begin(self.state, evaluated)
        for sentence in self.config.warnings():
            self.tell(sentence)
        self.left_out = self.link.left_out()
        self.link.set_state("running", "")
        _, self.waits = admission_wait({}, self.link.workers())

    def give_up(self) -> Order:
        """End here: the process or the run was told to end while nothing could be written. Steps
        after the current checkpoint are trained again when the run goes on."""
        self.ending = Order("cancel" if self.link.cancelled() else "yield")
        return self.ending

    def next_order(self) -> Order:
        """What all ranks do next. Waits for groups as long as it takes."""
        try:
            return self.ending or self._next_order()
        except CannotWrite as error:
            log.error("giving up", reason=str(error))
            return self.give_up()

    def _next_order(self) -> Order:
        began = time.monotonic()
        self.waited = 0.0
        self.evaluations.follow()
        if self.state.step >= self.max_steps:
            return Order("finish")
        step = self.state.step + 1
        plan = self.recorded.pop(step, None)
        if plan is None:
            try:
                found = self._collect(began)
            except UnknownLineage as error:
                # The store lists all lineages there were when this one began.
                log.warning("a group of a later learner's version", reason=str(error))
                raise Fenced(self.link.run) from error
            if isinstance(found, Order):
                return found
            plan = Plan([g.entry for g in found], [g.draw for g in found], [g.bytes for g in found])
            self.distances = [
                self.ancestry.distance(group.oldest, self.state.version) for group in found
            ]
            self.link.record_plan(step, plan)
        else:
            log.info("replaying a recorded batch", step=step)
            # Counted as when it was planned: its lineage was the current one.
            tags = [self.read[entry].oldest for entry in plan.entries if entry in self.read]
            self.distances = [
                max(self.state.version - parse_version_tag(tag)[1], 0) for tag in tags
            ]
        self.waited = time.monotonic() - began
        self.plan = plan
        self.pace.trained(sum(plan.bytes))
        return Order("train", step, self._shares(plan))

    def after_step(
        self, state: TrainingState, metrics: dict[str, float], sums: dict[str, float], spent: Spent
    ) -> None:
        """Report a trained batch, and ask for an evaluation where one is due."""
        self.state = state
        workers = self.link.workers()
        wait, self.waits = admission_wait(self.waits, workers)
        row: dict[str, Any] = {
            "step": state.step,
            "version": state.version,
            "time": time.time(),
            **metrics,
            **outcome_metrics(sums, self.config.algorithm.samples_per_prompt),
            **self._selection(sums),
            **staleness_metrics(self.distances),
            **time_metrics(
                spent,
                int(sums["samples"]),
                int(sums["completion_tokens"]),
                int(sums["prompt_tokens"]),
            ),
            **self._utilisation(sums, metrics["train/updates"], spent.training),
            "time/workers_waiting_for_admission": wait,
            "workers": len(workers),
            "memory/peak_bytes": peak_memory(),
            "wire/bytes_per_token": sum(self.plan.bytes if self.plan else [])
            / max(sums["completion_tokens"], 1),
            "bottleneck": bottleneck(spent.total, spent.waiting, wait),
        }
        # First what is fenced: a learner that was replaced while it slept writes no row.
        self.link.step_done(state.step, row)
        self.file.add(row)
        if row["reward/all_zero"] and not self.silent:
            # Nothing can be learned from it, and a broken verifier looks just like this.
            self.tell(f"every reward of step {state.step} {ALL_ZERO}")
        self.silent = bool(row["reward/all_zero"])
        self.evaluations.after_step(state)

    def final_evaluation(self, state: TrainingState) -> str:
        """Evaluate the last version and wait for the answers. Returns the kind of order that the
        run ends with: `finish`, or another where it was to end before all were there."""
        if self._evaluated() and (not self.evaluations.last(state) or self._evaluated()):
            return "finish"
        return "cancel" if self.link.cancelled() else "yield"

    def _evaluated(self) -> bool:
        """Wait for an open evaluation. False where the run is to end without it."""
        began = warned = time.monotonic()
        while self.evaluations.follow():
            self.check()
            if self.stop.wait(POLL_SECONDS / 5) or self.link.cancelled():
                return False
            if time.monotonic() - warned > PATIENCE_SECONDS:
                warned = time.monotonic()
                self._warn("an evaluation", time.monotonic() - began)
        return True

    def _collect(self, began: float) -> list[Waiting] | Order:
        warned = began
        while True:
            self.check()
            if self.stop.is_set():
                return Order("yield")
            if self.link.cancelled():
                return Order("cancel")
            # Before the read, not after it: what was read may have been committed since.
            self.collector.committed(self.link.committed_step)
            batch = self._batch()
            if batch is not None:
                return batch
            self.collector.arrive(self.link.read_groups(POLL_SECONDS))
            self.evaluations.follow()
            if time.monotonic() - warned > PATIENCE_SECONDS:
                warned = time.monotonic()
                self._warn("groups", time.monotonic() - began)

    def _batch(self) -> list[Waiting] | None:
        """The next batch, where it can be formed without making others too stale."""
        awaited: dict[int, int] = {}
        if self.collector.enough and self.config.rollout.late_groups == "wait":
            awaited = self.link.awaited()
            # What is no longer in the works by now has been handed in before this.
            while fresh := self.link.read_groups(0):
                self.collector.arrive(fresh)
        stale = self.collector.stale(self.ancestry, self.state.version)
        if stale:
            log.info("stale groups go back", groups=len(stale), step=self.state.step + 1)
            self.link.give_back([group.entry for group in stale])
        if not self.collector.enough:
            return None
        batch = self.collector.take(self.ancestry, self.state.version, self.state.step + 1, awaited)
        if batch is None:
            # Groups arrive one by one, and each would be followed by the same question.
            self.stop.wait(AWAITED_SECONDS)
        return batch

    def _selection(self, sums: dict[str, float]) -> dict[str, float]:
        algorithm = self.config.algorithm
        if algorithm.dynamic_sampling is None and algorithm.best_of is None:
            return {}
        groups, reward = self.left_out
        self.left_out = self.link.left_out()
        return selection_metrics(sums, self.left_out[0] - groups, self.left_out[1] - reward)

    def _utilisation(
        self, sums: dict[str, float], updates: float, seconds: float
    ) -> dict[str, float]:
        if self.work is None:
            return {}
        passes = updates / self.config.algorithm.minibatches
        return self.work.metrics(sums["row_tokens"], sums["row_tokens_squared"], passes, seconds)

    def _shares(self, plan: Plan) -> list[list[list[int]]]:
        """Positions of draws by minibatch and rank. Minibatches are cut before ranks are, so that
        each holds the same groups however many ranks there are."""
        positions = [int(draw.partition(":")[0]) for draw in plan.draws]
        pieces = self.config.algorithm.minibatches
        bounds = [len(positions) * i // pieces for i in range(pieces + 1)]
        return [
            [[positions[a + i] for i in indices] for indices in share(plan.bytes[a:b], self.ranks)]
            for a, b in pairwise(bounds)
        ]

    def _warn(self, what: str, seconds: float) -> None:
        workers = self.link.workers()
        troubled = [f"{w.id}: {w.error}" for w in workers if w.error]
        if not workers:
            reason = "no rollout worker serves this pool; start one (python -m rollout)"
        elif troubled:
            reason = "; ".join(troubled)
        else:
            reason = ", ".join(f"{w.id} is {w.state}" for w in workers)
        if left_out := self.link.left_out()[0] - self.left_out[0]:
            reason += f"; {left_out} groups were left out since the last step (no signal)"
        self.tell(f"waiting for {what} for {seconds:.0f} s: {reason}")
        if troubled and (damage := self.mend()):
            self.tell(f"version {self.state.version} is published again: {damage}")

    def tell(self, message: str) -> None:
        """A warning, to the log and to who follows the run."""
        log.warning(message)
        self.link.event("warning", {"message": message})
