"""What the gateway's API takes and answers. `make client` makes this file (deploy/client_code.py)."""
# ruff: noqa: E501

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from headrace.model import Model


class AnswerToScore(Model):
    """An answer, and the row or the reference that it is scored by."""

    completion: str
    """The answer to score."""
    dataset: str | None = None
    """The dataset of the row: a name or an id."""
    row: int = 0
    """The row of the dataset."""
    prompt: str | list[dict[str, Any]] | None = None
    """The prompt. Default: the row's."""
    answer: Any = None
    """The reference. Default: the row's."""
    params: dict[str, Any] = {}
    """The verifier's parameters."""


class AnsweredRow(Model):
    """A row of a held-out set with its answers."""

    row: int
    """Index of the dataset row."""
    category: str | None = None
    """Its value in the column `category`."""
    prompt: str
    """What was asked, as text."""
    reference: Any = None
    """The reference answer of the row."""
    samples: list[AnsweredSample]
    """Empty where the row could not be answered."""
    error: str = ""
    """Why it could not."""


class AnsweredSample(Model):
    """One completion of a row."""

    text: str
    """The answer, without special tokens."""
    tokens: int
    """Its length."""
    truncated: bool
    """Whether it reached its token limit before it ended."""
    reward: float | None
    """Null: a verifier broke."""
    status: str
    """How the first verifier's scoring ended: `correct`, `wrong`."""
    components: dict[str, float | None]
    """Each component of the reward, before its weight."""
    reasons: dict[str, str] = {}
    """What each verifier says of the answer, by component: what it compared."""


class Answers(Model):
    """A page of the answered rows of an evaluation, in the dataset's order."""

    evaluation: EvaluationRecord
    """Which evaluation."""
    rows: list[AnsweredRow]
    """Each with its answers."""
    total: int
    """Rows that match. While the evaluation is open: of those that are stored, which is a few seconds later than answered."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class ApiKeyRecord(Model):
    """An API key, without the key."""

    id: str
    """8 hex digits."""
    name: str
    """For people: who or what uses it."""
    role: Literal["read", "submit", "admin"] = "admin"
    """`read` sees everything and changes nothing. `submit` also uploads, submits, changes, cancels and deletes. `admin` also manages keys, and is what workers need."""
    created: float
    """Unix time."""


class Audit(Model):
    """The audit of a run. Every task is in exactly one of `trained`, `dropped` and `in_flight`, or
    it is lost."""

    run: str
    """The run's id."""
    tasks: int
    """Tasks leased so far, by this run and those it continues."""
    trained: int
    """Tasks that the current checkpoint was trained on."""
    dropped: dict[str, int]
    """Tasks that ended untrained, by reason."""
    in_flight: int
    """Tasks that have not ended: waiting to be leased again, held by a worker, or finished and not yet in a checkpoint."""
    lost: int
    """Tasks that neither ended nor can be trained any more. 0."""
    duplicated: int
    """Times a task is somewhere it was before or also is. 0."""
    max_staleness_seen: int
    """Most versions between a trained group's oldest token and the version that trained on it, as of when its batch was planned."""
    max_staleness_allowed: int | None
    """What `rollout.max_staleness` of the run allows; null for a supervised run."""
    too_stale: int
    """Trained groups that were older than their run allows. 0."""
    unknown: list[str] = []
    """What this audit cannot know, because Redis has lost writes that it had acknowledged. Empty, unless a disk failed or somebody changed Redis' files."""
    problems: list[str]
    """The first lost and duplicated tasks, and stale batches, in words."""


class CancelledRun(Model):
    """A run after the request to cancel it."""

    id: str
    """8 hex digits."""
    name: str
    """For people; several runs may share one."""
    pool: str
    """The pool whose learner and workers work on it."""
    kind: str
    """`rl` or `sft`."""
    model: str = ""
    """`model.path` of its config. Empty: a run from before summaries had it."""
    recipe: str | None = None
    """The recipe that its config began with."""
    datasets: list[str] = []
    """The names of its datasets: to train on, to evaluate and to validate with."""
    state: RunState
    """Its state."""
    phase: str = ""
    """What it does now, in words."""
    reason: str = ""
    """Why it is in this state, in words."""
    paused_by: str = ""
    """Name of the key that asked for its pause. Its learner pauses after its present step. Empty: nobody has."""
    tags: list[str] = []
    """Words to find it by."""
    notes: str = ""
    """What people should know of it."""
    submitter: str = ""
    """Name of the key that submitted it. Empty: older than submitters."""
    priority: int = 0
    """Higher goes first in its pool's queue."""
    queue_position: int | None = None
    """Its place in its pool's queue, from 1; null: it is not queued."""
    resume_from: str | None = None
    """The run whose checkpoint this one continues."""
    resume_step: int | None = None
    """The step of that checkpoint. Null: it continues no checkpoint."""
    is_fork: bool = False
    """Whether it was forked from `resume_from`, which was left as it was and may still train."""
    chain: str | None = None
    """The chain that it is a step of."""
    created: float
    """Unix seconds."""
    started: float | None = None
    """When it first ran, in Unix seconds."""
    finished: float | None = None
    """When it was over, in Unix seconds."""
    step: int = 0
    """Batches trained."""
    max_steps: int | None = None
    """Batches to train."""
    reward: float | None = None
    """`reward/mean` of its newest step; null: it has none."""
    loss: float | None = None
    """`train/loss` of the newest step of a supervised run; else null."""
    step_seconds: float | None = None
    """Seconds from step to step, over the newest ten reports, with evaluations and checkpoints between them; null: too few steps."""
    eta_seconds: float | None = None
    """Seconds that the remaining steps take at `step_seconds`; null: not known, or the run does not train now."""
    version: int = 0
    """Newest published policy version."""
    lineage: str = ""
    """Lineage of the versions that its learner publishes now."""
    committed_step: int = 0
    """Step of the current checkpoint."""
    checkpoint: str | None = None
    """Current checkpoint, relative to the data volume."""
    damage: str | None = None
    """What of its record cannot be read, and why; null: all of it can be."""
    disk_bytes: int | None = None
    """Size of its files on the data volume, at most half a minute old; null: not measured."""
    config: dict[str, Any]
    """The validated run config, defaults filled in."""
    warnings: list[str] = []
    """Settings that are allowed but probably a mistake, and what was not checked, each with its key."""
    from_datasets: dict[str, str] = {}
    """Keys that a dataset has set, with its name: `data.template`, `rewards`. The dataset was uploaded with a named mapping, and the submission itself does not say them."""
    dataset_names: dict[str, str] = {}
    """The names of its datasets when it was submitted, by the keys of its config that have their ids: `data.dataset`. Empty: a run from before names were kept."""
    preview: Rendering | None = None
    """The first row of its dataset as its model will read it; null: a run from before there were previews."""
    dataset_rows: list[int] = []
    """Of a mixture of prompts: the rows of each dataset that the run uses, in the order of its config. Empty: one dataset, of which it uses all rows, also new ones."""
    metrics: dict[str, float] = {}
    """Newest value of each metric."""
    edits: list[RunEdit] = []
    """Values of its config that were changed since it was submitted, in their order. `config` has the newest ones."""
    computation: dict[str, str] = {}
    """How its learner computes, and why, by part: `device`, `attention`, `shared_prompts`, `activations`, `compile`, `parallel`."""
    is_released: bool
    """Whether no learner works on it any more. Until then its learner may still train a step, and write a checkpoint."""


class ChainDryRun(Model):
    """The resolved chain and its needs. Nothing is queued."""

    name: str
    """For people."""
    steps: list[StepDryRun]
    """In their order."""


class ChainList(Model):
    """A page of chains, newest first."""

    chains: list[ChainView]
    """With the states of their steps."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class ChainSubmission(Model):
    """The body of `POST /v1/chains`."""

    name: str = "chain"
    """For people. Its runs are called NAME-STEP."""
    note: str = ""
    """What its reader should know; it stands at the beginning of the report."""
    pool: str = "default"
    """The learner and the workers that are to work on its runs."""
    priority: int = 0
    """Higher goes first."""
    tags: list[str] = []
    """Words to find its runs by."""
    steps: list[StepSubmission]
    """Runs, one after the other."""


class ChainView(Model):
    """One chain as the API shows it."""

    id: str
    """`chain-` and 8 hex digits."""
    name: str
    """For people; several chains may share one."""
    note: str
    """What its reader should know."""
    pool: str
    """The pool that works on its runs."""
    state: ChainState
    """Its state."""
    reason: str
    """Why it is in this state, in words."""
    created: float
    """Unix seconds."""
    finished: float | None
    """When it was over, in Unix seconds."""
    at: int
    """The step that it works on, or ended with, counted from 0."""
    steps: list[StepView]
    """In their order."""
    warnings: list[str] = []
    """Of its configs, each with its step and its key; only in the answer to a submission."""
    from_datasets: dict[str, dict[str, str]] = {}
    """As of a run, by step; only in the answer to a submission."""
    previews: dict[str, Rendering] = {}
    """The first row of each step, rendered; only in the answer to a submission."""


class Changed(Model):
    """A row on which the two differ: the share of its answers that are correct, or mean reward."""

    row: int
    """Index of the dataset row."""
    value: float
    """The value of this evaluation."""
    other: float
    """The value of the other evaluation."""


class ChangedRuns(Model):
    """The data of a `runs` message."""

    runs: list[RunSummary]
    """The runs that have changed, as lists show them."""
    deleted: list[str]
    """Ids of runs that were deleted."""


class ChangedWorkers(Model):
    """The data of a `workers` message."""

    workers: list[WorkerRecord]
    """All workers, as `GET /v1/workers` lists them."""


class ChatRequest(Model):
    """A request of OpenAI's chat completions."""

    model: Any = None
    """Ignored: there is one."""
    stream: Any = None
    """Whether the answer comes as server-sent events."""
    stop: Any = None
    """A text, or up to 4, at which the answer ends."""
    seed: Any = None
    """Fixes the random numbers."""
    max_tokens: Any = None
    """Longest answer; also `max_completion_tokens`."""
    temperature: Any = None
    """That of the run, as are `top_p` and `top_k`."""
    response_format: Any = None
    """`json_object` or `json_schema`, in runs with `sampling.top_k`."""
    messages: Any = None
    """The conversation so far, and new messages."""
    tools: Any = None
    """Functions that the policy may call."""


