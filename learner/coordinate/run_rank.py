"""Work that all ranks of a run do together. Every rank calls each method at the same place of the
training loop.

Rank 0 (`FirstRank`) decides, and does the work that needs only one rank. The other ranks take part
if the state is sharded: they contribute their slices to published versions and write their parts of
checkpoints. Otherwise rank 0 copies its own state, and the others do nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from learner.checkpoints.background_writer import PartWriter
from learner.checkpoints.captured import Captured, capture, part_of
from learner.coordinate.crash_limit import CrashLimit
from learner.distributed import Ranks
from learner.environment import RunEnvironment
from learner.metrics.rollout_rows import TrainedGroup
from learner.model.canary import CanaryPass
from learner.model.loading.lora import base_on_host
from learner.model.placement.offload import present
from learner.model.placement.parallel import is_sharded, replicate
from learner.persist.disk_retry import CannotWrite, Disk, DiskStatus, OtherRank
from learner.persist.rollout_parts import RolloutParts
from learner.publishing.versions import Version, Versions
from learner.slices import WHOLE
from learner.state import TrainingState
from learner.store.commands import Command
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.records import RunRecord
from services.runtime.logs import get_logger

log = get_logger(__name__)


class RunRank:
    """One rank's side of a run. This class is a rank other than 0, which decides nothing."""

    def __init__(
        self, config: RLConfig | SFTConfig, environment: RunEnvironment, state: TrainingState
    ) -> None:
        self._environment, self._state = environment, state
        self._ranks, self._store = environment.ranks, environment.store
        self._disk = Disk(environment.volume.root, self._disk_status, environment.stop)
        self._rollouts = self._open_rollouts(config)
        self._writer = self._open_writer()
        self._sharded = is_sharded(state.loaded.model)
        self._canary: CanaryPass | None = None
        self._versions: Versions | None = None
        """None if the run publishes no versions."""
        if isinstance(config, RLConfig):
            longest = config.rollout.vllm.max_model_len
            self._canary = CanaryPass(state.loaded, state.policy, longest)
            self._versions = Versions(state.loaded, self._ranks, config.rollout.weights)

    def begin(self) -> None:
        """Gather the frozen base of adapters and the version that training starts from. Rank 0 then
        starts the run."""
        loaded, base = self._state.loaded, None
        if self._sharded and loaded.lora:
            base = base_on_host(loaded, WHOLE if self._ranks.first else None)
        self._begin(base, self._taken())

    def await_command(self, crash_limit: CrashLimit) -> Command:
        """Return rank 0's next command on every rank. A rank that waits is idle: its death is not
        the run's fault."""
        crash_limit.idle()
        message = self._ranks.from_first(lambda: msgspec.msgpack.encode(self.next_command()))
        command = msgspec.msgpack.decode(message, type=Command)
        if command.kind == "train":
            crash_limit.busy(command.step)
        return command

    def next_command(self) -> Command:
        """Return the next command for all ranks. May take long. Rank 0 only."""
        raise NotImplementedError

    def requeue(self, step: int, unreadable: Mapping[int, str]) -> None:
        """Have unreadable groups of the batch of `step` sampled again. Rank 0 does."""

    def publish(self) -> None:
        self._publish(self._taken())

    def checkpoint(self) -> None:
        """Copy the training state to the host if rank 0 decides that a checkpoint is due."""
        if self._agreed(self._checkpoint_due):
            self._keep(self._copied())

    def keep_rollouts(self, groups: Sequence[TrainedGroup], tokens: float) -> None:
        """Keep this rank's answers of the trained batch. `tokens`: over all ranks."""
        if self._rollouts:
            self._rollouts.keep(self._state.progress.step, groups, tokens)

    def report(self, *_: Any, **__: Any) -> None:
        """Report a step. Rank 0 does."""

    def end(self, command: Command, crash_limit: CrashLimit) -> str:
        """Commit the steps that are still uncommitted. Returns the kind of command that ends the
        run."""
        if self._agreed(self._is_uncovered):
            crash_limit.busy(self._state.progress.step)
            self._finish(self._copied())
        if not self._ranks.first:
            # Rank 0 has waited.
            try:
                self._writer.wait()
            except CannotWrite as error:
                log.error("the run ends before its newest state is written", reason=str(error))
        return command.kind

    def close(self) -> None:
        """End the threads. They finish their current work, unless the disk cannot be written."""
        self._disk.abandon()
        self._writer.close()
        if self._rollouts:
            self._rollouts.close()

    # --- together -------------------------------------------------------------------------------

    def _taken(self) -> Version | None:
        """Copy the current version for publishing. Return None if the run publishes no versions, or
        if rank 0 alone copies them."""
        if self._versions is None or self._canary is None:
            return None
        if not (self._ranks.first or self._sharded):
            return None
        version, now = self._state.progress.version, time.time()
        return self._versions.take(version, now, self._canary())

    def _copied(self) -> Captured:
        # Memory may not hold two copies of the training state.
        self._writer.wait()
        return capture(self._state, part_of(self._state, self._ranks))

    def _agreed(self, decide: Callable[[], bool]) -> bool:
        """Return the result of `decide`, which rank 0 calls and which may take long. If the state
        is sharded, every rank gets the result and takes part. Otherwise only rank 0 does."""
        if self._sharded:
            return bool(self._ranks.from_first(lambda: b"1" if decide() else b""))
        if not self._ranks.first:
            return False
        with self._ranks.announcing():
            return decide()

    def _open_rollouts(self, config: RLConfig | SFTConfig) -> RolloutParts | None:
        """Open the parts of this rank's rollouts. Return None if the run keeps no rollouts, or if
        another rank has the same rows."""
        if not (isinstance(config, RLConfig) and config.rollout.keep_share and self._ranks.counts):
            return None
        root, tokenizer = self._disk.root, self._state.loaded.tokenizer
        return RolloutParts(config, self._store, root, self._ranks.rank, tokenizer)

    # --- different on rank 0 --------------------------------------------------------------------

    @property
    def _disk_status(self) -> DiskStatus:
        return OtherRank(self._store, self._ranks.rank)

    def _open_writer(self) -> PartWriter:
        return PartWriter(self._disk, self._ranks)

    def _begin(self, base: dict[str, torch.Tensor] | None, start: Version | None) -> None: ...

    def _publish(self, weights: Version | None) -> None: ...

    def _checkpoint_due(self) -> bool:
        return False

    def _is_uncovered(self) -> bool:
        return False

    def _keep(self, captured: Captured) -> None:
        """Have the copy written as a checkpoint during training."""
        self._writer.submit(captured)

    def _finish(self, captured: Captured) -> None:
        """Write the last checkpoint."""
        self._writer.submit(captured)


def take_over(ranks: Ranks, store: RunStore) -> RunRecord:
    """Take over the run (rank 0), for all ranks. Returns on every rank the run's record at that
    time. No earlier learner can change it after that."""

    def acquired() -> bytes:
        record = store.acquire()
        started = store.fencing_token, store.lineage.encode()
        return b"%d %b %b" % (*started, record.model_dump_json().encode())

    token, lineage, record = ranks.from_first(acquired).split(b" ", 2)
    store.fencing_token, store.lineage = int(token), lineage.decode()
    return RunRecord.model_validate_json(record)


def share_gradients(state: TrainingState, ranks: Ranks) -> None:
    """Have the backward passes of several ranks sum the gradients of unsharded weights."""
    state.policy = replicate(state.policy, ranks)
    if critic := state.critic:
        with present(critic.offloaded_weights, changed=False):
            critic.values = replicate(critic.values, ranks)
