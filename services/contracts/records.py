"""Records kept in Redis and shown by the API: runs, datasets, workers."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from headrace.config_keys import POLICY, dataset_names, text_at
from services.contracts.config.rewards import RewardComponent
from services.contracts.devices import GPUDevice, GPULoad
from services.contracts.preview import Rendering
from services.contracts.run_edits import RunEdit

Tag = Annotated[str, Field(pattern=r"^[^\s,](?:[^\x00-\x1f,]{0,48}[^\s,])?$")]
"""A word or two to find things by: up to 50 characters, without commas."""
Tags = Annotated[list[Tag], Field(max_length=20)]
Notes = Annotated[str, Field(max_length=10_000)]
Role = Literal["read", "submit", "admin"]
Surface = Literal["all", "openai"]
Project = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""A project of OpenAI's API: its files, jobs and models are seen by its keys alone."""


class RunState(StrEnum):
    """Life of a run. The last three are final."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the run is over."""
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)

    @property
    def ending(self) -> bool:
        """Whether no more work is leased: the state is final, or becomes final next."""
        return self.final or self is RunState.CANCELLING


class RunSummary(BaseModel):
    """One run as lists show it: everything but its config and its metrics."""

    id: str = Field(description="8 hex digits.")
    name: str = Field(description="For people; several runs may share one.")
    pool: str = Field(description="The pool whose learner and workers work on it.")
    kind: str = Field(description="`rl` or `sft`.")
    model: str = Field(
        "",
        description="`model.path` of its config. Empty: a run from before summaries had it.",
        examples=["Qwen/Qwen3-0.6B"],
    )
    recipe: str | None = Field(
        None, description="The recipe that its config began with.", examples=["grpo"]
    )
    datasets: list[str] = Field(
        default_factory=list,
        description="The names of its datasets: to train on, to evaluate and to validate with.",
        examples=[["gsm8k"]],
    )
    state: RunState = Field(description="Its state.")
    phase: str = Field(
        "",
        description="What it does now, in words.",
        examples=["vLLM starts, 40 of about 110 s", "trains step 12 of 200"],
    )
    reason: str = Field("", description="Why it is in this state, in words.")
    paused_by: str = Field(
        "",
        description="Name of the key that asked for its pause. Its learner pauses after its "
        "present step. Empty: nobody has.",
    )
    tags: list[str] = Field(default_factory=list, description="Words to find it by.")
    notes: str = Field("", description="What people should know of it.")
    submitter: str = Field(
        "", description="Name of the key that submitted it. Empty: older than submitters."
    )
    project: str | None = Field(
        None, description="The project of OpenAI's API that it belongs to. Null: to none."
    )
    priority: int = Field(0, description="Higher goes first in its pool's queue.")
    queue_position: int | None = Field(
        None, description="Its place in its pool's queue, from 1; null: it is not queued."
    )
    resume_from: str | None = Field(
        None, description="The run whose checkpoint this one continues."
    )
    resume_step: int | None = Field(
        None, description="The step of that checkpoint. Null: it continues no checkpoint."
    )
    is_fork: bool = Field(
        False,
        description="Whether it was forked from `resume_from`, which was left as it was and may "
        "still train.",
    )
    chain: str | None = Field(None, description="The chain that it is a step of.")
    created: float = Field(description="Unix seconds.")
    started: float | None = Field(None, description="When it first ran, in Unix seconds.")
    finished: float | None = Field(None, description="When it was over, in Unix seconds.")
    step: int = Field(0, description="Batches trained.")
    max_steps: int | None = Field(None, description="Batches to train.")
    reward: float | None = Field(
        None, description="`reward/mean` of its newest step; null: it has none."
    )
    loss: float | None = Field(
        None, description="`train/loss` of the newest step of a supervised run; else null."
    )
    step_seconds: float | None = Field(
        None,
        description="Seconds from step to step, over the newest ten reports, with evaluations and "
        "checkpoints between them; null: too few steps.",
    )
    eta_seconds: float | None = Field(
        None,
        description="Seconds that the remaining steps take at `step_seconds`; null: not known, or "
        "the run does not train now.",
    )
    version: int = Field(0, description="Newest published policy version.")
    lineage: str = Field("", description="Lineage of the versions that its learner publishes now.")
    committed_step: int = Field(0, description="Step of the current checkpoint.")
    checkpoint: str | None = Field(
        None, description="Current checkpoint, relative to the data volume."
    )
    damage: str | None = Field(
        None, description="What of its record cannot be read, and why; null: all of it can be."
    )
    disk_bytes: int | None = Field(
        None,
        description="Size of its files on the data volume, at most half a minute old; null: not "
        "measured.",
    )