class Checkpoint(Model):
    """A checkpoint of a run: a model's folder, and what training needs to go on."""

    step: int
    """The step that it was made after."""
    directory: str
    """Relative to the data volume."""
    bytes: int
    """Size of its files."""
    created: float
    """When it was written, in Unix seconds."""
    current: bool
    """Whether the run goes on from it."""
    pinned: bool
    """Whether it stays as long as the run does."""


class CheckpointList(Model):
    """A page of the checkpoints of a run, the newest step first."""

    checkpoints: list[Checkpoint]
    """Those on the data volume now."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class ColumnMapping(Model):
    """The source's columns by their role. None: guess the column by well-known names."""

    prompt: str | list[str] | None = None
    """The column that is the prompt, or a path like `extra.question`. The texts of several columns
are joined by blank lines; a row may leave out some of them."""
    answer: str | list[str] | None = None
    """The column that is the answer, or a path like `reward_model.ground_truth`; of several the
answer is an object of them. The prompt's own column, if that holds chats: the last turn of
each chat."""
    keep: list[str] | None = None
    """Other columns that rows keep for verifiers; null: all of them."""


class Comparison(Model):
    """One evaluation against another, on the rows that both have."""

    metric: Literal["accuracy", "reward"]
    """The compared quantity: `reward` if verifiers only rate answers."""
    rows: int
    """Rows that both have."""
    value: float
    """The mean of this evaluation on these rows."""
    other: float
    """The mean of the other evaluation on these rows."""
    difference: float
    """`value` minus `other`."""
    low: float
    """Lower end of the difference's interval at 95 %: Newcombe's with one verdict a row, else a
bootstrap."""
    high: float
    """Upper end of the interval."""
    test: Literal["mcnemar", "sign_flip"]
    """`mcnemar` (exact): one answer a row. `sign_flip`: a permutation test on the rows."""
    p: float
    """The probability of a difference at least as large by chance."""
    changed: list[Changed]
    """The rows that differ, sorted by the size of the difference, then by this evaluation's
advantage."""


class CompletionsRequest(Model):
    """A request of OpenAI's completions."""

    model: Any = None
    """Ignored: there is one."""
    stream: Any = None
    """Whether the answer comes as server-sent events."""
    stop: Any = None
    """A text, or up to 4, at which the answer ends."""
    seed: Any = None
    """Fixes the random numbers."""
    max_tokens: Any = None
    """Longest answer; also `max_completion_tokens`."""
    temperature: Any = None
    """That of the run, as are `top_p` and `top_k`."""
    response_format: Any = None
    """`json_object` or `json_schema`, in runs with `sampling.top_k`."""
    prompt: Any = None
    """A text, or a list of token ids."""


class DatasetDefaults(Model):
    """How the rows of a dataset are asked and scored if a submission itself does not say."""

    template: str = "{prompt}"
    """`data.template`."""
    rewards: list[RewardComponent]
    """`rewards`: the dataset's own verifier."""


class DatasetList(Model):
    """A page of datasets, by name."""

    datasets: list[DatasetRecord]
    """Each with its segments."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class DatasetPreview(Model):
    """Some rows."""

    rows: list[PreviewRow]
    """In their order."""
    total: int
    """Rows of the dataset."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class DatasetRecord(Model):
    """A named list of rows; it only ever grows, so a row's index never changes meaning."""

    id: str
    """16 hex digits, from its name and its first rows."""
    name: str
    """What runs call it; unique."""
    rows: int
    """Rows it has now."""
    created: float
    """Unix seconds."""
    segments: list[DatasetSegment]
    """Its files, in the order of their rows."""
    source: str = ""
    """Where the first rows came from, e.g. the file name."""
    defaults: DatasetDefaults | None = None
    """How its rows are asked and scored if a submission itself names neither `data.template` nor `rewards`; null: submission or recipe have to say."""
    damage: str | None = None
    """What of its record cannot be read, and why; null: all of it can be."""


class DatasetSegment(Model):
    """One immutable Arrow file of a dataset."""

    file: str
    """Relative to the data volume."""
    rows: int
    """Rows in it."""
    bytes: int
    """Its size."""
    xxh3: str
    """Its checksum (64 bit, hex)."""


class DatasetShare(Model):
    """Rows that one dataset of a mixture contributes to an epoch."""

    name: str
    """What the run's metrics call it."""
    rows: int
    """Rows that the run trains on."""
    per_epoch: int
    """Rows of an epoch that are its."""
    share: float
    """The same as a share of the epoch."""


class DiskNeed(Model):
    """The files that a run keeps on the data volume once it has all its checkpoints: `checkpoints`,
    `versions` that workers load, and `groups` that are too large for Redis."""

    memory: int | None
    """Bytes that are free for it, on a host with those that learner and workers have there now; null: not known."""
    needed: int
    """Bytes that it takes at its peak."""
    parts: dict[str, int]
    """These by what they are for."""
    fits: bool | None
    """Null: the memory is not known."""
    advice: list[str] = []
    """What to change if it does not fit."""


class DryRun(Model):
    """The resolved submission and its needs. Nothing is queued."""

    config: dict[str, Any]
    """The run's config, defaults filled in."""
    max_steps: int | None
    """Batches that it trains."""
    warnings: list[str]
    """As of a run."""
    from_datasets: dict[str, str]
    """As of a run: what a dataset has set."""
    preview: Rendering | None
    """As of a run: its first row as the model reads it."""
    estimate: Estimate | None
    """Null where the gateway cannot tell: the model's folder is not here, or its config.json names no widths."""
    mixture: list[DatasetShare]
    """Of a mixture of prompts: what an epoch takes of each dataset. Empty: there is one dataset, or the run is supervised."""
    refusals: list[str]
    """Why the submission would be refused: it cannot fit. Empty: it would be queued."""


class EndAnswer(Model):
    """The outcome of the session."""

    ended: bool
    """True."""
    turns: int
    """That it had. Without any it is not trained."""


class Estimate(Model):
    """The needs of a run, by arithmetic: within about 10 %."""

    learner: ProcessNeed
    """Of the learner."""
    rollout: ProcessNeed | None
    """Of a worker; null: the run has no rollout."""
    host: HostNeed | None = None
    """Of the learner's host; null: the learner computes on CPUs."""
    disk: DiskNeed
    """Of the data volume."""
    fits: bool | None
    """Whether the memory is enough; null where some is not known."""
    notes: list[str]
    """What is not known, and what was assumed."""


class EvaluationComparison(Model):
    """One evaluation against another, row by row."""

    evaluation: EvaluationRecord
    """This one."""
    against: EvaluationRecord
    """The other one."""
    comparison: Comparison
    """Means, their difference with its interval at 95 %, a paired test, and the rows that changed, the largest differences first."""
    better: int
    """Rows on which this one is better."""
    worse: int
    """Rows on which the other one is better."""
    differ: list[str]
    """Options in which the two differ besides the model: then the difference is not the model's alone."""


class EvaluationRecord(Model):
    """An evaluation as the API shows it."""

    id: str
    """Unique in its run."""
    run: str
    """The run's id."""
    name: str
    """What metrics call the held-out set."""
    dataset: str
    """The dataset's name."""
    dataset_id: str | None = None
    """The dataset's id: another one may have its name since. Null: not known."""
    step: int
    """The step after which it was due."""
    version: str
    """The version that answers, as LINEAGE:NUMBER."""
    samples: int
    """Completions per row."""
    temperature: float | None = None
    """Their temperature. Null: from before it was noted."""
    rows: int
    """Rows to answer."""
    answered: int = 0
    """Rows that have their answers."""
    state: Literal["waiting", "open", "done", "failed", "cancelled"]
    """`waiting` for another one, `open`, `done`, `failed`, or `cancelled` with the run."""
    reason: str = ""
    """Why it failed."""
    asked: float
    """Unix seconds."""
    finished: float | None = None
    """Unix seconds."""
    metrics: dict[str, float] = {}
    """Once it is done, by the names of docs/metrics.md."""
    categories: dict[str, dict[str, float]] = {}
    """The same for each category."""


