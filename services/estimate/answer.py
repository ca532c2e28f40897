"""What an estimate says. Bytes and seconds."""

from pydantic import BaseModel, Field


class GPUNeed(BaseModel):
    """What a run needs of each GPU of one kind of process."""

    gpu: str | None = Field(description="The smallest of them; null: it is not known.")
    count: int = Field(description="GPUs that share the work: ranks, or GPUs of one vLLM server.")
    memory: int | None = Field(description="Bytes there are for it; null: they are not known.")
    needed: int = Field(description="Bytes that it takes at its peak.")
    parts: dict[str, int] = Field(description="These by what they are for.")
    fits: bool | None = Field(description="Null: the GPU is not known.")
    how: str = Field("", description="In words: how the work is divided.")


class HostNeed(BaseModel):
    """What a run needs of the memory of the learner's host."""

    memory: int | None = Field(
        description="Bytes that were free when the learner started; null: not known."
    )
    needed: int = Field(description="Bytes that it takes at its peak.")
    parts: dict[str, int] = Field(description="These by what they are for.")
    fits: bool | None = Field(description="Null: the host is not known.")


class StepTime(BaseModel):
    """Seconds of a step in which every completion is as long as it may be: an upper bound."""

    training: float | None = Field(description="Null: the GPU's speed is not known.")
    sampling: float | None = Field(description="By the workers that there are; null: none known.")


class Estimate(BaseModel):
    """What a run needs, by arithmetic: within about 10 % for memory, a factor of 2 for time."""

    learner: GPUNeed = Field(description="Of the GPU of each rank.")
    rollout: GPUNeed | None = Field(description="Of a worker's GPUs; null: the run has no rollout.")
    host: HostNeed | None = Field(
        None, description="Of the learner's host; null: the learner computes on CPUs."
    )
    step: StepTime = Field(description="How long one takes.")
    disk: int = Field(
        description="Bytes on the data volume: of checkpoints, published weights, and finished "
        "groups that are too large for Redis."
    )
    fits: bool | None = Field(description="Null where some GPU is not known.")
    advice: list[str] = Field(description="What to change where something does not fit.")
    notes: list[str] = Field(description="What is not known, and what was assumed.")