class RunRecord(RunSummary):
    """One run as the store knows it."""

    config: dict[str, Any] = Field(description="The validated run config, defaults filled in.")
    warnings: list[str] = Field(
        default_factory=list,
        description="Settings that are allowed but probably a mistake, and what was not checked, "
        "each with its key.",
    )
    from_datasets: dict[str, str] = Field(
        default_factory=dict,
        description="Keys that a dataset has set, with its name: `data.template`, `rewards`. The "
        "dataset was uploaded with a named mapping, and the submission itself does not say them.",
    )
    dataset_names: dict[str, str] = Field(
        default_factory=dict,
        description="The names of its datasets when it was submitted, by the keys of its config "
        "that have their ids: `data.dataset`. Empty: a run from before names were kept.",
    )
    preview: Rendering | None = Field(
        None,
        description="The first row of its dataset as its model will read it; null: a run from "
        "before there were previews.",
    )
    dataset_rows: list[int] = Field(
        default_factory=list,
        description="Of a mixture of prompts: the rows of each dataset that the run uses, in the "
        "order of its config. Empty: one dataset, of which it uses all rows, also new ones.",
    )
    metrics: dict[str, float] = Field(
        default_factory=dict, description="Newest value of each metric."
    )
    edits: list[RunEdit] = Field(
        default_factory=list,
        description="Values of its config that were changed since it was submitted, in their "
        "order. `config` has the newest ones.",
    )
    computation: dict[str, str] = Field(
        default_factory=dict,
        description="How its learner computes, and why, by part: `device`, `attention`, "
        "`shared_prompts`, `activations`, `compile`, `parallel`.",
    )

    @model_validator(mode="after")
    def _named(self) -> "RunRecord":
        """Take the names of model and datasets from the config."""
        self.model = self.model or text_at(self.config, POLICY) or ""
        self.datasets = self.datasets or names_of_datasets(self.config, self.dataset_names)
        return self


def names_of_datasets(config: Any, names: dict[str, str]) -> list[str]:
    """Return the names of the datasets in a run's config. `names`: those of datasets that the
    config names by id."""
    return list(dict.fromkeys((dataset_names(config) | names).values()))


@dataclass(frozen=True)
class Queue:
    """The queue of one pool: the active run, the waiting runs, and whether a learner serves
    them."""

    active: RunSummary | None
    first: list[str]
    """Ids of the first waiting runs, in the order in which they start."""
    positions: dict[str, int]
    """Places of the waiting runs that were asked about, from 0."""
    learner: bool
    """Whether a learner serves the pool."""


class DatasetSegment(BaseModel):
    """One immutable Arrow file of a dataset."""

    file: str = Field(description="Relative to the data volume.")
    rows: int = Field(description="Rows in it.")
    bytes: int = Field(description="Its size.")
    xxh3: str = Field(description="Its checksum (64 bit, hex).")


class DatasetDefaults(BaseModel):
    """How the rows of a dataset are asked and scored if a submission itself does not say."""

    template: str = Field("{prompt}", description="`data.template`.")
    rewards: list[RewardComponent] = Field(description="`rewards`: the dataset's own verifier.")


class DatasetRecord(BaseModel):
    """A named list of rows; it only ever grows, so a row's index never changes meaning."""

    id: str = Field(description="16 hex digits, from its name and its first rows.")
    name: str = Field(description="What runs call it; unique.")
    rows: int = Field(description="Rows it has now.")
    created: float = Field(description="Unix seconds.")
    segments: list[DatasetSegment] = Field(description="Its files, in the order of their rows.")
    source: str = Field("", description="Where the first rows came from, e.g. the file name.")
    defaults: DatasetDefaults | None = Field(
        None,
        description="How its rows are asked and scored if a submission itself names neither "
        "`data.template` nor `rewards`; null: submission or recipe have to say.",
    )
    damage: str | None = Field(
        None, description="What of its record cannot be read, and why; null: all of it can be."
    )


