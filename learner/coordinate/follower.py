"""A rank other than 0 beside the coordinator: it gives its slices of what rank 0 publishes, and
writes its part of checkpoints.

Where every rank holds the whole state, rank 0 copies its own and there is nothing to do here. Else
each call here is one of all ranks, and stands at the same place of the loop as rank 0's.
"""

import threading
from typing import Any

from learner.coordinate.crash_limit import CrashLimit
from learner.distributed import Ranks
from learner.model.canary import CanaryPass
from learner.model.loading.lora import base_on_host
from learner.model.placement.parallel import is_sharded
from learner.persist.checkpoint_parts import capture, part_of
from learner.persist.checkpoint_writer import OtherRank, PartWriter
from learner.persist.disk_retry import CannotWrite, Disk
from learner.persist.versions import Versions
from learner.state import TrainingState
from learner.store.commands import Command
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig, SFTConfig
from services.runtime.logs import get_logger
from services.volume import Volume

log = get_logger(__name__)


class Follower:
    """The coordinator's counterpart on the other ranks, with its methods."""

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
        """None: no version is published."""
        if isinstance(config, RLConfig):
            longest = config.rollout.vllm.max_model_len
            self._canary = CanaryPass(state.loaded, state.policy, longest)
            self._versions = Versions(state.loaded, ranks, config.rollout.weights)
        self._disk = Disk(volume.root, OtherRank(store, ranks.rank), stop)
        self._writer = PartWriter(volume.root, self._disk, ranks)

    def begin(self) -> None:
        """The frozen base of adapters, and the version that training starts from, if it is
        published."""
        if self._sharded and self._state.loaded.lora:
            base_on_host(self._state.loaded, part=None)
        self.publish()

    def requeue(self, *_: Any) -> None:
        """Rank 0 does, for all."""

    def publish(self) -> None:
        """The version that the batch has made."""
        if self._sharded and self._canary and self._versions:
            self._canary()
            self._versions.take(self._state.progress.version, 0.0)

    def checkpoint(self) -> None:
        """The training state, where rank 0 says that a checkpoint is due."""
        if self._sharded and self._ranks.broadcast(None):
            # Rank 0 has made an earlier one current; two copies may be more than memory holds.
            self._writer.wait()
            self._writer.submit(capture(self._state, part_of(self._state, self._ranks)))

    def report(self, *_: Any) -> None:
        """Rank 0 reports for all."""

    def end(self, command: Command, _: CrashLimit) -> str:
        """The last checkpoint. Returns the kind of `command`."""
        self.checkpoint()
        try:
            self._writer.wait()
        except CannotWrite as error:
            log.error("the run ends before its newest state is written", reason=str(error))
        return command.kind

    def close(self) -> None:
        """End the thread. It finishes what it has begun, unless the disk takes nothing."""
        self._disk.abandon()
        self._writer.close()
