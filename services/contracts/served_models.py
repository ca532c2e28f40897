"""Models of fixed weights that workers serve on demand: checkpoints of runs. The gateway asks for
one, and a worker loads it. Pure."""

import msgspec

from services.contracts.policy_calls import Failure


class ModelDemand(msgspec.Struct, frozen=True):
    """A checkpoint that a call waits for."""

    run: str
    step: int
    directory: str
    """The checkpoint, relative to the data volume."""
    replica: int = 0
    """How many workers serve it already: the demand is for another worker."""

    @property
    def model(self) -> str:
        """`RUN@STEP`."""
        return f"{self.run}@{self.step}"

    @property
    def name(self) -> str:
        """The model, and which of its replicas."""
        return f"{self.model}#{self.replica}"


class DemandState(msgspec.Struct, frozen=True):
    """The progress of a demand."""

    worker: str | None = None
    """The worker that has taken it."""
    failure: Failure | None = None
    """Why a worker could not load it, for a minute."""


def queue_of(worker: str, step: int) -> str:
    """The name of a worker's queue of calls for one checkpoint of a run."""
    return f"{worker}@{step}"