class HeldTask(BaseModel):
    """A task that a worker holds. It has durations instead of times, because the clocks of hosts
    may differ."""

    task: int = Field(description="Its position in the run's order.")
    stage: Literal["generating", "scoring"] = Field(description="What happens with it.")
    leased_seconds: float = Field(description="How long the worker has held it.")
    stage_seconds: float = Field(description="How long it has been in this stage.")


class ApiKeyRecord(BaseModel):
    """An API key, without the key."""

    id: str = Field(description="8 hex digits.")
    name: str = Field(description="For people: who or what uses it.")
    role: Role = Field(
        "admin",
        description="`read` sees everything and changes nothing. `submit` also uploads, submits, "
        "changes, cancels and deletes. `admin` also manages keys, and is what workers need.",
    )
    surface: Surface = Field(
        "all",
        description="`openai`: only `/openai/v1/` and the calls that ask a model. `all`: the API.",
    )
    project: Project | None = Field(
        None,
        description="It sees this project's files, jobs and fine-tuned models alone. Null: those "
        "of all projects.",
    )
    created: float = Field(description="Unix time.")


class PoolLoad(BaseModel):
    """The work of a pool's workers, by which an autoscaler decides how many there should be."""

    pool: str = Field(description="Its name.")
    run: str | None = Field(description="The id of the run that it works on.")
    queued: int = Field(description="Runs that wait for their turn.")
    workers: int = Field(description="Rollout workers with a heartbeat in the last 30 s.")
    groups_in_flight: int = Field(description="Groups that workers hold now.")
    groups_wanted: int = Field(
        description="Groups that admission allows workers to hold now; 0 without a run, at least 1 "
        "while an evaluation is open. Divided by the groups of one worker: the number of workers "
        "that are of use."
    )


ALIVE_SECONDS = 5.0
"""A worker with a heartbeat this recent is alive; heartbeats come every second."""
SILENT = "silent"
NOT_SERVING = (SILENT, "unhealthy", "stopping")
"""States in which a worker takes no calls, whatever version its vLLM has."""


class HostLoad(BaseModel):
    """How busy the cores are that a worker's vLLM computes on, and its host's memory."""

    cores: int = Field(description="Cores that its vLLM computes on.")
    idle_cores: float = Field(description="Of these, how many were idle in the last 10 s.")
    memory: int = Field(description="Bytes that the worker and its vLLM have in memory.")
    free_memory: int = Field(description="Bytes that are free on its host.")
    total_memory: int | None = Field(
        None, description="Bytes of memory that its host has in all; null: an older worker."
    )