class EvaluationSubmission(Model):
    """The body of `POST /v1/evaluations`."""

    model: str
    """A run (id, name) for what it made, `RUN@STEP` for its checkpoint of a step; a folder, or a hub name (org/name)."""
    dataset: str
    """Name or id."""
    samples: int | None = None
    """Answers of each row. Default: 1."""
    rows: int | None = None
    """Only the first ones. Default: all."""
    temperature: float | None = None
    """Default: 0 (greedy) for one answer a row, else 1."""
    max_tokens: int | None = None
    """Longest answer. Default: 512."""
    category: str | None = None
    """A column by whose values results are also given."""
    verifier: str | None = None
    """What scores the answers, where neither the dataset nor the run that made the model says so, or in place of that."""
    like: str | None = None
    """Another evaluation, whose options hold where this one has none."""
    config: dict[str, Any] = {}
    """Laid over the config that this makes, key by key."""
    name: str | None = None
    """For people. Default: made of the model and the dataset."""
    pool: str = "default"
    """Whose workers answer. The evaluation waits in the pool's queue."""
    priority: int = 0
    """Higher goes first."""


class Flow(Model):
    """How many tasks are where, now."""

    returned: int = 0
    """Released, not leased again yet."""
    held: int = 0
    """With workers."""
    lapsed: int = 0
    """Of these, those whose lease has lapsed."""
    waiting: int = 0
    """Finished groups that no batch has taken."""
    planned: int = 0
    """Groups of batches that are not trained yet."""
    trained: int = 0
    """Trained groups that no checkpoint covers yet."""
    filtered: int = 0
    """Groups that were filtered while those of the present batch were finished. Their tasks have ended."""


class Fork(Model):
    """The body of `POST /v1/runs/RUN/fork`: the differences to RUN."""

    step: int | None = None
    """The step of a kept checkpoint. Default: the newest checkpoint."""
    name: str | None = None
    """For people. Default: RUN's name with `-fork`."""
    config: dict[str, Any] = {}
    """Changes of the config, laid over RUN's key by key."""
    pool: str | None = None
    """The learner and the workers that are to work on it. Default: those of RUN, so that the fork waits until RUN has ended."""
    priority: int = 0
    """Higher goes first."""
    tags: list[str] | None = None
    """Words to find it by. Default: RUN's."""
    notes: str | None = None
    """What people should know of it. Default: RUN's."""


class GPUDevice(Model):
    """One GPU."""

    uuid: str
    """The driver's name of it, e.g. `GPU-5a3e…`."""
    name: str
    """What it is, e.g. `NVIDIA H100 80GB HBM3`."""
    memory: int
    """Bytes."""


class GPULoad(Model):
    """How busy a GPU was when its worker last asked the driver."""

    uuid: str
    """As in `devices`."""
    used: int
    """Bytes of its memory that all processes take."""
    busy: float | None
    """Share of the last second in which it computed; null: not known."""


class Gate(Model):
    """A condition on another component of the reward."""

    component: str
    """Name of an earlier reward."""
    at_least: float
    """Its verifier's reward, before clip and weight, must be at least this."""


class Health(Model):
    """The process answers."""

    status: Literal["ok"] = "ok"
    """Always this: else the answer is an error."""


class HeldTask(Model):
    """A task that a worker holds. It has durations instead of times, because the clocks of hosts
    may differ."""

    task: int
    """Its position in the run's order."""
    stage: Literal["generating", "scoring"]
    """What happens with it."""
    leased_seconds: float
    """How long the worker has held it."""
    stage_seconds: float
    """How long it has been in this stage."""


class HostLoad(Model):
    """How busy the cores are that a worker's vLLM computes on, and its host's memory."""

    cores: int
    """Cores that its vLLM computes on."""
    idle_cores: float
    """Of these, how many were idle in the last 10 s."""
    memory: int
    """Bytes that the worker and its vLLM have in memory."""
    free_memory: int
    """Bytes that are free on its host."""
    total_memory: int | None = None
    """Bytes of memory that its host has in all; null: an older worker."""


class HostNeed(Model):
    """The memory that a run on GPUs needs on the learner's host."""

    memory: int | None
    """Bytes that are free for it, on a host with those that learner and workers have there now; null: not known."""
    needed: int
    """Bytes that it takes at its peak."""
    parts: dict[str, int]
    """These by what they are for."""
    fits: bool | None
    """Null: the memory is not known."""
    advice: list[str] = []
    """What to change if it does not fit."""


class JsonSchema(Model):
    """A JSON Schema (draft 2020-12)."""


class KeyList(Model):
    """A page of the keys that are accepted besides the first, oldest first."""

    keys: list[ApiKeyRecord]
    """Their names; never the keys."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class LearnerHold(Model):
    """The process that is the pool's learner."""

    host: str
    """The machine it runs on."""
    pid: int | None
    """The process id of rank 0 there."""
    held_seconds: float | None
    """How long it has been the pool's learner."""
    prolonged_seconds_ago: float
    """When it last prolonged its lock; it does so every 2 s, and loses it after 10."""


class LeasedGroup(Model):
    """A dataset row, and a session for each of the group's completions."""

    attempt: str
    """The lease."""
    task: int
    """The task's position in the run's order."""
    row: int
    """Index of the dataset row; with a prompt of the client's own, of the row whose place it takes."""
    prompt: str | list[dict[str, Any]]
    """Its prompt, with the run's `data.template` and `data.system`."""
    answer: Any
    """Its reference answer."""
    columns: dict[str, Any]
    """Its other columns by name."""
    idle_seconds: float
    """The sessions are lost when no call of any of them comes for so long."""
    sessions: list[LeasedSession]
    """To be played in any order, or at once."""


class LeasedSession(Model):
    """One session, for one episode of an agent."""

    id: str
    """Its name."""
    base_url: str
    """What an OpenAI client takes as its base URL."""
    key: str
    """What it takes as its key. It permits this session's calls, and ends with it."""


class LiveTraffic(Model):
    """The sessions of a run with `data.source: sessions`."""

    open: int
    """Open now."""
    waiting: int
    """Ended, and without a reward."""
    ready: int
    """With a reward, and not handed in."""
    opened: int
    """Opened so far."""
    discarded: int
    """Of these, those that are not trained: without a reward."""


class LogLine(Model):
    """A line of a log."""

    time: float
    """When it was written, in Unix seconds."""
    process: str
    """Its process: `learner` (the supervisor of the ranks), `learner/RANK`, `rollout/WORKER`, `vllm/WORKER`, `gateway/HOST` or `reward/HOST`."""
    host: str
    """The host of the process."""
    level: Literal["debug", "info", "warning", "error"]
    """How much it matters."""
    text: str
    """The message and its details, of at most 4,000 characters; a traceback is on further lines. Secrets are masked."""
    run: str | None = None
    """The run that the process worked on, if it said so."""
    id: str
    """Orders lines by when they arrived."""


class LogPage(Model):
    """A page of a log."""

    logs: list[LogLine]
    """Oldest first."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""
    later: str
    """To follow the log, send this as `cursor` after a moment: lines that come later stand behind it."""


class Login(Model):
    """The key that a browser logs in with."""

    token: str
    """To be opened as `/#login=TOKEN`."""
    seconds: int
    """How long it works, once."""


class MadeKey(Model):
    """A new key. Only this answer ever shows it."""

    id: str
    """8 hex digits."""
    name: str
    """For people: who or what uses it."""
    role: Literal["read", "submit", "admin"] = "admin"
    """`read` sees everything and changes nothing. `submit` also uploads, submits, changes, cancels and deletes. `admin` also manages keys, and is what workers need."""
    created: float
    """Unix time."""
    key: str
    """To be sent as `Authorization: Bearer KEY`."""


class MadeVerifier(Model):
    """A version of a verifier that has been added."""

    name: str
    """What an item's `verifier` takes."""
    version: int
    """NAME@VERSION names this version for ever."""
    object: str
    """The class or function."""
    description: str
    """In words of the file."""
    tests: list[TestResult]
    """Tests in the file: all have passed."""


class ModelEvaluation(Model):
    """An evaluation of a model: its run and its progress."""

    run: RunSummary
    """Its run, of zero steps; its id names the evaluation."""
    model: str
    """What is evaluated, as `model.path`."""
    evaluation: EvaluationRecord | None
    """Its progress, and once it is done its figures. Null: it has not begun."""


