"""Rank 0's side of a supervised run: it decides when the run ends, and reports."""

import time

import torch

from headrace.config_keys import EditedKey
from learner.checkpoints.checkpoint_retention import KeepRule
from learner.coordinate.checkpoint_schedule import CheckpointSchedule
from learner.coordinate.first_rank import FirstRank, on_rank_0
from learner.coordinate.process_report import ProcessReport
from learner.environment import RunEnvironment
from learner.metrics.sft_metrics import Speed
from learner.model.passes.mfu import Work
from learner.persist.disk_retry import CannotWrite
from learner.publishing.model_folder import export_description
from learner.publishing.versions import Version
from learner.state import SupervisedProgress, TrainingProgress, TrainingState
from learner.store.commands import Command
from services.contracts.config import SFTConfig
from services.contracts.run_edits import RunEdit, value_for

PROGRESS_SECONDS = 1.0
"""Seconds between two progress events of a run: steps of a small model take milliseconds."""


class SFTCoordinator(FirstRank):
    def __init__(
        self,
        config: SFTConfig,
        max_steps: int,
        environment: RunEnvironment,
        state: TrainingState,
        work: Work | None,
    ) -> None:
        # No group waits in a stream for a commit, so there are no bytes to count.
        training = config.training
        schedule = CheckpointSchedule(
            training.checkpoint_every, max_steps, budget=1, seconds=training.checkpoint_seconds
        )
        keep = KeepRule(training.keep_checkpoints, training.keep_every)
        super().__init__(config, environment, state, schedule, keep)
        self._patience, self._max_steps = config.validation.patience, max_steps
        self._measure = config.validation.best
        self._edits: list[RunEdit] = []
        self._edits_read = -PROGRESS_SECONDS
        self._validate_every = config.validation.every
        self._lr: float | None = None
        """The peak of the learning rate, if it was edited."""
        self._speed, self._work, self._flops = Speed(), work, self._supervised.flops
        self._reported = 0.0
        self._process = ProcessReport(environment.store)

    @property
    def _supervised(self) -> SupervisedProgress:
        assert self._state.progress.supervised is not None
        return self._state.progress.supervised

    @on_rank_0
    def _begin(self, base: dict[str, torch.Tensor] | None, start: Version | None) -> None:
        """Export the model's description for adapters, return to the checkpoint's rows, and set the
        run's state to running."""
        loaded, folder = self._state.loaded, self._folder / "model"
        if loaded.lora:
            name = f"runs/{self._store.run}/model"
            self._disk.retry(name, lambda: export_description(loaded, folder, base))
        step = self._state.progress.step
        # The fenced call comes first: a learner that was replaced while it loaded its model or its
        # rows must not change the rows of its successor.
        self._store.fenced(self._store.runs.update, {"max_steps": self._max_steps})
        # A run at step 0 validates again before its first step.
        self._file.begin(step if step else -1)
        for warning in loaded.warnings:
            self._store.warn(warning)
        computation = {"attention": str(loaded.attention), **self._state.computation}
        for part, words in computation.items():
            self._store.computes(part, words)
        self._store.set_state("running")

    def next_command(self) -> Command:
        try:
            return self._ending or self._next_command()
        except CannotWrite as error:
            return self._give_up(error)

    def _next_command(self) -> Command:
        self._writer.check()
        ends, step = self._should_end(), self._state.progress.step + 1
        self._take_edits(step, now=step > self._max_steps)
        if step > self._max_steps or self._stops_early():
            return Command("finish")
        if ends:
            return Command(self._environment.early_end)
        return Command("train", step, [], self._max_steps, self._lr, self._validate_every)

    def _take_edits(self, step: int, *, now: bool) -> None:
        """Set the values that edits of the run give to `step`. Look for new edits `now`, else once
        in PROGRESS_SECONDS: steps of a small model are faster than a look."""
        if now or time.monotonic() - self._edits_read >= PROGRESS_SECONDS:
            self._edits_read = time.monotonic()
            self._edits = self._store.take_edits(step)
        if not self._edits:
            return

        def held(key: EditedKey, present: int) -> int:
            value = value_for(self._edits, key, step)
            return present if value is None else int(value)

        self._max_steps = self._schedule.last_step = held("max_steps", self._max_steps)
        self._schedule.every = held("checkpoint_every", self._schedule.every)
        self._validate_every = held("evaluation_every", self._validate_every)
        self._lr = value_for(self._edits, "lr", step)

    def _while_paused(self) -> None:
        super()._while_paused()
        self._speed.begin()
        self._edits_read = -PROGRESS_SECONDS

    def _stops_early(self) -> bool:
        return self._patience is not None and self._supervised.since_best >= self._patience

    @on_rank_0
    def report(self, metrics: dict[str, float], rows: int = 0, tokens: int = 0) -> None:
        """Report a step of `rows` rows and `tokens` tokens, or the validation before the first
        step."""
        step, now = self._state.progress.step, time.monotonic()
        speed = self._speed.metrics(rows, tokens, self._max_steps - step)
        row = {
            "step": step,
            "time": time.time(),
            **metrics,
            **speed,
            **self._utilisation(speed.get("time/step", 0.0)),
            **self._process.metrics(),
        }
        # The fenced call comes first: a replaced learner that was asleep must not write rows.
        last = step == self._max_steps or "validation/loss" in row or self._captured is not None
        if last or now - self._reported >= PROGRESS_SECONDS:
            self._reported = now
            self._store.step_done(step, row, kind="progress", total=self._max_steps)
        else:
            self._store.hold()
        self._file.add(row)
        self._hand_over_captured()

    def _utilisation(self, seconds: float) -> dict[str, float]:
        spent, self._flops = self._supervised.flops - self._flops, self._supervised.flops
        if self._work is None or not self._work.peak or not seconds:
            return {}
        return {"train/mfu": spent / (seconds * self._work.peak)}

    def _before_end(self, kind: str) -> str:
        # Fast steps are not reported one by one, so the last step may be missing.
        self._store.fenced(self._store.runs.update, {"step": self._state.progress.step})
        summary = describe_best_step(self._state.progress, self._max_steps, self._measure)
        if kind == "finish" and summary:
            self._store.warn(summary)
        return kind

    def _checkpoint_due(self) -> bool:
        step = self._state.progress.step
        if step and self._supervised.best_step == step:
            # The weights of the best step must be kept, so its checkpoint cannot wait for a later
            # step.
            self._writer.wait()
            return True
        return super()._checkpoint_due()


def describe_best_step(
    progress: TrainingProgress, max_steps: int, measure: str = "loss"
) -> str | None:
    """Say at which step the `measure` of a run's validations was lowest. Return None if that is the
    last step, or if there was no validation. Step 0 has no checkpoint."""
    measured = {"loss": "validation loss was", "bits_per_byte": "bits per byte were"}[measure]
    supervised, step = progress.supervised, progress.step
    if supervised is None or supervised.best_step is None or supervised.best_step >= step:
        return None
    early = "the run ends early, and " if step < max_steps else ""
    if not supervised.best_step:
        return (
            f"{early}training has not improved the model: the {measured} lowest before "
            f"the first step ({supervised.best_loss:.4g})"
        )
    return (
        f"{early}the {measured} lowest at step {supervised.best_step} "
        f"({supervised.best_loss:.4g}): run:{progress.run}@{supervised.best_step} starts from there"
    )
