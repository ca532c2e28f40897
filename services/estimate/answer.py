"""The parts of an estimate, in bytes."""

from pydantic import BaseModel, Field


class Need(BaseModel):
    """The bytes of one part of an installation: its need and its memory."""

    memory: int | None = Field(
        description="Bytes that are free for it, on a host with those that learner and workers "
        "have there now; null: not known."
    )
    needed: int = Field(description="Bytes that it takes at its peak.")
    parts: dict[str, int] = Field(description="These by what they are for.")
    fits: bool | None = Field(description="Null: the memory is not known.")
    advice: list[str] = Field([], description="What to change if it does not fit.")


class ProcessNeed(Need):
    """The memory that one kind of process needs: on each GPU, or on a host without GPUs."""

    gpu: str | None = Field(
        description="The smallest of the GPUs; null: CPUs do the work, or nothing is known."
    )
    on_cpu: bool = Field(False, description="Whether CPUs do the work, in their host's memory.")
    count: int = Field(description="Processes that share the work: ranks, or GPUs of one vLLM.")
    most: int | None = Field(
        description="Bytes that it could have if nothing else ran; null: not known."
    )
    how: str = Field("", description="In words: how the work is divided.")


class HostNeed(Need):
    """The memory that a run on GPUs needs on the learner's host."""

    @property
    def most(self) -> int | None:
        return self.memory


class DiskNeed(Need):
    """The files that a run keeps on the data volume once it has all its checkpoints: `checkpoints`,
    `versions` that workers load, and `groups` that are too large for Redis."""


class Estimate(BaseModel):
    """The needs of a run, by arithmetic: within about 10 %."""

    @property
    def advice(self) -> list[str]:
        needs = (self.learner, self.rollout, self.host, self.disk)
        return [sentence for need in needs if need is not None for sentence in need.advice]

    learner: ProcessNeed = Field(description="Of the learner.")
    rollout: ProcessNeed | None = Field(description="Of a worker; null: the run has no rollout.")
    host: HostNeed | None = Field(
        None, description="Of the learner's host; null: the learner computes on CPUs."
    )
    disk: DiskNeed = Field(description="Of the data volume.")
    fits: bool | None = Field(
        description="Whether the memory is enough; null where some is not known."
    )
    notes: list[str] = Field(description="What is not known, and what was assumed.")