class ModelEvaluations(Model):
    """A page of evaluations of models, newest first."""

    evaluations: list[ModelEvaluation]
    """Each with its progress or figures."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class NewKey(Model):
    """The name and the role of a new key."""

    name: str
    """For people: who or what will use it."""
    role: Literal["read", "submit", "admin"] = "admin"
    """`read`: sees everything, changes nothing. `submit`: also uploads, submits, changes and deletes. `admin`: also manages keys, and serves workers."""


class NewSession(Model):
    """A conversation that begins."""

    prompt_key: str = ""
    """What kind of prompt it is: its reward is compared with those of the same key (advantage `running_mean`). Empty: with all."""
    name: str = ""
    """With it the request may be sent again: it returns the same session, with a new key, and 410 once that is over."""


class NewVerifier(Model):
    """A Python file with a verifier: a class, or a plain function."""

    file: str
    """The file's name, for errors."""
    source: str
    """The file's text."""
    object: str | None = None
    """The class or function in it. Default: the only one."""
    name: str | None = None
    """The verifier's name. Default: its own, or the file's."""


class NewestValue(Model):
    """A metric's newest value."""

    name: str
    """The metric, as `names` of `GET /v1/series` takes it."""
    step: int
    """The step that the value is of."""
    value: float | None
    """Exact; null: it was not finite."""
    count: int
    """Finite values so far."""


class OldestTask(Model):
    """The task that has been in flight longest, by its position in the run's order."""

    task: int
    """Its position in the run's order."""
    place: Literal["returned", "generating", "scoring", "waiting", "planned", "trained"]
    """Where it is: released and not leased again (`returned`), with a worker (`generating`, `scoring`), finished and `waiting` for a batch, `planned` for one, or `trained` and waiting for the checkpoint."""
    worker: str | None = None
    """Who holds it, or who finished it."""
    step: int | None = None
    """The step it is planned for."""
    lease_seconds_left: float | None = None
    """Until its lease lapses, if it is not renewed. Below 0: it has lapsed."""
    failures: dict[str, int] = {}
    """Attempts at it that failed, by cause."""
    seconds: float | None = None
    """Since it was leased, or, once finished, since its group arrived."""


class OpenAIAnswer(Model):
    """An answer as OpenAI's API gives it."""

    id: str
    """Its name."""
    object: str
    """`chat.completion` or `text_completion`."""
    created: int
    """Unix time."""
    model: str
    """The run."""
    choices: list[dict[str, Any]]
    """One."""
    usage: dict[str, int]
    """Tokens of prompt and answer."""


class OpenAIError(Model):
    """An error in the format of OpenAI's API."""

    message: str
    """What went wrong, and the way out."""
    type: str
    """`invalid_request_error` or `server_error`."""
    param: str | None
    """What of the request is at fault."""
    code: str | None
    """The kind of error, for programs."""


class OpenAIErrorDocument(Model):
    """An error of a session's route."""

    error: OpenAIError
    """What is wrong."""


class OpenAIModels(Model):
    """The models of a session."""

    object: str
    """`list`."""
    data: list[dict[str, Any]]
    """One: the run's policy."""


class OpenEvaluation(Model):
    """An evaluation that is not finished."""

    id: str
    """Its id."""
    name: str
    """What metrics call the held-out set."""
    step: int
    """The step after which it was due."""
    version: str
    """The version that answers."""
    rows: int
    """Rows to answer."""
    answered: int
    """Rows that have an answer."""
    held: int
    """Rows that workers work on."""
    workers: list[str]
    """Workers that take part."""
    waiting: int
    """Evaluations that wait for this one."""


class OpenedSession(Model):
    """A session of an application."""

    id: str
    """Its name."""
    base_url: str
    """What an OpenAI client takes as its base URL."""
    key: str
    """What it takes as its key. It permits this session's calls, and ends with it."""
    idle_seconds: float
    """It ends by itself when no call comes for so long."""
    reward_deadline: float
    """Seconds after its end by which its reward has to come."""


class OwnPrompt(Model):
    """A prompt that is in no dataset."""

    prompt: str | list[dict[str, Any]]
    """A text, or messages. A text goes into the run's `data.template`."""
    answer: Any = None
    """The reference, for the run's verifiers, if the client gives no reward."""
    columns: dict[str, Any] = {}
    """What verifiers read besides, by name."""
    name: str = ""
    """With it the request may be sent again: it returns the same group, with new keys, and 410 once that has ended. Known for an hour after it was last asked for; `headrace samples` shows it."""


class PartScore(Model):
    """The score of one part of a completion."""

    end: int
    """Where it ends: characters (Unicode code points) of the completion."""
    score: float
    """What it earned, or the score of the completion up to there, depending on `dense` of the run's reward."""


class PolicyChatRequest(Model):
    """A request of OpenAI's chat completions, to a run's policy."""

    model: Any = None
    """`RUN` or `RUN@latest` for the newest version that a worker serves, `RUN@STEP` for the version after so many steps, while a worker serves it. RUN is an id, the beginning of one, or a name."""
    stream: Any = None
    """Whether the answer comes as server-sent events."""
    stop: Any = None
    """A text, or up to 4, at which the answer ends."""
    seed: Any = None
    """Fixes the random numbers."""
    max_tokens: Any = None
    """Longest answer; also `max_completion_tokens`."""
    temperature: Any = None
    """Also `top_p`, `top_k`, `min_p` and penalties. Default: those that the run samples with."""
    response_format: Any = None
    """`json_object` or `json_schema`, in runs with `sampling.top_k`."""
    messages: Any = None
    """The conversation so far, and new messages."""
    tools: Any = None
    """Functions that the policy may call."""


class PolicyCompletionsRequest(Model):
    """A request of OpenAI's completions, to a run's policy."""

    model: Any = None
    """`RUN` or `RUN@latest` for the newest version that a worker serves, `RUN@STEP` for the version after so many steps, while a worker serves it. RUN is an id, the beginning of one, or a name."""
    stream: Any = None
    """Whether the answer comes as server-sent events."""
    stop: Any = None
    """A text, or up to 4, at which the answer ends."""
    seed: Any = None
    """Fixes the random numbers."""
    max_tokens: Any = None
    """Longest answer; also `max_completion_tokens`."""
    temperature: Any = None
    """Also `top_p`, `top_k`, `min_p` and penalties. Default: those that the run samples with."""
    response_format: Any = None
    """`json_object` or `json_schema`, in runs with `sampling.top_k`."""
    prompt: Any = None
    """A text, or a list of token ids."""


class PoolLoad(Model):
    """The work of a pool's workers, by which an autoscaler decides how many there should be."""

    pool: str
    """Its name."""
    run: str | None
    """The id of the run that it works on."""
    queued: int
    """Runs that wait for their turn."""
    workers: int
    """Rollout workers with a heartbeat in the last 30 s."""
    groups_in_flight: int
    """Groups that workers hold now."""
    groups_wanted: int
    """Groups that admission allows workers to hold now; 0 without a run, at least 1 while an evaluation is open. Divided by the groups of one worker: the number of workers that are of use."""


class PreviewRequest(Model):
    """The body of `POST /v1/preview`: a submission, and the rows to show."""

    recipe: str | None = None
    """A name that `GET /v1/recipes` lists."""
    config: dict[str, Any] = {}
    """Laid over the recipe key by key, or the whole config where no recipe is named. Another `type` of a section replaces that section; a list is replaced, but for the places that a mapping names (`{"rewards": {"0": {"weight": 2}}}`)."""
    name: str | None = None
    """For people; default: the recipe's name."""
    pool: str | None = None
    """The learner and the workers that are to work on it. Default: those of the run that is resumed, else the pool `default`."""
    priority: int = 0
    """Higher goes first."""
    tags: list[str] | None = None
    """Words to find it by. Default: those of the run that is resumed."""
    notes: str | None = None
    """What people should know of it. Default: those of the run that is resumed."""
    resume_from: str | None = None
    """A run (id, beginning of the id, or name) whose checkpoint and open tasks this one takes over (of an evaluation of a model: the answers); without `recipe` its config, too. If it has no checkpoint, this run begins from the first step. RUN@STEP takes the checkpoint of an earlier step; tasks that were trained after it are open again. If the last checkpoint is damaged, the newest whole one is taken."""
    start: int = 0
    """The first row."""
    rows: int = 3
    """How many."""


class PreviewRow(Model):
    """One row as rollout workers see it."""

    index: int
    """Its place in the dataset, from 0; it never changes."""
    prompt: str | list[dict[str, Any]]
    """Text, or chat messages."""
    answer: Any
    """The verifier's reference, as it stood in the source."""
    columns: dict[str, Any]
    """The columns that are neither; verifiers get them."""


class ProblemDocument(Model):
    """RFC 9457 problem details."""

    type: str = "about:blank"
    """Always this: `status` says the kind."""
    title: str
    """The status in words."""
    status: int
    """The HTTP status."""
    detail: str
    """What went wrong, and the way out."""
    instance: str
    """The request's path."""
    problems: list[ProblemItem] | None = None
    """Each thing that is wrong, where it stands: the first 50."""


class ProblemItem(Model):
    """One thing that is wrong."""

    path: str
    """Key path, e.g. `training.max_steps`; empty: the whole."""
    message: str
    """What is wrong there, and the way out."""
    item: str | None = None
    """The id of the item it is about, where the request has items."""