class WorkerRecord(BaseModel):
    """A rollout worker's last heartbeat."""

    id: str = Field(description="Its name.")
    pool: str = Field(description="Which pool it belongs to.")
    evaluation_only: bool = Field(
        False, description="Whether it samples nothing to train on (`HEADRACE_EVALUATION_ONLY`)."
    )
    worker_class: str = Field(
        "",
        description="What kind of machine it runs on, in its operator's words, such as `spot` "
        "(`HEADRACE_WORKER_CLASS`).",
    )
    serving_only: bool = Field(
        False,
        description="Whether it only answers calls of finished runs (`HEADRACE_SERVING_ONLY`).",
    )
    host: str = Field(description="The machine it runs on.")
    pid: int = Field(description="Its process id there.")
    state: str = Field(
        description="`starting`, `idle`, `generating`, `waiting_admission`, `updating`, "
        "`sleeping` while the learner has its GPU, `evaluating`, `loading` and `serving` models "
        "of finished runs, `unhealthy`, `stopping`; `silent` after 5 s without a heartbeat."
    )
    episodes: list[str] = Field(
        default_factory=list, description="Episode types in addition to the built-in ones, by name."
    )
    tool_servers: list[str] = Field(
        default_factory=list,
        description="MCP servers that `rollout.episode.servers` may name, as its operator has set "
        "them.",
    )
    gpus: int | None = Field(
        None, description="GPUs that its vLLM may use; null if the driver cannot be asked."
    )
    devices: list[GPUDevice] = Field(
        default_factory=list, description="These GPUs, where the driver describes them."
    )
    gpu_loads: list[GPULoad] = Field(
        default_factory=list,
        description="How busy these GPUs are, at most 10 s old. Empty: the driver does not say.",
    )
    gpu_share: float | None = Field(
        None,
        description="Share of each GPU's memory for its vLLM where a run's config names none "
        "(`HEADRACE_VLLM_GPU_MEMORY_UTILIZATION`); null: it has none of its own.",
    )
    vllm_version: str | None = Field(None, description="The version of its vLLM.")
    run: str | None = Field(None, description="The run it works on.")
    models: list[str] = Field(
        default_factory=list,
        description="Models of finished runs that it serves now, as `RUN@STEP`.",
    )
    loading: str | None = Field(
        None, description="The model of a finished run that it loads now, as `RUN@STEP`."
    )
    version: int | None = Field(None, description="Policy version that is live in its vLLM.")
    lineage: str | None = Field(None, description="The lineage of that version.")
    files: list[str] = Field(
        default_factory=list,
        description="Weight files that it needs: of the version that it loads, and of the one "
        "before, in case loading fails.",
    )
    peer_url: str | None = Field(
        None, description="Where other hosts' workers fetch these files; null: it serves nobody."
    )
    starting_seconds: float | None = Field(
        None, description="How long its vLLM has been starting; null: it does not start."
    )
    usual_start_seconds: float | None = Field(
        None,
        description="How long the last start of this model's vLLM took on this host; null: it has "
        "not been started here with this model and these options.",
    )
    groups_in_flight: int = Field(0, description="Leases it holds.")
    scoring: int = Field(0, description="Of these, groups that the reward service works on.")
    evaluation_rows: int = Field(0, description="Rows of an evaluation that it holds.")
    policy_calls: int = Field(
        0, description="Calls of the policy as an endpoint that it answers now."
    )
    policy_answers: int = Field(
        0, description="Of such calls, those that it has answered in its run."
    )
    policy_tokens: int = Field(0, description="Tokens that it has sampled for them.")
    oldest: HeldTask | None = Field(
        None, description="The first in the run's order of the tasks that it holds."
    )
    tokens_per_second: float = Field(0.0, description="Tokens that its vLLM samples now.")
    tokens_total: int = Field(0, description="Tokens that its vLLM has sampled since it started.")
    admission_wait_seconds: float = Field(
        0.0, description="Time with a free slot and no admission, in its present run."
    )
    update_seconds: float | None = Field(
        None, description="From the end of the optimizer step until its version was live here."
    )
    pause_seconds: float | None = Field(
        None, description="How long the last weight update paused generation."
    )
    canary_gap: float | None = Field(
        None,
        description="By how many nats its vLLM's log-probabilities of the last version's fixed "
        "sequences differ from the learner's, on average.",
    )
    canary_seconds: float | None = Field(None, description="How long its vLLM took to score them.")
    restarts: int = Field(0, description="Restarts of it by `headrace up`, and of its vLLM by it.")
    host_load: HostLoad | None = Field(
        None, description="How busy its host is; null where its vLLM computes on a GPU."
    )
    error: str = Field("", description="The last error.")
    started: float = Field(0.0, description="When the process started, in Unix seconds.")
    heartbeat: float = Field(0.0, description="Time of this heartbeat, in Unix seconds.")

    def at(self, now: float, heartbeat: float) -> "WorkerRecord":
        """The record `now`, with the last heartbeat at `heartbeat` by the same clock: without a
        recent one the worker is silent, and its token rate 0."""
        if now - heartbeat < ALIVE_SECONDS:
            return self.model_copy(update={"heartbeat": heartbeat})
        silent = {"heartbeat": heartbeat, "state": SILENT, "tokens_per_second": 0.0}
        return self.model_copy(update=silent)

    def serves(self, run: str) -> bool:
        """Whether it takes calls for a version of this run's policy."""
        return self.run == run and self.version is not None and self.state not in NOT_SERVING
