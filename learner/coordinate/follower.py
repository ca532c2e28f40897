"""A rank other than 0 beside the coordinator: it gives its slices of what rank 0 writes.

Where every rank holds the whole state, rank 0 copies its own and there is nothing to do here. Else
each call here is one of all ranks, and stands at the same place of the loop as rank 0's.
"""

from typing import Any

from learner.coordinate.crash_limit import CrashLimit
from learner.distributed import Ranks
from learner.model.lora import base_on_host
from learner.model.parallel import is_sharded
from learner.persist.checkpoint import capture
from learner.persist.publisher import host_weights
from learner.state import TrainingState
from learner.store.commands import Command


class Follower:
    """The coordinator's counterpart on the other ranks, with its methods."""

    def __init__(self, ranks: Ranks, state: TrainingState) -> None:
        self._ranks, self._state = ranks, state
        self._sharded = is_sharded(state.loaded.model)

    def begin(self) -> None:
        """The frozen base of adapters, and the version that training starts from."""
        if self._sharded and self._state.loaded.lora:
            base_on_host(self._state.loaded, keep=False)
        self.publish()

    def publish(self) -> None:
        """The version that the batch has made."""
        if self._sharded:
            host_weights(self._state.loaded, self._state.progress.version, 0.0, keep=False)

    def checkpoint(self) -> None:
        """The training state, where rank 0 says that a checkpoint is due."""
        if self._sharded and self._ranks.broadcast(None):
            capture(self._state, keep=False)

    def report(self, *_: Any) -> None:
        """Rank 0 reports for all."""

    def end(self, command: Command, _: CrashLimit) -> str:
        """The last checkpoint. Returns the kind of `command`."""
        self.checkpoint()
        return command.kind

    def close(self) -> None:
        """No thread runs here."""