class ProcessNeed(Model):
    """The memory that one kind of process needs: on each GPU, or on a host without GPUs."""

    memory: int | None
    """Bytes that are free for it, on a host with those that learner and workers have there now; null: not known."""
    needed: int
    """Bytes that it takes at its peak."""
    parts: dict[str, int]
    """These by what they are for."""
    fits: bool | None
    """Null: the memory is not known."""
    advice: list[str] = []
    """What to change if it does not fit."""
    gpu: str | None
    """The smallest of the GPUs; null: CPUs do the work, or nothing is known."""
    on_cpu: bool = False
    """Whether CPUs do the work, in their host's memory."""
    count: int
    """Processes that share the work: ranks, or GPUs of one vLLM."""
    most: int | None
    """Bytes that it could have if nothing else ran; null: not known."""
    how: str = ""
    """In words: how the work is divided."""


class Prompt(Model):
    """One row to add."""

    prompt: str | list[dict[str, Any]]
    """Text, or chat messages."""
    answer: Any = None
    """The verifier's reference."""
    columns: dict[str, Any] = {}
    """Anything else that verifiers need of the row."""


class PromptAddition(Model):
    """Rows to append to a dataset."""

    dataset: str
    """Its name or id."""
    prompts: list[Prompt]
    """The rows, in their order."""


class PromptsAdded(Model):
    """Where the new rows are."""

    dataset: str
    """The dataset's id."""
    added: int
    """How many rows are new."""
    first: int
    """Index of the first new row."""
    rows: int
    """Rows of the dataset now."""


class RecipeList(Model):
    """A page of recipes."""

    recipes: list[RecipeModel]
    """By name."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class RecipeModel(Model):
    """One recipe."""

    name: str
    """What `recipe` in `POST /v1/runs` takes."""
    when: str
    """When to use it."""
    text: str
    """The commented YAML."""
    config: dict[str, Any]
    """What the YAML says; not yet a whole run config."""


class ReferenceVerdict(Model):
    """A verifier's verdict on the reference itself, given as an answer."""

    verifier: str
    """Its name."""
    reward: float | None
    """Null: it broke."""
    status: str
    """`correct`, `wrong`, …"""
    detail: str
    """A sentence for a person."""


class Remark(Model):
    """A warning or an error."""

    seconds_ago: float
    """How long ago."""
    source: str
    """`run`, or the worker that reported it."""
    text: str
    """Its text."""


class RenderedPiece(Model):
    """A part of a rendered row."""

    text: str
    """With special tokens; a long one lacks its middle."""
    trained: bool
    """Whether the loss of a supervised run counts it."""


class RenderedRow(Model):
    """A row as the model will read it."""

    index: int
    """Its place in the dataset, from 0."""
    answer: Literal["chosen", "rejected"] | None = None
    """Which of two answers is shown, if the run compares two."""
    pieces: list[RenderedPiece] = []
    """Its text: one piece, or trained ones and others in turn."""
    tokens: int | None = None
    """Of all its text. Null: the tokenizer is not on the gateway's host."""
    trained_tokens: int | None = None
    """Those that the loss of a supervised run counts."""
    reference: str | None = None
    """The verifier's reference, as text or JSON; a long one lacks its middle."""
    verdicts: list[ReferenceVerdict] = []
    """Of the reference itself, given as an answer. Only `POST /v1/preview` asks, if the reference is a text or a number."""
    problem: str | None = None
    """Why it cannot be rendered."""


class Rendering(Model):
    """Rows, and what rendered them."""

    form: Literal["chat_template", "plain_text"] | None = None
    """`chat_template`: the model's chat template; `plain_text`: none, so that blank lines join the messages of a chat. Null: nobody knows here."""
    rows: list[RenderedRow] = []
    """In their order."""
    unbegun: str = ""
    """What the chat template writes between prompt and answer, if prompts lack it."""
    has_end: bool = True
    """Whether the model names a token that ends an answer."""
    unread_variables: list[str] = []
    """Names in `data.chat_template_kwargs` that the chat template does not mention."""
    idle_variables: list[str] = []
    """Names of texts in `data.chat_template_kwargs` that the chat template mentions, and without which the first row is the same."""
    counts: dict[str, RowCounts] = {}
    """By the keys that name the datasets: `data.dataset`, …"""
    note: str | None = None
    """Why there is no row, or what rows lack that the model will read."""


class Resumption(Model):
    """The body of `POST /v1/chains/{chain}/resume`."""

    config: dict[str, Any] = {}
    """Laid over the config of the step that failed."""


class RewardAnswer(Model):
    """The reward that counts: the first one of the session."""

    reward: float | None
    """Null: there is none, and it is not trained."""
    components: dict[str, float]
    """Its parts by name."""
    error: str
    """Why there is none."""


class RewardComponent(Model):
    """One component of the reward: a verifier and its weight."""

    verifier: str
    """Name of a verifier of the reward service."""
    name: str | None = None
    """Name for gates and metrics; default: the verifier's name, numbered if it is used more than
once (`math`, `math#2`)."""
    weight: float = 1.0
    """The reward is the weighted sum over components."""
    clip: tuple[float, float] | None = None
    """Clip the verifier's reward to [least, most], before the weight."""
    only_if: Gate | None = None
    """Score only samples for which another component was high enough; others get 0."""
    dense: Literal["values", "cumulative"] | None = None
    """For verifiers that score parts of an answer: reward each part at its end, and only the rest
at the answer's end. values: a part earns its score. cumulative: a score is that of the answer
up to there, and a part earns the difference to the score before. Default: the whole reward at
the end. Needs an advantage with rewards per token (`global_whiten`, `gae`)."""
    params: dict[str, Any] = {}
    """The verifier's parameters."""


class RewardRequest(Model):
    """The reward of a session."""

    reward: Any = None
    """A number; null with an `error`."""
    components: Any = None
    """Numbers by name; without `reward`, it is their sum."""
    error: Any = None
    """Why there is no reward: the session is not trained."""


class RolloutGroup(Model):
    """A trained group: one prompt and its answers."""

    run: str
    """The run's id."""
    step: int
    """The batch that it was trained in."""
    group: int
    """The group's task."""
    row: int
    """Index of the dataset row."""
    dataset: str
    """The row's dataset in a mixture; empty without one."""
    own: str | None
    """The name of a prompt that a client brought, or null."""
    reference: str
    """The row's reference answer as text; empty without one."""
    prompt: str
    """The policy's input with its special tokens."""
    prompt_tokens: list[str] | None
    """The text of each token of the prompt."""
    prompt_token_ids: list[int]
    """The ids of the prompt's tokens."""
    worker: str
    """The rollout worker that sampled it."""
    generated_at: float
    """When its last token was sampled; Unix seconds."""
    samples: list[RolloutSample]
    """Its answers, by number."""
    damaged: list[str]
    """Files of this step that cannot be read; answers in them are missing here."""


class RolloutSample(Model):
    """A trained answer with its tokens. A list of numbers has an entry for each token of the
    completion."""

    sample: int
    """Its number within the group, from 0."""
    reward: float | None
    """The verifiers' reward. Null: a verifier broke."""
    advantage: float | None
    """The advantage of its tokens. Null: it is not in the loss, or each token has its own (`advantages`)."""
    components: dict[str, float | None]
    """Each component of the reward, before its weight."""
    reasons: dict[str, str]
    """What each verifier says of the completion, by component."""
    status: str
    """How the first verifier's scoring ended."""
    finish_reason: str
    """`stop`, or why it was truncated."""
    trained: bool
    """Whether any of its tokens are in the loss."""
    length: int
    """Tokens of the completion."""
    turns: int | None
    """Turns of an agent's session, or of an episode."""
    completion: str
    """The whole answer with its special tokens."""
    tokens: list[str] | None
    """The text of each token; together they are the completion. A character of several tokens is in the last of them. Null: the file of token texts cannot be read."""
    token_ids: list[int]
    """The tokens' ids."""
    sampler_logprobs: list[float | None]
    """The sampler's log-probability of each token, in nats. Null: the policy did not sample the token."""
    learner_logprobs: list[float | None] | None
    """The learner's log-probability of each token, in its first pass over the token's minibatch. Null: the token is not in the loss. Null for all: no pass was made."""
    entropy: list[float | None] | None
    """Entropy of the learner's distribution that each token is from, in nats."""
    advantages: list[float | None] | None
    """The advantage of each token, from estimators that give each token its own."""
    versions: list[TokenSpan]
    """Who made which tokens, in order; the spans cover the completion."""
    branches: list[TokenBranch]
    """Where an agent's session did not continue its tokens; empty without branches."""


class RolloutSummary(Model):
    """A trained answer in a list, without its tokens."""

    step: int
    """The batch that it was trained in."""
    group: int
    """The task of its group: its prompt's place in the run's order."""
    sample: int
    """Its number within the group, from 0."""
    row: int
    """Index of the dataset row."""
    dataset: str
    """The row's dataset in a mixture; empty without one."""
    own: str | None
    """The client's name, which may be empty, of a prompt that a client brought instead of that row. Null: the prompt is the row's."""
    reward: float | None
    """The verifiers' reward, before `algorithm.shaping`. Null: a verifier broke."""
    advantage: float | None
    """The advantage of its tokens. Null: it is not in the loss, or each token has its own."""
    components: dict[str, float | None]
    """Each component of the reward, before its weight."""
    status: str
    """How the first verifier's scoring ended: `correct`, `wrong`."""
    finish_reason: str
    """`stop`, or why it was truncated: `length`, `deadline`."""
    trained: bool
    """Whether any of its tokens are in the loss."""
    length: int
    """Tokens of the completion."""
    turns: int | None
    """Turns of an agent's session or of an episode with tools; null without turns."""
    versions: list[int]
    """Policy versions that sampled it, oldest first."""
    prompt: str
    """The policy's input. A text over 400 characters loses its middle."""
    completion: str
    """The answer, or 400 characters of it: its beginning and its end, or the surroundings of the `text` that was searched for."""


