"""Rank 0's duties around a step: publish, make checkpoints, report, and end in good order.

Only copies are made on the training loop's time; the disk is on the time of two threads. Neither
may outlive the run, and what goes wrong on them ends it. A run ends when its newest state is
committed, never before.
"""

import os
import shutil
import threading
import time
from pathlib import Path

import msgspec

from learner.adapters import save_base
from learner.checkpoint import Captured, capture
from learner.checkpointer import Checkpointer
from learner.conductor import Conductor
from learner.crashes import Crashes
from learner.disk import CannotWrite, Disk
from learner.distributed import Ranks
from learner.flops import work
from learner.link import RunLink
from learner.metrics import Spent
from learner.metrics_file import MetricsFile, SamplesFile
from learner.models import LoadedModel, endless, save_description
from learner.orders import Order
from learner.publish import Publisher, snapshot
from learner.samples import Picked, described
from learner.trainee import Trainee
from services.contracts.config import RLConfig
from services.contracts.weights import MODEL_FILES, WeightFile
from services.logs import get_logger
from services.volume import Volume, checksum, fsync, opened_by_umask

log = get_logger(__name__)


class Lead:
    """What rank 0 does for one run, beside training like every other rank."""

    def __init__(
        self,
        config: RLConfig,
        max_steps: int,
        ranks: Ranks,
        link: RunLink,
        volume: Volume,
        trainee: Trainee,
        stop: threading.Event,
        crashes: Crashes,
    ) -> None:
        self._trainee, self._link, self._crashes = trainee, link, crashes
        self._sampling, self._algorithm = config.sampling, config.algorithm
        self._folder = volume.path(f"runs/{link.run}")
        self._disk = Disk(volume.root, link, stop)
        lineage = trainee.state.lineages[-1][0]
        self._publisher = Publisher(
            volume.root, link.run, lineage, self._disk, link.publish, link.needed_files
        )
        file = MetricsFile(volume.root, link.run, self._disk)
        self._samples = SamplesFile(volume.root, link.run, self._disk)
        keep = config.training.keep_checkpoints
        self._checkpointer = Checkpointer(
            volume.root, keep, self._disk, link, (file, self._samples)
        )
        self._conductor = Conductor(
            config,
            max_steps,
            ranks.size,
            link,
            trainee.state,
            stop,
            file,
            work(
                trainee.loaded.model,
                config.algorithm,
                ranks,
                trainee.critic.model if trainee.critic else None,
            ),
            self._check,
            self._mend,
        )

    def begin(self) -> Order:
        """Publish what training starts from, and let the run run. Returns what all ranks do first,
        which may take as long as groups take to come."""
        try:
            name = f"runs/{self._link.run}/model"
            self._disk.insist(
                name, lambda: export_description(self._trainee.loaded, self._folder / "model")
            )
            self._publish()
            self._publisher.wait()
            self._samples.begin(self._trainee.state.step)
            self._conductor.open()
            if sentence := endless(self._trainee.loaded, self._sampling):
                self._conductor.tell(sentence)
        except CannotWrite as error:
            self._give_up(error)
        self._crashes.resting()
        return self._conductor.next_order()

    def after_step(
        self,
        metrics: dict[str, float],
        outcomes: dict[str, float],
        picked: list[Picked],
        began: float,
        trained: float,
    ) -> Order:
        """Publish the new version, report, hand over a checkpoint where one is due. `picked`: what
        of the batch is to be shown. `began` and `trained`: when the step's training began and
        ended, on the monotonic clock. Returns what all ranks do next, which may take as long as
        groups take to come."""
        conductor, state = self._conductor, self._trainee.state
        try:
            self._publish()
            published = time.monotonic()
            due = conductor.pace.due(state.step, self._checkpointer.busy)
            captured = self._capture() if due else None
            now = time.monotonic()
            spent = Spent(
                total=conductor.waited + now - began,
                waiting=conductor.waited,
                training=trained - began,
                publishing=published - trained,
                checkpointing=now - published,
            )
            conductor.after_step(state, metrics, outcomes, spent)
            rows = described(picked, state.step, self._algorithm, self._trainee.loaded.tokenizer)
            self._samples.add(*rows)
            # Not before its rows are written, which else a crash after the commit would leave out.
            if captured:
                self._hand_over(captured)
        except CannotWrite as error:
            self._give_up(error)
        self._crashes.resting()
        return conductor.next_order()

    def end(self, order: Order) -> str:
        """Evaluate and commit what is still open. Returns the kind of order that the run ends
        with: `order`'s, unless its last state could not be written, or it was to end before its
        last evaluation was done."""
        conductor, state = self._conductor, self._trainee.state
        if conductor.ending is not None:
            return conductor.ending.kind
        kind: str = order.kind
        try:
            self._publisher.wait()
            if kind == "finish":
                kind = conductor.final_evaluation(state)
            if state.step > self._checkpointer.covers:
                self._crashes.working(state.step)
                self._hand_over(self._capture())
            self._checkpointer.wait()
        except CannotWrite as error:
            return self._give_up(error)
        return kind

    def close(self) -> None:
        """End the threads. What they have begun they finish, unless the disk takes nothing."""
        self._disk.abandon()
        self._publisher.close()
        self._checkpointer.close()

    def _publish(self) -> None:
        state = self._trainee.state
        self._publisher.submit(snapshot(self._trainee.loaded, state.version, time.time()))

    def _capture(self) -> Captured:
        # Waited for first: two copies of the training state may be more than memory holds.
        self._checkpointer.wait()
        trainee = self._trainee
        copies = {name: copy.weights for name, copy in trainee.copies.moving.items()}
        return capture(trainee.loaded, trainee.optimizers, trainee.state, trainee.critic, copies)

    def _hand_over(self, captured: Captured) -> None:
        self._checkpointer.submit(captured)
        self._conductor.pace.handed_over()

    def _give_up(self, error: CannotWrite) -> str:
        log.error("the run ends before its newest state is written", reason=str(error))
        return self._conductor.give_up().kind

    def _check(self) -> None:
        self._publisher.check()
        self._checkpointer.check()

    def _mend(self) -> str:
        if damage := self._publisher.damage():
            self._publish()
        return damage


def export_description(loaded: LoadedModel, folder: Path) -> None:
    """All of the model but its weights, and the list of its files for hosts without the volume;
    once per run, because a worker may be reading it. Beside adapters the weights belong to it, too:
    they never change."""
    if folder.exists():
        return
    for unfinished in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(unfinished)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    save_description(loaded, beside)
    if loaded.lora:
        save_base(loaded, beside)
    files = [
        WeightFile(str(path.relative_to(beside)), path.stat().st_size, checksum(path))
        for path in sorted(beside.rglob("*"))
        if path.is_file() and path.name != MODEL_FILES
    ]
    (beside / MODEL_FILES).write_bytes(msgspec.json.encode(files))
    for path in (*beside.rglob("*"), beside):
        if path.is_file():
            opened_by_umask(path)
        fsync(path)
    beside.rename(folder)
    fsync(folder.parent)
