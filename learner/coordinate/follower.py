"""A rank other than 0 next to the coordinator: it contributes its slices to published versions, and
writes its part of checkpoints.

If every rank holds the whole state, rank 0 copies its own state and this rank does nothing.
Otherwise each call here is a collective call, at the same place of the training loop as rank 0's.
"""

import threading
from typing import Any

from learner.checkpoints.background_writer import PartWriter
from learner.checkpoints.captured import capture, part_of
from learner.coordinate.crash_limit import CrashLimit
from learner.distributed import Ranks
from learner.model.canary import CanaryPass
from learner.model.loading.lora import base_on_host
from learner.model.placement.parallel import is_sharded
from learner.persist.disk_retry import CannotWrite, Disk, OtherRank
from learner.publishing.versions import Versions
from learner.state import TrainingState
from learner.store.commands import Command
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig, SFTConfig
from services.runtime.logs import get_logger
from services.volume import Volume

log = get_logger(__name__)


class RankFollower:
    """The coordinator's counterpart on the other ranks, with the same methods."""

    def __init__(
        self,
        config: RLConfig | SFTConfig,
        ranks: Ranks,
        store: RunStore,
        volume: Volume,
        state: TrainingState,
        stop: threading.Event,
    ) -> None:
        self._ranks, self._state = ranks, state
        self._sharded = is_sharded(state.loaded.model)
        self._canary: CanaryPass | None = None
        self._versions: Versions | None = None
        """None if no version is published."""
        if isinstance(config, RLConfig):
            longest = config.rollout.vllm.max_model_len
            self._canary = CanaryPass(state.loaded, state.policy, longest)
            self._versions = Versions(state.loaded, ranks, config.rollout.weights)
        self._disk = Disk(volume.root, OtherRank(store, ranks.rank), stop)
        self._writer = PartWriter(volume.root, self._disk, ranks)

    def begin(self) -> None:
        """Contribute to the frozen base of adapters, and to the version that training starts from
        if it is published."""
        if self._sharded and self._state.loaded.lora:
            base_on_host(self._state.loaded, part=None)
        self.publish()

    def requeue(self, *_: Any) -> None:
        """Do nothing: rank 0 requeues for all ranks."""

    def publish(self) -> None:
        """Contribute to the version that the batch has made."""
        if self._sharded and self._canary and self._versions:
            self._canary()
            self._versions.take(self._state.progress.version, 0.0)

    def checkpoint(self) -> None:
        """Copy this rank's part of the training state if rank 0 says that a checkpoint is due."""
        if self._sharded and self._ranks.broadcast(None):
            # Rank 0 has already waited for an earlier checkpoint: memory may not hold two copies.
            self._writer.wait()
            self._writer.submit(capture(self._state, part_of(self._state, self._ranks)))

    def report(self, *_: Any) -> None:
        """Do nothing: rank 0 reports for all ranks."""

    def end(self, command: Command, _: CrashLimit) -> str:
        """Contribute to the last checkpoint. Returns the kind of `command`."""
        self.checkpoint()
        try:
            self._writer.wait()
        except CannotWrite as error:
            log.error("the run ends before its newest state is written", reason=str(error))
        return command.kind

    def close(self) -> None:
        """End the thread. It finishes its current work, unless the disk cannot be written."""
        self._disk.abandon()
        self._writer.close()