class Rollouts(Model):
    """Answers that a run was trained on, the newest step first."""

    run: str
    """The run's id."""
    rollouts: list[RolloutSummary]
    """The answers; of a step by group."""
    damaged: list[str]
    """Files that cannot be read; answers in them are missing here."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class RowCounts(Model):
    """Counts over all rows of a dataset, or over evenly chosen rows of a large one."""

    rows: int = 0
    """Rows that were rendered."""
    fewest_tokens: int = 0
    """Of the shortest row."""
    most_tokens: int = 0
    """Of the longest row."""
    too_long: int = 0
    """Rows that have more tokens than a row may have."""
    crowded: int = 0
    """Prompts that leave an answer fewer tokens than `sampling.max_tokens`."""
    unusable: int = 0
    """Rows that cannot be rendered. `rows` leaves them out."""
    first_unusable: tuple[int, str] | None = None
    """The first such row, and why it cannot be rendered."""
    unknown: int = 0
    """Prompts with characters that the tokenizer has no token for."""
    unknown_characters: list[str] = []
    """Some of these characters."""
    special: int = 0
    """Prompts whose own text has special tokens that a chat template writes, too."""
    special_tokens: list[str] = []
    """Some of these tokens."""
    left_out: dict[str, int] = {}
    """Prompts with earlier answers (`assistant`), `tool_calls`, results of tools (`tool`) or descriptions of tools (`tools`) that the model would not read."""


class RunEdit(Model):
    """One changed value of a run's config."""

    key: Literal["max_steps", "max_staleness", "evaluation_every", "checkpoint_every", "lr"]
    """As `PATCH /v1/runs/RUN` takes it."""
    before: float | None
    """The value before; null: there was none."""
    after: float
    """The value after."""
    by: str
    """Name of the key that asked for it."""
    time: float
    """When, in Unix seconds."""
    step: int | None = None
    """The first step that has it. Null: the learner has not taken it yet."""


class RunEvaluations(Model):
    """A page of the evaluations of a run."""

    run: str
    """The run's id."""
    evaluations: list[EvaluationRecord]
    """The newest step first; of one step in the order in which they were due."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class RunEvent(Model):
    """The data of an `event` message."""

    run: str
    """The run's id."""
    id: str
    """The event's id, which orders it within the run."""
    time: float
    """Unix seconds, by the sender's clock."""
    kind: Literal[
        "state",
        "step",
        "evaluation",
        "progress",
        "worker",
        "warning",
        "checkpoint",
        "edit",
        "paused",
        "resumed",
        "tracker",
    ]
    """What happened."""
    data: dict[str, Any]
    """More about it, as in `GET /v1/runs/RUN/events`."""


class RunList(Model):
    """A page of runs, newest first."""

    runs: list[RunSummary]
    """Without their configs; `GET /v1/runs/RUN` has one."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class RunMetrics(Model):
    """Metrics of a run by step."""

    run: str
    """The run's id."""
    metrics: list[dict[str, Any]]
    """One object a step and one an evaluation, by the names of docs/metrics.md."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class RunPatch(Model):
    """The body of `PATCH /v1/runs/{run}`: only what changes."""

    name: str | None = None
    """For people. In any state."""
    tags: list[str] | None = None
    """All its tags from now on. In any state."""
    notes: str | None = None
    """In any state."""
    priority: int | None = None
    """Its place in its pool's queue. While it is queued."""
    max_steps: int | None = None
    """`training.max_steps`, more than it has trained. Also moves the end of its learning rate's schedule."""
    max_staleness: int | None = None
    """`rollout.max_staleness`."""
    evaluation_every: int | None = None
    """`evaluation.every`."""
    checkpoint_every: int | None = None
    """`training.checkpoint_every`."""
    lr: float | None = None
    """`optimizer.lr`, the peak of its schedule."""


class RunPreview(Model):
    """Rows as the run's model will read them."""

    form: Literal["chat_template", "plain_text"] | None = None
    """`chat_template`: the model's chat template; `plain_text`: none, so that blank lines join the messages of a chat. Null: nobody knows here."""
    rows: list[RenderedRow] = []
    """In their order."""
    unbegun: str = ""
    """What the chat template writes between prompt and answer, if prompts lack it."""
    has_end: bool = True
    """Whether the model names a token that ends an answer."""
    unread_variables: list[str] = []
    """Names in `data.chat_template_kwargs` that the chat template does not mention."""
    idle_variables: list[str] = []
    """Names of texts in `data.chat_template_kwargs` that the chat template mentions, and without which the first row is the same."""
    counts: dict[str, RowCounts] = {}
    """By the keys that name the datasets: `data.dataset`, …"""
    note: str | None = None
    """Why there is no row, or what rows lack that the model will read."""
    dataset: str | None
    """The dataset's name. Null: the run has none."""
    total: int
    """Its rows."""
    config: dict[str, Any]
    """The run's config, defaults filled in."""
    from_datasets: dict[str, str]
    """As of a run: keys that a dataset has set."""
    warnings: list[str]
    """As of a run."""


class RunRecord(Model):
    """One run as the store knows it."""

    id: str
    """8 hex digits."""
    name: str
    """For people; several runs may share one."""
    pool: str
    """The pool whose learner and workers work on it."""
    kind: str
    """`rl` or `sft`."""
    model: str = ""
    """`model.path` of its config. Empty: a run from before summaries had it."""
    recipe: str | None = None
    """The recipe that its config began with."""
    datasets: list[str] = []
    """The names of its datasets: to train on, to evaluate and to validate with."""
    state: RunState
    """Its state."""
    phase: str = ""
    """What it does now, in words."""
    reason: str = ""
    """Why it is in this state, in words."""
    paused_by: str = ""
    """Name of the key that asked for its pause. Its learner pauses after its present step. Empty: nobody has."""
    tags: list[str] = []
    """Words to find it by."""
    notes: str = ""
    """What people should know of it."""
    submitter: str = ""
    """Name of the key that submitted it. Empty: older than submitters."""
    priority: int = 0
    """Higher goes first in its pool's queue."""
    queue_position: int | None = None
    """Its place in its pool's queue, from 1; null: it is not queued."""
    resume_from: str | None = None
    """The run whose checkpoint this one continues."""
    resume_step: int | None = None
    """The step of that checkpoint. Null: it continues no checkpoint."""
    is_fork: bool = False
    """Whether it was forked from `resume_from`, which was left as it was and may still train."""
    chain: str | None = None
    """The chain that it is a step of."""
    created: float
    """Unix seconds."""
    started: float | None = None
    """When it first ran, in Unix seconds."""
    finished: float | None = None
    """When it was over, in Unix seconds."""
    step: int = 0
    """Batches trained."""
    max_steps: int | None = None
    """Batches to train."""
    reward: float | None = None
    """`reward/mean` of its newest step; null: it has none."""
    loss: float | None = None
    """`train/loss` of the newest step of a supervised run; else null."""
    step_seconds: float | None = None
    """Seconds from step to step, over the newest ten reports, with evaluations and checkpoints between them; null: too few steps."""
    eta_seconds: float | None = None
    """Seconds that the remaining steps take at `step_seconds`; null: not known, or the run does not train now."""
    version: int = 0
    """Newest published policy version."""
    lineage: str = ""
    """Lineage of the versions that its learner publishes now."""
    committed_step: int = 0
    """Step of the current checkpoint."""
    checkpoint: str | None = None
    """Current checkpoint, relative to the data volume."""
    damage: str | None = None
    """What of its record cannot be read, and why; null: all of it can be."""
    disk_bytes: int | None = None
    """Size of its files on the data volume, at most half a minute old; null: not measured."""
    config: dict[str, Any]
    """The validated run config, defaults filled in."""
    warnings: list[str] = []
    """Settings that are allowed but probably a mistake, and what was not checked, each with its key."""
    from_datasets: dict[str, str] = {}
    """Keys that a dataset has set, with its name: `data.template`, `rewards`. The dataset was uploaded with a named mapping, and the submission itself does not say them."""
    dataset_names: dict[str, str] = {}
    """The names of its datasets when it was submitted, by the keys of its config that have their ids: `data.dataset`. Empty: a run from before names were kept."""
    preview: Rendering | None = None
    """The first row of its dataset as its model will read it; null: a run from before there were previews."""
    dataset_rows: list[int] = []
    """Of a mixture of prompts: the rows of each dataset that the run uses, in the order of its config. Empty: one dataset, of which it uses all rows, also new ones."""
    metrics: dict[str, float] = {}
    """Newest value of each metric."""
    edits: list[RunEdit] = []
    """Values of its config that were changed since it was submitted, in their order. `config` has the newest ones."""
    computation: dict[str, str] = {}
    """How its learner computes, and why, by part: `device`, `attention`, `shared_prompts`, `activations`, `compile`, `parallel`."""


