"""Rank 0's side of an RL run: it decides what happens next, publishes, and reports. `FirstRank` has
the parts that are common to all runs."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from headrace.config_keys import EditedKey
from learner.batch.staleness import Ancestry
from learner.checkpoints.checkpoint_retention import KeepRule
from learner.coordinate.checkpoint_schedule import CheckpointSchedule
from learner.coordinate.evaluations import EvaluationSchedule
from learner.coordinate.first_rank import FirstRank, on_rank_0
from learner.coordinate.planner import Planner
from learner.coordinate.step_report import StepReport
from learner.coordinate.waiting import WaitWatcher
from learner.environment import RunEnvironment
from learner.metrics.mismatch_alarm import mismatch_problem
from learner.metrics.step_metrics import Stopwatch, staleness_metrics
from learner.model.loading.model_loader import endless
from learner.model.passes.families import sharing_in_words, sharing_of
from learner.model.passes.mfu import sequence_cost, work
from learner.persist.disk_retry import CannotWrite
from learner.publishing.model_folder import export_description
from learner.publishing.publisher import Again, Publisher
from learner.publishing.versions import Version
from learner.shared_gpu import TrainingGPU, changing, still
from learner.state import TrainingState
from learner.store.commands import Command
from services.contracts.config import RLConfig
from services.contracts.run_edits import value_for
from services.contracts.why import all_zero
from services.runtime.logs import get_logger

log = get_logger(__name__)

ACTIVITIES = ("waiting", "training", "publishing", "checkpointing")
"""Activities of a step, as in `time_metrics`."""
EVALUATION_POLL_SECONDS = 0.2
IN_TURNS = (
    "taken in turns with vLLM, which sleeps while the learner trains; the learner's state is on "
    "the host while vLLM samples (rollout.vllm.sleeps)"
)


class Coordinator(FirstRank):
    def __init__(
        self,
        config: RLConfig,
        max_steps: int,
        environment: RunEnvironment,
        state: TrainingState,
        gpu: TrainingGPU | None = None,
    ) -> None:
        """`gpu`: the GPU that vLLM may use while this rank waits for workers."""
        training = config.training
        schedule = CheckpointSchedule(
            training.checkpoint_every,
            max_steps,
            config.rollout.stream_bytes,
            seconds=training.checkpoint_seconds,
        )
        keep = KeepRule(training.keep_checkpoints, training.keep_every)
        super().__init__(config, environment, state, schedule, keep)
        self._config, self._max_steps = config, max_steps
        self._lr: float | None = None
        """The peak of the learning rate, if it was edited."""
        store, versions = self._store, self._versions
        assert versions is not None
        self._gpu = gpu or TrainingGPU()
        self._gpu.holds(lambda: [*changing(state), *versions.tensors], lambda: still(state))
        lineages = [name for name, _ in state.progress.lineages]
        self._publisher = Publisher(
            store, lineages, self._disk, versions.compares, lambda: self._evaluations.files
        )
        self._newest: Version | None = None
        """The last version, if the model is sharded and published whole."""
        ancestry = Ancestry(tuple(state.progress.lineages))
        cost, shares = sequence_cost(state.loaded.model), sharing_of(state.policy) is not None
        self._planner = Planner(config, store, ancestry, cost, shares)
        self._evaluations = EvaluationSchedule(
            config, max_steps, store, self._file, self._disk, self._publisher.manifest
        )
        critic = state.critic.model if state.critic else None
        teacher = state.copies.teacher.logprobs.model if state.copies.teacher else None
        computed = work(state.loaded.model, config.algorithm, self._ranks, critic, teacher)
        self._step_report = StepReport(config, store, computed)
        self._waiting = WaitWatcher(
            store,
            self._publisher,
            config,
            self._step_report.filtered,
            self._publish_again,
        )
        self._time = Stopwatch(*ACTIVITIES)
        self._in_stream = self._in_files = 0
        """Bytes of the batch's groups in the stream, and of their payloads outside of Redis."""
        self._shares: bool | None = None
        """Whether the samples of the last batch shared prefixes."""
        self._all_zero = False
        """Whether every reward of the last batch was 0."""
        self._mismatched = False
        """Whether sampler and learner disagreed on the last batch."""

    @on_rank_0
    def _begin(self, base: dict[str, torch.Tensor] | None, start: Version | None) -> None:
        """Publish the version that training starts from, restore an earlier learner's plans, and
        set the run's state to running."""
        assert start is not None
        loaded, folder = self._state.loaded, self._folder / "model"
        name = f"runs/{self._store.run}/model"
        self._disk.retry(name, lambda: export_description(loaded, folder, base))
        self._evaluations.take_up()
        self._publisher.submit(start)
        self._publisher.wait()
        progress = self._state.progress
        if self._rollouts:
            self._rollouts.begin(progress.step)
        evaluated = self._file.begin(progress.step)
        self._planner.begin()
        self._evaluations.begin(progress, evaluated)
        no_end = endless(loaded, self._config.sampling)
        warnings = [*loaded.warnings, *self._config.warnings(), *([no_end] if no_end else [])]
        for warning in warnings:
            self._store.warn(warning)
        computation = {"attention": str(loaded.attention), **self._state.computation}
        if self._gpu.in_turns:
            computation["gpu"] = IN_TURNS
        for part, words in computation.items():
            self._store.computes(part, words)
        self._step_report.begin()
        self._store.set_state("running")

    def next_command(self) -> Command:
        self._time = Stopwatch(*ACTIVITIES)
        try:
            return self._ending or self._next_command()
        except CannotWrite as error:
            return self._give_up(error)

    @on_rank_0
    def requeue(self, step: int, unreadable: Mapping[int, str]) -> None:
        """Have the unreadable groups of the batch of `step` sampled again; the reasons are by task
        position. The batch is formed again."""
        for reason in unreadable.values():
            self._store.warn(f"{reason}; its task is sampled again")
        self._planner.requeue(step, unreadable)
        self._schedule.trained(-self._in_stream, -self._in_files)

    def publish(self) -> None:
        self._time.lap("training")
        super().publish()
        self._time.lap("publishing")

    def checkpoint(self) -> None:
        super().checkpoint()
        self._time.lap("checkpointing")

    @on_rank_0
    def report(self, metrics: dict[str, float], outcomes: dict[str, float]) -> None:
        """Report a trained batch, and request an evaluation if one is due. `outcomes`: sums over
        ranks."""
        step = self._state.progress.step
        pushed = self._publisher.pushed
        metrics |= staleness_metrics(self._planner.staleness) | (pushed.metrics() if pushed else {})
        size = self._in_stream + self._in_files
        row = self._step_report.row(
            self._state.progress, metrics, outcomes, self._time.seconds, size
        )
        # The fenced call comes first: a replaced learner that was asleep must not write rows.
        self._store.step_done(step, row)
        self._file.add(row)
        self._say_sharing(metrics.get("train/shared_tokens", 0.0))
        if row.get("reward/all_zero") and not self._all_zero:
            # A batch of zeros teaches nothing, and a broken verifier looks the same.
            self._store.warn(all_zero(row))
        self._all_zero = bool(row.get("reward/all_zero"))
        self._say_mismatch(step, row)
        self._evaluations.after_step(self._state.progress)
        self._hand_over_captured()

    def close(self) -> None:
        """End the threads. They finish their current work, unless the disk cannot be written."""
        self._disk.abandon()
        self._publisher.close()
        super().close()

    def _before_end(self, kind: str) -> str:
        self._publisher.wait()
        kind = self._final_evaluation() if kind == "finish" else kind
        # The last checkpoint needs the GPU.
        self._take_gpu()
        if kind == "cancel":
            self._evaluations.cancel()
        return kind

    # --- the next batch -------------------------------------------------------------------------

    def _next_command(self) -> Command:
        progress = self._state.progress
        # The planner does not ask again before a batch that an earlier learner has planned.
        if self._should_end() and progress.step < self._max_steps:
            return Command(self._environment.early_end)
        self._evaluations.follow()
        self._take_edits(progress.step + 1)
        if progress.step >= self._max_steps:
            return Command("finish")
        groups = self._planner.next(progress, self._interrupted())
        if ending := self._take_gpu():
            return ending
        if groups is None:
            return Command("yield" if self._environment.stop.is_set() else "cancel")
        sizes = {group.position: group.bytes for group in groups}
        self._in_stream, self._in_files = sum(sizes.values()), self._store.payload_bytes(sizes)
        self._schedule.trained(self._in_stream, self._in_files)
        self._time.lap("waiting")
        step = progress.step + 1
        shares = self._planner.shares(groups, step, self._ranks.parts)
        return Command("train", step, shares, self._max_steps, self._lr)

    def _take_edits(self, step: int) -> None:
        """Set the values that edits of the run give to `step`. New edits begin behind the steps
        that an earlier learner has planned."""
        edits = self._store.take_edits(max(step, self._planner.last_recorded + 1))
        if not edits:
            return

        def held(key: EditedKey, present: int) -> int:
            value = value_for(edits, key, step)
            return present if value is None else int(value)

        self._max_steps = self._schedule.last_step = held("max_steps", self._max_steps)
        self._schedule.every = held("checkpoint_every", self._schedule.every)
        self._planner.bound_staleness(held("max_staleness", self._config.rollout.max_staleness))
        every = self._evaluations.every
        if any(edit.key == "evaluation_every" for edit in edits):
            every = held("evaluation_every", 0) or None
        self._evaluations.reschedule(every, self._max_steps)
        self._lr = value_for(edits, "lr", step)

    def _take_gpu(self) -> Command | None:
        """Take the GPU. If vLLM does not release it, return the command that ends the run here.
        Later steps than the last commit are then trained again when the run resumes."""
        if self._gpu.take():
            return None
        log.error("the run ends before its newest state is written", reason="vLLM has the GPU")
        return self._end_early()

    def _interrupted(self) -> Callable[[], bool]:
        """Return a function that says whether the run should end. The planner calls it while it
        waits for groups; each call also follows open evaluations and checks the workers."""
        self._waiting.begin()
        waits = False

        def interrupted() -> bool:
            nonlocal waits
            self._check()
            if self._should_end():
                return True
            # Keep the GPU at the first call: the batch may be there already.
            if waits:
                self._gpu.leave()
            waits = True
            self._evaluations.follow()
            self._waiting.look("groups")
            return False

        return interrupted

    def _final_evaluation(self) -> str:
        """Evaluate the last version and wait for the answers. Returns the kind of command that ends
        the run: `finish`, or another kind if the run should end before all answers are there."""
        self._evaluations.last(self._state.progress)
        done = self._evaluated()
        return "finish" if done else self._environment.early_end

    def _evaluated(self) -> bool:
        """Wait for all evaluations. Return False if the run should end first."""
        self._waiting.begin()
        while self._evaluations.follow():
            self._check()
            self._gpu.leave()
            stop = self._environment.stop
            if stop.wait(EVALUATION_POLL_SECONDS) or self._should_end():
                return False
            self._waiting.look("an evaluation")
        return True

    def _while_paused(self) -> None:
        """Let vLLM have the GPU, so that it finishes its groups and answers callers. The time of a
        pause counts for no step."""
        self._check()
        self._gpu.leave()
        self._evaluations.follow()
        self._waiting.begin()
        self._time = Stopwatch(*ACTIVITIES)

    def _check(self) -> None:
        self._publisher.check()
        self._writer.check()

    def _publish_again(self) -> bool:
        """Publish the newest version again, whole. Return False if the run ends instead."""
        if self._publisher.can_repeat:
            self._publisher.submit(Again(time.time()))
            return True
        if self._take_gpu():
            return False
        version = self._newest or self._taken()
        assert version is not None
        self._publisher.submit(version)
        return True

    # --- after a batch --------------------------------------------------------------------------

    def _taken(self) -> Version | None:
        version = super()._taken()
        assert self._versions is not None
        # Kept for a retry, which must not need the other ranks.
        self._newest = version if self._sharded and not self._versions.compares else None
        return version

    @on_rank_0
    def _publish(self, weights: Version | None) -> None:
        assert weights is not None
        self._publisher.submit(weights)

    def _say_mismatch(self, step: int, row: dict[str, Any]) -> None:
        """Warn once when sampler and learner begin to disagree about the same weights."""
        vllm = self._config.rollout.vllm
        dtype = self._state.loaded.publish_name
        problem = mismatch_problem(row, dtype, vllm.computes_in, vllm.quantization is not None)
        if problem and not self._mismatched:
            self._store.warn(f"step {step}: {problem}")
        self._mismatched = bool(problem)

    def _say_sharing(self, share: float) -> None:
        """Report when samples begin or cease to share prefixes."""
        if self._shares != (share > 0):
            self._shares = share > 0
            self._store.computes("shared_prompts", sharing_in_words(self._state.policy, share))
