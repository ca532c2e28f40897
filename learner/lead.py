"""Rank 0's duties around a step: publish, make checkpoints, report, and end in good order.

Only copies are made on the training loop's time; the disk is on the time of two threads. Neither
may outlive the run, and what goes wrong on them ends it. A run ends when its newest state is
committed, never before.
"""

import os
import threading
import time
from pathlib import Path

import msgspec

from learner.checkpoint import capture
from learner.checkpointer import Checkpointer
from learner.conductor import Conductor
from learner.disk import CannotWrite, Disk
from learner.link import RunLink
from learner.metrics import Spent
from learner.models import LoadedModel, save_description
from learner.orders import Order
from learner.publish import Publisher, snapshot
from learner.trainee import Trainee
from services.contracts.config import RLConfig
from services.contracts.weights import MODEL_FILES, WeightFile
from services.logs import get_logger
from services.volume import Volume, checksum

log = get_logger(__name__)


class Lead:
    """What rank 0 does for one run, beside training like every other rank."""

    def __init__(
        self,
        config: RLConfig,
        max_steps: int,
        ranks: int,
        link: RunLink,
        volume: Volume,
        trainee: Trainee,
        stop: threading.Event,
    ) -> None:
        self._trainee, self._link = trainee, link
        self._folder = volume.path(f"runs/{link.run}")
        self._disk = Disk(volume.root, link, stop)
        lineage = trainee.state.lineages[-1][0]
        self._publisher = Publisher(
            volume.root, link.run, lineage, self._disk, link.publish, link.needed_files
        )
        keep = config.training.keep_checkpoints
        self._checkpointer = Checkpointer(volume.root, keep, self._disk, link)
        self._conductor = Conductor(
            config, max_steps, ranks, link, trainee.state, stop, self._disk, self._check
        )

    def begin(self) -> None:
        """Publish what training starts from; then let the run run."""
        try:
            name = f"runs/{self._link.run}/model"
            self._disk.insist(
                name, lambda: export_description(self._trainee.loaded, self._folder / "model")
            )
            self._publish()
            self._publisher.wait()
            self._conductor.open(self._folder)
        except CannotWrite as error:
            self._give_up(error)

    def next_order(self) -> Order:
        """What all ranks do next. Waits for groups as long as it takes."""
        return self._conductor.next_order()

    def after_step(
        self, metrics: dict[str, float], outcomes: dict[str, float], began: float, trained: float
    ) -> None:
        """Publish the new version, hand over a checkpoint where one is due, report. `began` and
        `trained`: when the step's training began and ended, on the monotonic clock."""
        conductor, state = self._conductor, self._trainee.state
        try:
            self._publish()
            published = time.monotonic()
            if conductor.pace.due(state.step, self._checkpointer.busy):
                self._hand_over()
            now = time.monotonic()
            spent = Spent(
                total=conductor.waited + now - began,
                waiting=conductor.waited,
                training=trained - began,
                publishing=published - trained,
                checkpointing=now - published,
            )
            conductor.after_step(state, metrics, outcomes, spent)
        except CannotWrite as error:
            self._give_up(error)

    def end(self, order: Order) -> str:
        """Evaluate and commit what is still open. Returns the kind of order that the run ends
        with: `order`'s, unless its last state could not be written."""
        conductor, state = self._conductor, self._trainee.state
        if conductor.ending is not None:
            return conductor.ending.kind
        try:
            self._publisher.wait()
            if order.kind == "finish":
                conductor.final_evaluation(state)
            if state.step > self._checkpointer.covers:
                self._hand_over()
            self._checkpointer.wait()
        except CannotWrite as error:
            return self._give_up(error)
        return order.kind

    def close(self) -> None:
        """End the threads. What they have begun they finish, unless the disk takes nothing."""
        self._disk.abandon()
        self._publisher.close()
        self._checkpointer.close()

    def _publish(self) -> None:
        state = self._trainee.state
        self._publisher.submit(snapshot(self._trainee.loaded, state.version, time.time()))

    def _hand_over(self) -> None:
        # Waited for first: two copies of the training state may be more than memory holds.
        self._checkpointer.wait()
        trainee = self._trainee
        self._checkpointer.submit(capture(trainee.loaded, trainee.optimizers, trainee.state))
        self._conductor.pace.handed_over()

    def _give_up(self, error: CannotWrite) -> str:
        log.error("the run ends before its newest state is written", reason=str(error))
        return self._conductor.give_up().kind

    def _check(self) -> None:
        self._publisher.check()
        self._checkpointer.check()


def export_description(loaded: LoadedModel, folder: Path) -> None:
    """All of the model but its weights, and the list of its files for hosts without the volume;
    once per run, because a worker may be reading it."""
    if folder.exists():
        return
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    save_description(loaded, beside)
    files = [
        WeightFile(str(path.relative_to(beside)), path.stat().st_size, checksum(path))
        for path in sorted(beside.rglob("*"))
        if path.is_file() and path.name != MODEL_FILES
    ]
    (beside / MODEL_FILES).write_bytes(msgspec.json.encode(files))
    beside.rename(folder)