class RunSamples(Model):
    """Sampled answers of a run, newest first."""

    run: str
    """The run's id."""
    samples: list[SampledAnswer]
    """Up to four of each batch."""
    judged: list[SampledAnswer]
    """The newest answers that were judged, trained or not, of a run that has failed or has no trained ones yet."""
    none_because: str | None
    """Why there are no answers; null if there are some."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class RunSubmission(Model):
    """The body of `POST /v1/runs`. At least one of `recipe`, `config`, `resume_from`."""

    recipe: str | None = None
    """A name that `GET /v1/recipes` lists."""
    config: dict[str, Any] = {}
    """Laid over the recipe key by key, or the whole config where no recipe is named. Another `type` of a section replaces that section; a list is replaced, but for the places that a mapping names (`{"rewards": {"0": {"weight": 2}}}`)."""
    name: str | None = None
    """For people; default: the recipe's name."""
    pool: str | None = None
    """The learner and the workers that are to work on it. Default: those of the run that is resumed, else the pool `default`."""
    priority: int = 0
    """Higher goes first."""
    tags: list[str] | None = None
    """Words to find it by. Default: those of the run that is resumed."""
    notes: str | None = None
    """What people should know of it. Default: those of the run that is resumed."""
    resume_from: str | None = None
    """A run (id, beginning of the id, or name) whose checkpoint and open tasks this one takes over (of an evaluation of a model: the answers); without `recipe` its config, too. If it has no checkpoint, this run begins from the first step. RUN@STEP takes the checkpoint of an earlier step; tasks that were trained after it are open again. If the last checkpoint is damaged, the newest whole one is taken."""


class RunSummary(Model):
    """One run as lists show it: everything but its config and its metrics."""

    id: str
    """8 hex digits."""
    name: str
    """For people; several runs may share one."""
    pool: str
    """The pool whose learner and workers work on it."""
    kind: str
    """`rl` or `sft`."""
    model: str = ""
    """`model.path` of its config. Empty: a run from before summaries had it."""
    recipe: str | None = None
    """The recipe that its config began with."""
    datasets: list[str] = []
    """The names of its datasets: to train on, to evaluate and to validate with."""
    state: RunState
    """Its state."""
    phase: str = ""
    """What it does now, in words."""
    reason: str = ""
    """Why it is in this state, in words."""
    paused_by: str = ""
    """Name of the key that asked for its pause. Its learner pauses after its present step. Empty: nobody has."""
    tags: list[str] = []
    """Words to find it by."""
    notes: str = ""
    """What people should know of it."""
    submitter: str = ""
    """Name of the key that submitted it. Empty: older than submitters."""
    priority: int = 0
    """Higher goes first in its pool's queue."""
    queue_position: int | None = None
    """Its place in its pool's queue, from 1; null: it is not queued."""
    resume_from: str | None = None
    """The run whose checkpoint this one continues."""
    resume_step: int | None = None
    """The step of that checkpoint. Null: it continues no checkpoint."""
    is_fork: bool = False
    """Whether it was forked from `resume_from`, which was left as it was and may still train."""
    chain: str | None = None
    """The chain that it is a step of."""
    created: float
    """Unix seconds."""
    started: float | None = None
    """When it first ran, in Unix seconds."""
    finished: float | None = None
    """When it was over, in Unix seconds."""
    step: int = 0
    """Batches trained."""
    max_steps: int | None = None
    """Batches to train."""
    reward: float | None = None
    """`reward/mean` of its newest step; null: it has none."""
    loss: float | None = None
    """`train/loss` of the newest step of a supervised run; else null."""
    step_seconds: float | None = None
    """Seconds from step to step, over the newest ten reports, with evaluations and checkpoints between them; null: too few steps."""
    eta_seconds: float | None = None
    """Seconds that the remaining steps take at `step_seconds`; null: not known, or the run does not train now."""
    version: int = 0
    """Newest published policy version."""
    lineage: str = ""
    """Lineage of the versions that its learner publishes now."""
    committed_step: int = 0
    """Step of the current checkpoint."""
    checkpoint: str | None = None
    """Current checkpoint, relative to the data volume."""
    damage: str | None = None
    """What of its record cannot be read, and why; null: all of it can be."""
    disk_bytes: int | None = None
    """Size of its files on the data volume, at most half a minute old; null: not measured."""


class SampledAnswer(Model):
    """One completion with what it earned."""

    step: int
    """The batch it was trained in. 0: it was judged and not trained, or not yet."""
    task: int
    """Its prompt's place in the run's order, as in the audit."""
    row: int
    """Index of the dataset row."""
    dataset: str = ""
    """Which dataset of a mixture that is; empty: the run has one."""
    own: str | None = None
    """Of a prompt that a client brought in place of that row: the name that it gave to its group, or empty."""
    prompt: str
    """The policy's input with its special tokens. Of more than 4,000 characters the middle is omitted, as in the completion."""
    completion: str
    """The answer with its special tokens."""
    reference: str = ""
    """The reference answer of the row, as text. Empty: it has none."""
    tokens: int
    """Length of the completion."""
    reward: float | None
    """The verifiers' reward, before `algorithm.shaping`. Null: a verifier broke."""
    status: str
    """How the first verifier's scoring ended: `correct`, `wrong`."""
    components: dict[str, float | None]
    """Each component of the reward, before its weight."""
    reasons: dict[str, str] = {}
    """What each verifier says of the completion, by component: what it compared."""
    advantage: float | None
    """The advantage of its tokens. Null: the completion is not in the loss, or its reward alone does not give it (`gae`, `global_whiten`, `sequence_value`, `reverse_kl`)."""
    finish_reason: str
    """`stop`, or why it was truncated: `length`, `deadline`."""
    versions: list[int]
    """Policy versions that sampled it, oldest first."""


class ScoredAnswer(Model):
    """The verdict on an answer, and what it was compared with."""

    id: str
    """The item's."""
    status: ScoreStatus
    """How the scoring ended."""
    reward: float | None
    """Null for status `error` alone."""
    components: dict[str, float] = {}
    """Named parts of the reward, for the metrics."""
    parts: list[PartScore] = []
    """Scores of parts of the completion, in its order, for runs whose reward is dense; `reward` is of the whole."""
    detail: str = ""
    """A sentence for a person: what was compared, what broke."""
    prompt: str | list[dict[str, Any]]
    """As the verifier saw it."""
    answer: Any
    """The reference, as the verifier saw it."""


class Series(Model):
    """One metric of one run, in rising places. A value that is not finite (a gradient norm that
    overflowed) is left out."""

    run: str
    """The run's id."""
    name: str
    """The metric."""
    x: list[float]
    """Places on the axis; of a bucket the last one in it."""
    mean: list[float]
    """The values, or the means of buckets, with 5 significant digits."""
    min: list[float] | None
    """The least value of each bucket; null: `mean` has the values themselves."""
    max: list[float] | None
    """The largest value of each bucket, or null."""
    count: list[int] | None
    """Values in each bucket, or null."""


class SeriesAnswer(Model):
    """Series by run, then by name, in the order of the request."""

    series: list[Series]
    """A metric that a run does not have, or not between `from` and `to`, is missing."""


class SeriesNames(Model):
    """The metrics of a run."""

    run: str
    """The run's id."""
    names: list[NewestValue]
    """In alphabetical order."""


class StepDryRun(Model):
    """The dry run of one step."""

    config: dict[str, Any]
    """The run's config, defaults filled in."""
    max_steps: int | None
    """Batches that it trains."""
    warnings: list[str]
    """As of a run."""
    from_datasets: dict[str, str]
    """As of a run: what a dataset has set."""
    preview: Rendering | None
    """As of a run: its first row as the model reads it."""
    estimate: Estimate | None
    """Null where the gateway cannot tell: the model's folder is not here, or its config.json names no widths."""
    mixture: list[DatasetShare]
    """Of a mixture of prompts: what an epoch takes of each dataset. Empty: there is one dataset, or the run is supervised."""
    refusals: list[str]
    """Why the submission would be refused: it cannot fit. Empty: it would be queued."""
    name: str
    """The step's."""


class StepSubmission(Model):
    """One step of a chain: a run."""

    name: str
    """Unique in the chain. Small letters, digits, `-` and `_`."""
    recipe: str | None = None
    """A name that `GET /v1/recipes` lists."""
    config: dict[str, Any] = {}
    """As in `POST /v1/runs`. `model.path` may be `step:NAME`, the last checkpoint of an earlier step, `step:NAME@best`, the one with the best validation, or `step:NAME@20`, that of step 20. Without `model.path` a step starts from the one before."""


