"""Settings of a learner: settings of every process, and ranks. Must not import torch."""

import os
from typing import Literal

from pydantic import Field, PositiveInt

from services.runtime.gpus import GPUsUnknown, listed_gpus, shown_in
from services.settings import Settings

RENDEZVOUS = "HEADRACE_RENDEZVOUS"
"""Environment variable in which the supervisor names the file where the ranks of this start
meet."""
STARTS = "HEADRACE_STARTS"
"""Environment variable with the number of earlier starts of the ranks."""
EXIT_CRASH = 1
EXIT_POOL_TAKEN = 3


class LearnerSettings(Settings):
    """A learner on one host has a supervisor, which starts its ranks. A rank of an engine's job
    (torchrun, srun) is started by the engine, and `ranks` does not matter."""

    ranks: PositiveInt | Literal["gpu"] = Field(
        1,
        description="Ranks of a learner on one host, each with a GPU of its own where there are "
        "some. `gpu`: one for each GPU that this process sees. A learner on several hosts is "
        "started by torchrun or srun, which say how many ranks there are.",
    )

    def count_ranks(self) -> int:
        """Return the number of ranks on this host. `gpu` on a host without a visible GPU gives
        0."""
        if self.ranks != "gpu":
            return self.ranks
        names = os.environ.get("CUDA_VISIBLE_DEVICES")
        if names is not None:
            return len(shown_in(names))
        try:
            return len(listed_gpus())
        except GPUsUnknown:
            return 0
