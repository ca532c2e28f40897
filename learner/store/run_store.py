"""One run in the store, as its learner sees it.

`call` and `fenced` run a method of the store for this run and return its result, e.g.
`run.call(run.trajectories.plans)`. A fenced call carries the token from `acquire`, and raises
Fenced once another learner has the run.
"""

import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from headrace.wording import on_request
from learner.errors import RunCannotGoOn
from learner.metrics.step_metrics import finite
from learner.store.thread import StoreThread
from services.contracts.events import EventKind
from services.contracts.groups.payload import REFERENCE, bytes_outside
from services.contracts.records import DatasetRecord, RunRecord, WorkerRecord
from services.contracts.run_edits import RunEdit
from services.contracts.weights import WeightManifest
from services.datasets import DatasetReader
from services.models.path import checkpoint_of, run_named, run_with_step, step_named
from services.recovery.record_copies import cut_commits
from services.runtime.logs import get_logger
from services.store import Fenced
from services.volume import Volume

log = get_logger(__name__)

WEIGHTS_LISTED = 64
"""Manifests kept in the run's stream. Workers only want the newest."""
REQUEST = "request"
PACE_STEPS = 10
"""Newest reports of steps that tell how long a step takes."""
P = ParamSpec("P")
T = TypeVar("T")