class StepView(Model):
    """One step of a chain, with what its run says."""

    name: str
    """Unique in the chain."""
    kind: str
    """The type of its run: `rl` or `sft`."""
    run: str | None
    """The id of its present run; null: not submitted yet."""
    runs: list[str]
    """The ids of all its runs, oldest first."""
    state: str
    """`waiting`, or the state of its run."""
    reason: str = ""
    """Why the run is in this state, in words."""
    step: int = 0
    """Batches that the run has trained."""
    max_steps: int | None = None
    """Batches that it trains."""
    checkpoint: str | None = None
    """Its checkpoint, relative to the data volume."""
    models: dict[str, str] = {}
    """The models of its config that earlier steps make, by key: `model.path`, `step:NAME`."""


class TestResult(Model):
    """How a test in a verifier's file ended."""

    name: str
    """The function `test_…`."""
    problem: str | None
    """Why it failed. Null: it passed."""


class TokenBranch(Model):
    """A place in a completion whose tokens do not continue the tokens before them."""

    start: int
    """The branch's first token, counted in the completion."""
    after: int
    """How many tokens of prompt and completion lie up to the place that the branch continues."""


class TokenSpan(Model):
    """Tokens of a completion that have one origin."""

    start: int
    """Its first token."""
    end: int
    """The token after its last one."""
    version: int | None
    """The policy version that sampled these tokens. Null: the policy did not sample them: output of a tool, a user's turn, or tokens that were forced."""


class Uploaded(Model):
    """A dataset, and how its file was read."""

    id: str
    """16 hex digits, from its name and its first rows."""
    name: str
    """What runs call it; unique."""
    rows: int
    """Rows it has now."""
    created: float
    """Unix seconds."""
    segments: list[DatasetSegment]
    """Its files, in the order of their rows."""
    source: str = ""
    """Where the first rows came from, e.g. the file name."""
    defaults: DatasetDefaults | None = None
    """How its rows are asked and scored if a submission itself names neither `data.template` nor `rewards`; null: submission or recipe have to say."""
    damage: str | None = None
    """What of its record cannot be read, and why; null: all of it can be."""
    mapping: ColumnMapping | str
    """The columns that were used, guesses made; or the name of the mapping."""
    left_over: list[str]
    """Columns that are in neither prompt nor answer. Rows keep them for verifiers."""
    duplicates: int
    """Rows with the prompt and answer of an earlier row."""
    added: bool
    """False: a dataset of this name had these rows already."""
    notes: list[str]
    """Guesses about how the files were read."""
    warnings: list[str]
    """Probable mistakes, each with a count."""


class VerifierInfo(Model):
    """One verifier that items may name."""

    name: str
    """What an item's `verifier` takes."""
    description: str
    """What it calls correct."""
    params: dict[str, Any]
    """JSON Schema of an item's `params`."""
    available: bool
    """Whether it can be used on this machine."""
    notice: str
    """What to know about its use on this machine, or why it cannot be used."""
    versions: list[int] = []
    """The versions of a verifier that an admin has added: NAME is the last one, NAME@VERSION any of them. Empty: it came with the installation."""


class VerifierPage(Model):
    """A page of verifiers."""

    verifiers: list[VerifierInfo]
    """By name."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class Why(Model):
    """A run's progress, and the cause that holds it up."""

    run: str
    """The run's id."""
    name: str
    """Its name."""
    state: RunState
    """Where it is in its life."""
    step: int
    """Batches trained."""
    max_steps: int | None
    """Batches it is to train."""
    cause: Literal[
        "none",
        "over",
        "queued",
        "starting",
        "paused",
        "cancelling",
        "no_learner",
        "no_worker",
        "vllm",
        "weights",
        "rollout",
        "reward",
        "learner",
        "evaluation",
    ]
    """What holds it up, in one word; `none` where nothing does, `over` where it has ended."""
    words: str
    """The same as a sentence."""
    last_step_seconds_ago: float | None
    """When a step was last finished; null: none since it started."""
    flow: Flow
    """How many tasks are where."""
    oldest: OldestTask | None
    """The task that has been in flight longest."""
    evaluation: OpenEvaluation | None
    """The open evaluation, if there is one."""
    traffic: LiveTraffic | None
    """Sessions of applications; null: the run has a dataset."""
    learner: LearnerHold | None
    """The pool's learner; null: none is alive."""
    computation: dict[str, str]
    """How the learner computes, and why, by part: `attention`, `shared_prompts`, `activations`, `compile`, `parallel`."""
    workers: list[WorkerRecord]
    """The pool's workers by their last heartbeats."""
    heard: dict[str, float]
    """Seconds since each worker's heartbeat; after 5 it does not count as alive."""
    remarks: list[Remark]
    """The newest warnings and errors, newest first."""


class WorkerList(Model):
    """A page of the workers whose heartbeat has not lapsed, by id."""

    workers: list[WorkerRecord]
    """Each as of its last heartbeat."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class WorkerRecord(Model):
    """A rollout worker's last heartbeat."""

    id: str
    """Its name."""
    pool: str
    """Which pool it belongs to."""
    evaluation_only: bool = False
    """Whether it samples nothing to train on (`HEADRACE_EVALUATION_ONLY`)."""
    host: str
    """The machine it runs on."""
    pid: int
    """Its process id there."""
    state: str
    """`starting`, `idle`, `generating`, `waiting_admission`, `updating`, `sleeping` while the learner has its GPU, `evaluating`, `unhealthy`, `stopping`; `silent` after 5 s without a heartbeat."""
    episodes: list[str] = []
    """Episode types in addition to the built-in ones, by name."""
    tool_servers: list[str] = []
    """MCP servers that `rollout.episode.servers` may name, as its operator has set them."""
    gpus: int | None = None
    """GPUs that its vLLM may use; null if the driver cannot be asked."""
    devices: list[GPUDevice] = []
    """These GPUs, where the driver describes them."""
    gpu_loads: list[GPULoad] = []
    """How busy these GPUs are, at most 10 s old. Empty: the driver does not say."""
    gpu_share: float | None = None
    """Share of each GPU's memory for its vLLM where a run's config names none (`HEADRACE_VLLM_GPU_MEMORY_UTILIZATION`); null: it has none of its own."""
    vllm_version: str | None = None
    """The version of its vLLM."""
    run: str | None = None
    """The run it works on."""
    version: int | None = None
    """Policy version that is live in its vLLM."""
    lineage: str | None = None
    """The lineage of that version."""
    files: list[str] = []
    """Weight files that it needs: of the version that it loads, and of the one before, in case loading fails."""
    peer_url: str | None = None
    """Where other hosts' workers fetch these files; null: it serves nobody."""
    starting_seconds: float | None = None
    """How long its vLLM has been starting; null: it does not start."""
    usual_start_seconds: float | None = None
    """How long the last start of this model's vLLM took on this host; null: it has not been started here with this model and these options."""
    groups_in_flight: int = 0
    """Leases it holds."""
    scoring: int = 0
    """Of these, groups that the reward service works on."""
    evaluation_rows: int = 0
    """Rows of an evaluation that it holds."""
    policy_calls: int = 0
    """Calls of the policy as an endpoint that it answers now."""
    policy_answers: int = 0
    """Of such calls, those that it has answered in its run."""
    policy_tokens: int = 0
    """Tokens that it has sampled for them."""
    oldest: HeldTask | None = None
    """The first in the run's order of the tasks that it holds."""
    tokens_per_second: float = 0.0
    """Tokens that its vLLM samples now."""
    tokens_total: int = 0
    """Tokens that its vLLM has sampled since it started."""
    admission_wait_seconds: float = 0.0
    """Time with a free slot and no admission, in its present run."""
    update_seconds: float | None = None
    """From the end of the optimizer step until its version was live here."""
    pause_seconds: float | None = None
    """How long the last weight update paused generation."""
    canary_gap: float | None = None
    """By how many nats its vLLM's log-probabilities of the last version's fixed sequences differ from the learner's, on average."""
    canary_seconds: float | None = None
    """How long its vLLM took to score them."""
    restarts: int = 0
    """Restarts of it by `headrace up`, and of its vLLM by it."""
    host_load: HostLoad | None = None
    """How busy its host is; null where its vLLM computes on a GPU."""
    error: str = ""
    """The last error."""
    started: float = 0.0
    """When the process started, in Unix seconds."""
    heartbeat: float = 0.0
    """Time of this heartbeat, in Unix seconds."""


ChainState: TypeAlias = Literal["running", "cancelling", "succeeded", "failed", "cancelled"]
"""Life of a chain. The last three end with its present step; `resume` leaves the last two."""

RolloutStatus: TypeAlias = Literal[
    "correct",
    "wrong",
    "partial",
    "scored",
    "no_answer",
    "unparsable",
    "timeout",
    "error",
    "truncated",
    "untrained",
]
"""A filter of rollouts: how the scoring ended, or how the answer was treated."""

RunState: TypeAlias = Literal[
    "queued", "starting", "running", "paused", "cancelling", "succeeded", "failed", "cancelled"
]
"""Life of a run. The last three are final."""

ScoreStatus: TypeAlias = Literal[
    "correct", "wrong", "partial", "scored", "no_answer", "unparsable", "timeout", "error"
]
"""How one scoring ended."""
