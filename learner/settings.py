"""Settings of a learner: settings of every process, ranks and nodes. Must not import torch."""

import os
from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from services.runtime.gpus import GPUsUnknown, listed_gpus, shown_in
from services.settings import Settings

RENDEZVOUS = "HEADRACE_RENDEZVOUS"
"""Environment variable in which the supervisor names the meeting place of the ranks of this start:
a file, or `redis:ID`."""
STARTS = "HEADRACE_STARTS"
"""Environment variable with the number of earlier starts of the ranks."""
EXIT_CRASH = 1
EXIT_POOL_TAKEN = 3


class LearnerSettings(Settings):
    """A learner has one supervisor on each of its nodes, which starts the ranks there."""

    ranks: PositiveInt | Literal["gpu"] = Field(
        1,
        description="Ranks of the learner on this host, each with a GPU of its own where there are "
        "some. `gpu`: one for each GPU that this process sees.",
    )
    learner_nodes: PositiveInt = Field(
        1,
        description="Hosts of the learner. Where there are several, they meet through Redis, and "
        "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the network interface between them.",
    )
    learner_node: int = Field(
        0, ge=0, description="The number of this host among the learner's, from 0."
    )

    @model_validator(mode="after")
    def _node_is_one_of_them(self) -> Self:
        if self.learner_node >= self.learner_nodes:
            raise ValueError(
                f"learner_node is {self.learner_node}, and learner_nodes is {self.learner_nodes}: "
                f"it must be between 0 and {self.learner_nodes - 1}"
            )
        return self

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
