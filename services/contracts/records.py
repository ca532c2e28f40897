"""Records kept in Redis and shown by the API: runs, datasets, workers."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Literal

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

    id: str = Field(description="8 hex digits.")
    name: str = Field(description="For people; several runs may share one.")
    pool: str = Field(description="Whose learner and workers work on it.")
    kind: str = Field(description="`rl` or `midtrain`.")
    state: RunState = Field(description="Where it is in its life.")
    reason: str = Field("", description="Why it is in this state, in words.")
    priority: int = Field(0, description="Higher goes first in its pool's queue.")
    config: dict[str, Any] = Field(description="The validated run config, defaults filled in.")
    warnings: list[str] = Field(
        default_factory=list,
        description="What the config allows and is probably not meant, each with its key.",
    )
    resume_from: str | None = Field(
        None, description="The run whose checkpoint this one continues."
    )
    created: float = Field(description="Unix seconds.")
    started: float | None = Field(None, description="When it first ran, in Unix seconds.")
    finished: float | None = Field(None, description="When it was over, in Unix seconds.")
    step: int = Field(0, description="Batches trained.")
    max_steps: int | None = Field(None, description="Batches it is to train.")
    version: int = Field(0, description="Newest published policy version.")
    lineage: str = Field("", description="What its learner's present start publishes under.")
    committed_step: int = Field(0, description="Step of the current checkpoint.")
    checkpoint: str | None = Field(
        None, description="Current checkpoint, relative to the data volume."
    )
    cancel_requested: bool = Field(False, description="It is to end at its next step.")
    summary: dict[str, float] = Field(
        default_factory=dict, description="Newest value of each metric."
    )


def several_called(reference: str, id: str, runs: Iterable[tuple[str, str]]) -> str | None:
    """Why `reference`, which was taken for the run `id`, is no name for what cannot be undone and
    may be asked for twice: of `runs`, (id, name) newest first, several have it. None where it
    means one run."""
    same = [one for one, name in runs if name == reference]
    if id == reference or len(same) < 2:
        return None
    return f"{len(same)} runs are called {reference!r}: say which by its id: {', '.join(same[:5])}"


class DatasetSegment(BaseModel):
    """One immutable Arrow file of a dataset."""

    file: str = Field(description="Relative to the data volume.")
    rows: int = Field(description="Rows in it.")
    bytes: int = Field(description="Its size.")
    xxh3: str = Field(description="Its checksum (64 bit, hex).")


class DatasetRecord(BaseModel):
    """A named list of rows; it only ever grows, so a row's index never changes meaning."""

    id: str = Field(description="16 hex digits, from its name and its first rows.")
    name: str = Field(description="What runs call it; unique.")
    rows: int = Field(description="Rows it has now.")
    created: float = Field(description="Unix seconds.")
    segments: list[DatasetSegment] = Field(description="Its files, in the order of their rows.")
    source: str = Field("", description="Where the first rows came from, e.g. the file name.")


class HeldDraw(BaseModel):
    """A draw that a worker holds. Durations, not times: hosts need not agree on the clock."""

    draw: int = Field(description="Its position in the run's order.")
    stage: Literal["generating", "scoring"] = Field(description="What is being done with it.")
    leased_seconds: float = Field(description="How long the worker has held it.")
    stage_seconds: float = Field(description="How long it has been in this stage.")


class ApiKeyRecord(BaseModel):
    """An API key, without the key."""

    id: str = Field(description="8 hex digits.")
    name: str = Field(description="For people: who or what uses it.")
    created: float = Field(description="Unix time.")


class PoolLoad(BaseModel):
    """How much a pool's workers have to do; what decides how many there should be."""

    pool: str = Field(description="Its name.")
    run: str | None = Field(description="The id of the run that it works on.")
    queued: int = Field(description="Runs that wait for their turn.")
    workers: int = Field(description="Rollout workers with a heartbeat in the last 30 s.")
    groups_in_flight: int = Field(description="Groups that workers hold now.")
    groups_wanted: int = Field(
        description="Groups that workers may hold now, by admission: those that they hold and "
        "those that nobody has taken; 0 without a run. Divided by the groups that one worker "
        "holds, this is how many workers are of use. At least 1 while an evaluation is open."
    )


ALIVE_SECONDS = 5.0
"""A worker that was heard of since counts as alive; heartbeats come every second."""
SILENT = "silent"


class WorkerRecord(BaseModel):
    """A rollout worker's last heartbeat."""

    id: str = Field(description="Its name.")
    pool: str = Field(description="Which pool it belongs to.")
    host: str = Field(description="The machine it runs on.")
    pid: int = Field(description="Its process id there.")
    state: str = Field(
        description="`starting`, `idle`, `generating`, `waiting_admission`, `updating`, "
        "`evaluating`, `unhealthy`, `stopping`; `silent` where it has not been heard of for 5 s."
    )
    episodes: list[str] = Field(
        default_factory=list, description="Episode types beside the built-in ones, by name."
    )
    run: str | None = Field(None, description="The run it works on.")
    version: int | None = Field(None, description="Policy version that is live in its vLLM.")
    lineage: str | None = Field(None, description="The lineage of that version.")
    files: list[str] = Field(
        default_factory=list,
        description="Weight files that it needs: of the version that it loads, and of the one that "
        "it goes back to where that fails.",
    )
    groups_in_flight: int = Field(0, description="Leases it holds.")
    scoring: int = Field(0, description="Of these, groups that the reward service works on.")
    evaluation_rows: int = Field(0, description="Rows of an evaluation that it holds.")
    oldest: HeldDraw | None = Field(
        None, description="Of the draws that it holds, the first in the run's order."
    )
    tokens_per_second: float = Field(0.0, description="What its vLLM samples now.")
    tokens_total: int = Field(0, description="What its vLLM has sampled since it started.")
    admission_wait_seconds: float = Field(
        0.0, description="Time with a free slot and no admission, in its present run."
    )
    update_seconds: float | None = Field(
        None, description="From the end of the optimizer step until its version was live here."
    )
    pause_seconds: float | None = Field(
        None, description="How long the last weight update paused generation."
    )
    restarts: int = Field(
        0, description="How often it was started again by `headrace up`, or its vLLM by it."
    )
    error: str = Field("", description="The last thing that went wrong.")
    started: float = Field(0.0, description="When the process started, in Unix seconds.")
    heartbeat: float = Field(0.0, description="When this was said, in Unix seconds.")

    def at(self, now: float, heartbeat: float) -> "WorkerRecord":
        """This, said at `heartbeat`, as it stands `now` by the same clock: one that is not heard of
        any more is silent, and samples nothing that is known of."""
        if now - heartbeat < ALIVE_SECONDS:
            return self.model_copy(update={"heartbeat": heartbeat})
        silent = {"heartbeat": heartbeat, "state": SILENT, "tokens_per_second": 0.0}
        return self.model_copy(update=silent)
