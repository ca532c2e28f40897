"""Evaluations of a run, as rank 0 requests them: when they are due, and their results.

Evaluations run one at a time. Each uses exactly the version of its step, whose files stay until the
evaluation is done. Training does not wait for them, except after the last step. Each evaluation is
made once, even if another learner takes over the run.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from learner.persist.disk_retry import Disk
from learner.persist.evaluation_files import EvaluationFiles
from learner.persist.jsonl import MetricsFile
from learner.state import TrainingProgress
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig
from services.contracts.config.evaluation import HeldOut, resolved
from services.contracts.evaluation import EvaluationRecord, EvaluationRequest
from services.contracts.records import DatasetRecord
from services.contracts.weights import WeightManifest, encode_manifest, parse_version_tag
from services.evaluations import results
from services.runtime.logs import get_logger
from services.store.work.evaluations import Standing

log = get_logger(__name__)

MOST_WAITING = 4
"""Most evaluations of one held-out set that may be unfinished: the files of their versions take
disk space."""


@dataclass(frozen=True)
class _Due:
    id: str
    step: int
    version: str
    held_out: HeldOut
    name: str


class EvaluationSchedule:
    """The evaluations of one run. Does nothing for a run without evaluations."""

    def __init__(
        self,
        config: RLConfig,
        max_steps: int,
        store: RunStore,
        file: MetricsFile,
        disk: Disk,
        manifest: Callable[[str], WeightManifest | None],
    ) -> None:
        """`manifest` returns a version's manifest after it is published."""
        self._run, self._config, self._max_steps = config, config.evaluation, max_steps
        self._store, self._file, self._manifest = store, file, manifest
        self.every = config.evaluation.every if config.evaluation else None
        """Steps between evaluations; None: only those at the start and the end."""
        self._files = EvaluationFiles(store, disk)
        self._open: dict[str, EvaluationRequest] = {}
        """Requested and unreported evaluations, oldest first."""
        self._due: list[_Due] = []
        self._known: set[str] = set()
        """Ids of all evaluations that were ever requested."""
        self._reported: set[str] = set()
        """Ids of the evaluations in the metrics file."""
        self._names: dict[str, str] = {}
        """Names of held-out sets, by dataset."""
        self.files: frozenset[str] = frozenset()
        """Weight files that are still needed. The set is replaced, never changed, because another
        thread reads it."""

    def begin(self, progress: TrainingProgress, reported: set[str]) -> None:
        """Continue an earlier learner's evaluations, and request those that are due at the start.
        `reported`: ids in the metrics file."""
        if self._config is None:
            return
        self._reported = reported
        self.take_up()
        ended = list(results(self._files.disk.root, self._store.run))
        self._known = {*self._open, *(each.id for each in ended)}
        settled = {*self._open, *reported}
        for record in ended:
            # The learner died after the last answer and before the report.
            if record.state == "done" and record.id not in settled:
                self._report(record)
        self._store.fenced(self._store.evaluations.let, self._config.workers)
        every = self.every
        if progress.step == 0:
            if self._config.at_start:
                self._note(progress)
        elif every and progress.step < self._max_steps:
            due = progress.step - progress.step % every
            newest = max((int(id.partition("-")[0]) for id in self._known), default=0)
            if newest < due:
                # An evaluation that fell due earlier is made with the current version.
                self._note(progress)
        self.follow()

    def reschedule(self, every: int | None, max_steps: int) -> None:
        """Evaluate after every `every` steps from now on, and at the end, `max_steps`."""
        self.every, self._max_steps = every, max_steps

    def after_step(self, progress: TrainingProgress) -> None:
        every = self.every
        # `last` evaluates the last version in any case.
        if every and progress.step % every == 0 and progress.step < self._max_steps:
            self._note(progress)

    def last(self, progress: TrainingProgress) -> bool:
        """Request the evaluation of the last version unless it was already made, and let all
        workers answer open evaluations. Returns whether an evaluation is open."""
        if self._config is None:
            return False
        self._note(progress, whatever_waits=True)
        self._ask_due()
        self._store.fenced(self._store.evaluations.let, 0)
        return bool(self._open)

    def follow(self) -> bool:
        """Store new answers, and report evaluations that are complete. Returns whether an
        evaluation is open."""
        self._ask_due()
        if self._open:
            self._follow_open()
        return bool(self._open)

    def cancel(self) -> None:
        """Record that the open evaluations stay unfinished because the run ends first: it was
        cancelled, or a worker has failed it."""
        standing = {each.id: each for each in self._standing()}
        for id, request in list(self._open.items()):
            parts = self._files.move(standing[id], whole=True) if id in standing else 0
            record = self._files.end(request, "cancelled", "the run ended first", parts)
            self._store.warn(
                f"the evaluation of step {record.step} on {record.name} ends with "
                f"{record.answered} of {record.rows} rows answered: the run ended first"
            )
            self._close(id)

    # --- requests -------------------------------------------------------------------------------

    def _note(self, progress: TrainingProgress, whatever_waits: bool = False) -> None:
        """Note the evaluations that are due at `progress`, except those already requested."""
        assert self._config is not None
        tag = f"{progress.lineage}:{progress.version}"
        for held_out in self._config.sets:
            name = held_out.name or self._name_of(held_out.dataset)
            id = f"{progress.step:06d}-{name}"
            if id in self._known:
                continue
            self._known.add(id)
            unfinished = [each.step for each in self._open.values() if each.set.name == name]
            unfinished += [each.step for each in self._due if each.name == name]
            if len(unfinished) >= MOST_WAITING and not whatever_waits:
                self._store.warn(
                    f"step {progress.step} is not evaluated on {name}: the evaluations of steps "
                    f"{', '.join(map(str, unfinished))} are not finished. Raise evaluation.every, "
                    "evaluation.share or evaluation.workers, or lower evaluation.rows"
                )
                continue
            if unfinished and not whatever_waits:
                self._store.warn(
                    f"the evaluation of step {progress.step} on {name} waits for that of step "
                    f"{unfinished[0]}: raise evaluation.every, evaluation.share or "
                    "evaluation.workers, or lower evaluation.rows"
                )
            self._due.append(_Due(id, progress.step, tag, held_out, name))

    def _ask_due(self) -> None:
        while self._due and (manifest := self._manifest(self._due[0].version)) is not None:
            due = self._due[0]
            if (dataset := self._store.record_of_dataset(due.held_out.dataset)) is None:
                self._store.warn(
                    f"step {due.step} is not evaluated on {due.name}: there is no dataset "
                    f"{due.held_out.dataset!r} any more"
                )
            else:
                self._ask(self._request(due, dataset, manifest))
            del self._due[0]

    def _request(
        self, due: _Due, dataset: DatasetRecord, manifest: WeightManifest
    ) -> EvaluationRequest:
        held_out = resolved(
            due.held_out,
            id=dataset.id,
            dataset_name=dataset.name,
            rows=dataset.rows,
            sampling=self._run.sampling,
            prompt=self._run.data,
            rewards=self._run.rewards,
        )
        return EvaluationRequest(
            id=due.id,
            step=due.step,
            version=due.version,
            manifest=encode_manifest(manifest).decode(),
            set=held_out,
            asked=time.time(),
        )

    def _ask(self, request: EvaluationRequest) -> None:
        """Request answers to the rows. For an evaluation of a model without training, skip rows
        that an earlier run with the same evaluation has answered."""
        parts = 0
        if self._max_steps == 0:
            parts, rows = self._files.take_over(request.id)
            left = sorted({*range(request.rows)} - {*rows})
            if not left:
                self._report(self._files.end(request, "done", parts=parts))
                return
            request = request.model_copy(update={"left": left if parts else None})
        self._note_files({**self._open, request.id: request})
        self._store.fenced(self._store.evaluations.ask, request, parts)
        self._open[request.id] = request

    def take_up(self) -> None:
        """Read the requests of an earlier learner. Call it before a version is published, because
        publishing deletes weight files that no known evaluation needs."""
        requests = self._store.call(self._store.evaluations.requests)
        self._open = {request.id: request for request in requests}
        self._note_files(self._open)

    def _note_files(self, open: dict[str, EvaluationRequest]) -> None:
        self.files = frozenset(
            file.name for request in open.values() for file in request.weights.files
        )

    def _name_of(self, dataset: str) -> str:
        if dataset not in self._names:
            record = self._store.record_of_dataset(dataset)
            self._names[dataset] = record.name if record else dataset
        return self._names[dataset]

    # --- outcomes -------------------------------------------------------------------------------

    def _follow_open(self) -> None:
        for standing in self._standing():
            request = self._open.get(standing.id)
            if request is None:
                # Another party changed the data in Redis: for example, a backup was restored.
                log.warning("an evaluation was not requested here", evaluation=standing.id)
                self.take_up()
                continue
            parts = self._files.move(standing)
            if standing.state != "open":
                record = self._files.end(request, standing.state, standing.reason, parts)
                self._report(record)
                self._close(request.id)

    def _standing(self) -> list[Standing]:
        return list(self._store.call(self._store.evaluations.standing))

    def _report(self, record: EvaluationRecord) -> None:
        if record.state == "failed":
            self._store.warn(
                f"the evaluation of step {record.step} on {record.name} failed: {record.reason}"
            )
            return
        figures = _figures(record)
        if record.id not in self._reported:
            self._reported.add(record.id)
            named = {f"evaluation/{name}": value for name, value in figures.items()}
            self._file.add({"time": time.time(), **named})
            # Durable before the evaluation is deleted from Redis.
            self._file.sync()
        self._store.event("evaluation", figures)

    def _close(self, id: str) -> None:
        self._store.fenced(self._store.evaluations.close, id)
        del self._open[id]
        self._note_files(self._open)


def _figures(record: EvaluationRecord) -> dict[str, Any]:
    """Return an evaluation's figures, named as in docs/metrics.md without `evaluation/`."""
    figures: dict[str, Any] = {
        "id": record.id,
        "step": record.step,
        "version": parse_version_tag(record.version)[1],
        "name": record.name,
    }
    figures |= record.metrics
    if record.categories:
        figures["categories"] = record.categories
    return figures
