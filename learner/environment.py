"""The surroundings of a run on one rank: the ranks, the store, the data volume, the way to end."""

import threading
from dataclasses import dataclass
from typing import Literal

from learner.distributed import Ranks
from learner.store.run_store import RunStore
from services.volume import Volume


@dataclass(frozen=True)
class RunEnvironment:
    ranks: Ranks
    store: RunStore
    volume: Volume
    stop: threading.Event
    """Set if this process should end."""

    @property
    def should_end(self) -> bool:
        return self.stop.is_set() or self.store.cancelled()

    @property
    def early_end(self) -> Literal["cancel", "yield"]:
        """The kind of command that ends the run before its work is done. Raises Fenced."""
        return "cancel" if self.store.cancelled() else "yield"
