"""Records kept in Redis and shown by the API: runs, datasets, workers."""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field


class RunState(StrEnum):
    """Life of a run. The last three are final."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """True where nothing will change any more."""
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)


class RunRecord(BaseModel):
    """One run as the store knows it."""

    id: str
    name: str
    pool: str
    kind: str = Field(description="`rl` or `midtrain`.")
    state: RunState
    reason: str = Field("", description="Why it is in this state, in words.")
    priority: int = 0
    config: dict[str, Any] = Field(description="The validated run config, defaults filled in.")
    resume_from: str | None = Field(
        None, description="The run whose checkpoint this one continues."
    )
    created: float = Field(description="Unix seconds.")
    started: float | None = None
    finished: float | None = None
    step: int = Field(0, description="Batches trained.")
    max_steps: int | None = None
    version: int = Field(0, description="Newest published policy version.")
    lineage: str = ""
    committed_step: int = Field(0, description="Step of the current checkpoint.")
    checkpoint: str | None = Field(
        None, description="Current checkpoint, relative to the data volume."
    )
    cancel_requested: bool = False
    summary: dict[str, float] = Field(
        default_factory=dict, description="Newest value of each metric."
    )


class DatasetSegment(BaseModel):
    """One immutable Arrow file of a dataset."""

    file: str = Field(description="Relative to the data volume.")
    rows: int
    bytes: int
    xxh3: str


class DatasetRecord(BaseModel):
    """A named list of rows; it only ever grows, so a row's index never changes meaning."""

    id: str
    name: str
    rows: int
    created: float
    segments: list[DatasetSegment]
    source: str = Field("", description="Where the first rows came from, e.g. the file name.")


class WorkerRecord(BaseModel):
    """A rollout worker's last heartbeat."""

    id: str
    pool: str
    host: str
    pid: int
    state: str = Field(
        description="`starting`, `idle`, `generating`, `waiting_admission`, `updating`, "
        "`evaluating`, `unhealthy`, `stopping`."
    )
    run: str | None = None
    version: int | None = Field(None, description="Policy version that is live in its vLLM.")
    lineage: str | None = None
    groups_in_flight: int = 0
    tokens_per_second: float = 0.0
    tokens_total: int = 0
    admission_wait_seconds: float = Field(
        0.0, description="Total time with a free slot and no admission, since it started."
    )
    update_seconds: float | None = Field(
        None, description="From the end of the optimizer step until its version was live here."
    )
    pause_seconds: float | None = Field(
        None, description="How long the last weight update paused generation."
    )
    restarts: int = Field(0, description="How often its vLLM was restarted.")
    error: str = Field("", description="The last thing that went wrong.")
    started: float = 0.0
    heartbeat: float = 0.0