class RunStore:
    """Reads and changes one run in the store. Safe for several threads."""

    def __init__(self, thread: StoreThread, record: RunRecord) -> None:
        self.run = record.id
        self.committed_step = record.committed_step
        self.lineage = record.lineage
        self._resumes = record.resume_from
        self.runs, self.trajectories = thread.store.runs, thread.store.trajectories
        self.evaluations, self.ledger = thread.store.evaluations, thread.store.ledger
        self.live_sessions = thread.store.live_sessions
        self._payloads = thread.payloads
        self._thread, self._pool = thread, record.pool
        self.fencing_token = 0
        """Fencing token of the start that trains the run, the same on all ranks. 0 before the run
        is taken over."""
        self._state = "starting"
        self._written: tuple[str, str] | None = None
        """The state and the reason that this process wrote last."""
        self.paused_by = record.paused_by
        """Who wants the run to pause, as of the last `cancelled`. Empty: nobody."""
        self._paused: dict[str, str] = {}
        """Reasons of the current pauses, by cause: a full disk or Redis, or a request."""
        if self.paused_by:
            self._paused[REQUEST] = on_request(self.paused_by)
        self._computation: dict[str, str] = {}
        self._reported: deque[tuple[float, int]] = deque(maxlen=PACE_STEPS + 1)
        """When the newest steps were reported, by the monotonic clock, and their numbers."""
        thread.when_full = partial(self.pause, by="Redis")
        thread.when_not_full = partial(self.go_on, by="Redis")

    def call(
        self,
        method: Callable[Concatenate[str, P], Awaitable[T]],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        """Return the result of a method of the store whose first argument is the run."""
        return self._thread.call(lambda: method(self.run, *arguments, **options))

    def fenced(
        self,
        method: Callable[Concatenate[str, int, P], Awaitable[T]],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        """Return the result of a method of the store whose second argument is the fencing token.
        Raises Fenced."""
        return self._thread.call(
            lambda: method(self.run, self.fencing_token, *arguments, **options)
        )

    # --- state ----------------------------------------------------------------------------------

    def acquire(self) -> RunRecord:
        """Take over the run, under a new lineage. Returns the run's record as of then: an earlier
        learner may have committed after the record was first read."""
        self.lineage = secrets.token_hex(3)
        self.fencing_token = self.call(self.runs.acquire, self.lineage)
        record = self.call(self.runs.get)
        if record is None:
            raise RunCannotGoOn(f"there is no run {self.run} any more")
        self.committed_step = record.committed_step
        return record

    def lineages(self) -> list[tuple[str, int]]:
        """Return (lineage, version at its start) of all starts so far, this start last. A
        checkpoint knows only the lineages that led to it. A lineage that died before its first
        checkpoint is only here, and groups that it sampled may still be in the stream."""
        return list(self.call(self.runs.lineages))

    def set_state(self, state: str, reason: str = "") -> None:
        """Change the run's state, unless the state is already final. A paused run stays paused.
        Raises Fenced."""
        self._state = state
        paused = next(iter(self._paused.values()), "")
        self._write_state("paused" if paused else state, paused or reason)

    def pause(self, reason: str, by: str = "disk") -> None:
        """Stop granting leases until `go_on`, because of a request, or because the disk or Redis is
        full (`by`). Raises Fenced."""
        self._paused[by] = reason
        self._write_state("paused", reason)

    def go_on(self, by: str = "disk") -> None:
        """End a pause. The run returns to its state before the pause, unless another pause remains.
        Raises Fenced."""
        self._paused.pop(by, None)
        reason = next(iter(self._paused.values()), "")
        self._write_state("paused" if reason else self._state, reason)

    def heed_pause(self) -> bool:
        """Pause or go on as the last `cancelled` has found. Return whether the run should be
        paused. Raises Fenced."""
        if self.paused_by and REQUEST not in self._paused:
            self.pause(on_request(self.paused_by), by=REQUEST)
        elif not self.paused_by and REQUEST in self._paused:
            # The pace is that of steps without a pause.
            self._reported.clear()
            self.go_on(by=REQUEST)
        return bool(self.paused_by)

    def _write_state(self, state: str, reason: str) -> None:
        if self._written == (state, reason):
            return
        self.call(self.runs.set_state, state, reason, fencing_token=self.fencing_token or None)
        self._written = state, reason

    def hold(self) -> None:
        """Raise Fenced if another learner has taken over the run."""
        self.fenced(self.runs.update, {})

    def resumed(self) -> Iterator[str]:
        """Yield the run that this run resumes, the run that that run resumes, and so on."""
        before = self._resumes
        while before is not None:
            yield before
            record = self._thread.call(partial(self.runs.get, before))
            before = record.resume_from if record else None

    def finish(self, state: str, reason: str) -> None:
        """End the run and free the pool for its next run. Does nothing if another learner has taken
        over the run."""
        try:
            self.call(
                self.runs.finish,
                self._pool,
                state,
                reason,
                fencing_token=self.fencing_token or None,
            )
            self.sweep_payloads()
        except Fenced as error:
            log.warning(str(error), run=self.run)

    def cancelled(self) -> bool:
        """Whether the user wants the run to end, or another party has ended it. Raises Fenced."""
        ends, fencing_token, self.paused_by = self.call(self.runs.standing)
        if not ends and fencing_token != self.fencing_token:
            raise Fenced(self.run)
        return ends

    def commit(self, step: int, directory: str) -> None:
        """Make a durable checkpoint current and acknowledge the groups that were trained for it."""
        self.fenced(self.trajectories.commit, self.lineage, step, directory)
        self.committed_step = step
        self.sweep_payloads()

    def go_back(self, step: int, directory: str, root: Path) -> None:
        """Make an earlier checkpoint current. Tasks of later steps are sampled again. `root`: the
        data volume. Raises Fenced, OSError."""
        # Cut the copy first: a copy with more commits than Redis would look like lost writes.
        cut_commits(root, self.run, step)
        self.fenced(self.runs.go_back, self.lineage, step, directory)
        self.committed_step = step

    def publish(self, manifest: WeightManifest) -> None:
        self._thread.call(
            lambda: self._thread.store.weights.publish(
                self.fencing_token, manifest, keep=WEIGHTS_LISTED
            )
        )

    # --- payloads outside of Redis ---------------------------------------------------------------

    def payload(self, stored: bytes) -> bytes:
        """Return the payload of a group. `stored`: the stream's value, the payload itself or a
        reference to it. Raises ValueError if the payload is damaged or missing, and GatewayAway."""
        return self._thread.call(lambda: self._payloads.read(stored))

    def payload_bytes(self, sizes: Mapping[int, int]) -> int:
        """Return the bytes of a batch's payloads outside of Redis, given the bytes of each group in
        the stream, by task position. Only payloads that may be outside cost a request, of 150 bytes
        each."""
        small = [position for position, size in sizes.items() if size <= REFERENCE]
        if not small:
            return 0
        stored = self.call(self.trajectories.payloads, small)
        return sum(bytes_outside(payload) for payload in stored if payload is not None)

    def payload_bytes_free(self) -> int | None:
        """Return the bytes that payloads may still take on the data volume, or None if payloads are
        not there."""
        return self._payloads.free_bytes()

    def sweep_payloads(self) -> None:
        """Delete the run's payloads that are no longer needed. A payload that cannot be deleted now
        goes with the next sweep. The gateway also sweeps every minute."""
        try:
            self._thread.call(lambda: self._payloads.sweep(self.run))
        except OSError as error:
            log.warning("payloads stay", reason=str(error))

    def take_edits(self, step: int) -> list[RunEdit]:
        """Return the run's edits. New ones hold from `step` on. Raises Fenced."""
        return self.fenced(self._thread.store.run_edits.take, step)

    # --- events ---------------------------------------------------------------------------------

    def event(self, kind: EventKind, data: dict[str, Any]) -> None:
        self.call(self._thread.store.events.add, kind, data)

    def warn(self, message: str) -> None:
        """Log a warning and add it to the run's events."""
        log.warning(message)
        self.event("warning", {"message": message})

    def computes(self, part: str, words: str) -> None:
        """Report how a part of the run is computed, and why, in the log and in the run's record.
        Raises Fenced."""
        log.info(words, part=part)
        self._computation[part] = words
        self.fenced(self.runs.update, {"computation": self._computation})

    def step_done(
        self, step: int, row: dict[str, Any], kind: EventKind = "step", total: int | None = None
    ) -> None:
        """Report a step's metrics as an event and as the run's newest values. Raises Fenced."""
        row = finite(row)
        metrics = {name: v for name, v in row.items() if isinstance(v, float) and name != "time"}
        newest = {
            "reward": metrics.get("reward/mean"),
            "loss": metrics.get("train/loss") if kind == "progress" else None,
            "step_seconds": self._pace(step),
        }
        fields = {name: value for name, value in newest.items() if value is not None}
        self.fenced(self.runs.update, {"step": step, "metrics": metrics, **fields})
        done = {} if total is None else {"done": step, "total": total, "unit": "steps"}
        self.event(kind, done | row)

    def _pace(self, step: int) -> float | None:
        """Return the seconds of a step, over the newest PACE_STEPS reports. Return None for the
        first report: what came before it was not all a step."""
        self._reported.append((time.monotonic(), step))
        (began, first), (now, last) = self._reported[0], self._reported[-1]
        return (now - began) / (last - first) if last > first else None

    # --- the pool and its inputs ----------------------------------------------------------------

    def workers(self) -> list[WorkerRecord]:
        """Return the pool's rollout workers, as of their last heartbeat."""
        return self._thread.call(lambda: self._thread.store.workers.list(self._pool))

    def model_path(self, path: str, volume: Volume, key: str = "model.path") -> str:
        """Return a folder or hub name for the value of `key`. `run:RUN` is that run's checkpoint,
        and `run:RUN@STEP` its checkpoint of a step."""
        run = run_named(path)
        if run is None:
            return path
        record = self._thread.call(lambda: self.runs.get(run))
        if record is None:
            raise RunCannotGoOn(f"{key} {path}: run {run} does not exist")
        step, named = step_named(path), record
        made_by = self._thread.call(lambda: run_with_step(named, step, self.runs.get))
        try:
            checkpoint = checkpoint_of(made_by, volume.root, step)
        except ValueError as error:
            raise RunCannotGoOn(f"{key} {path}: {error}") from error
        folder: Path = volume.path(checkpoint)
        return str(folder)

    def record_of_dataset(self, name: str) -> DatasetRecord | None:
        return self._thread.call(lambda: self._thread.store.datasets.find(name))

    def dataset(self, name: str, volume: Volume) -> DatasetReader:
        """Return the rows of a dataset, with all segments fetched to this host. Raises
        RunCannotGoOn if the dataset does not exist."""
        record = self.record_of_dataset(name)
        if record is None:
            raise RunCannotGoOn(f"there is no dataset {name!r}: upload it first")
        reader = DatasetReader(volume, record)
        self._thread.call(reader.fetch)
        return reader
