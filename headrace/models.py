"""What the gateway's API takes and answers. `make client` makes this file (deploy/client_code.py)."""
# ruff: noqa: E501

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import Field

from headrace.model import Model


class JsonSchema(Model):
    """A JSON Schema (draft 2020-12)."""


class TensorBoard(Model):
    """Event files below `tracking/tensorboard/` of the data volume, for `tensorboard --logdir`."""


class ChangedWorkers(Model):
    """The data of a `workers` message."""

    workers: list[WorkerRecord]
    """All workers, as `GET /v1/workers` lists them."""


class ConstantLength(Model):
    """Sum / (sequences · max_tokens) (Dr. GRPO); of a mixture, the largest of any dataset."""

    type: Literal["constant"]
    """Sum / (sequences · max_tokens) (Dr. GRPO); of a mixture, the largest of any dataset."""


class CountAnswer(Model):
    """The length of a prompt."""

    input_tokens: int
    """Tokens of the prompt."""


class Curriculum(Model):
    """Prefers prompts that are solved now and then. With p, the running pass rate of a row, its
    task is sampled with probability 4·p·(1 − p), the variance of success as a share of the largest
    (Foster et al. 2025); a row without a pass rate is sampled. p is the mean of the newest group's
    share of correct answers and of what p was before."""

    least: float = 0.1
    """Least probability, so that prompts that are always or never solved are tried again."""


class GraderToValidate(Model):
    """A grader object."""

    grader: Any = None
    """The grader object."""


class GroupMean(Model):
    """r − mean of the group."""

    type: Literal["group_mean"]
    """r − mean of the group."""


class GroupZScore(Model):
    """(r − mean) / (std + 1e-6) within the group (GRPO)."""

    type: Literal["group_zscore"] = "group_zscore"
    """(r − mean) / (std + 1e-6) within the group (GRPO)."""


class Health(Model):
    """The process answers."""

    status: Literal["ok"] = "ok"
    """Always this: else the answer is an error."""


class LeaveOneOut(Model):
    """r − mean of the other samples of the group (RLOO)."""

    type: Literal["leave_one_out"]
    """r − mean of the other samples of the group (RLOO)."""


class Likelihood(Model):
    """−log π of the tokens that `data.train_on` names, on average."""

    type: Literal["likelihood"] = "likelihood"
    """−log π of the tokens that `data.train_on` names, on average."""


class LoglinearProximal(Model):
    """log μ + d/(d + 1)·(sg(log π) − log μ), d versions after the token was sampled: an estimate
    of `recompute` without its forward pass (AReaL)."""

    type: Literal["loglinear"]
    """log μ + d/(d + 1)·(sg(log π) − log μ), d versions after the token was sampled: an estimate
of `recompute` without its forward pass (AReaL)."""


class MLflow(Model):
    """A run of MLflow with the name of this run, on the installation's tracking server."""

    experiment: str = "headrace"
    """The experiment. A missing one is made."""


class NewItems(Model):
    """Items for a conversation."""

    items: Any = None
    """Items that are added to its end."""


class NoCorrection(Model):
    """Weight 1."""

    type: Literal["none"] = "none"
    """Weight 1."""


class NoKL(Model):
    """No KL term; no reference model is loaded."""

    type: Literal["none"] = "none"
    """No KL term; no reference model is loaded."""


class OpenAIErrorDocument(Model):
    """An error of a session's route."""

    error: OpenAIError
    """What is wrong."""


class PermissionsRequest(Model):
    """The projects that may use a model."""

    project_ids: Any = None
    """A list of projects."""


class RecomputeProximal(Model):
    """π_prox = π at the start of each batch, by one more forward pass (decoupled PPO, AReaL)."""

    type: Literal["recompute"]
    """π_prox = π at the start of each batch, by one more forward pass (decoupled PPO, AReaL)."""


class ReinforceLoss(Model):
    """−A·log π without a ratio; a correction multiplies it by sg(π)/μ."""

    type: Literal["reinforce"]
    """−A·log π without a ratio; a correction multiplies it by sg(π)/μ."""


class RequestData(Model):
    """The request's sender. A `state` follows once the learner has done it."""

    by: str
    """The name of the key that asked for it."""


class Resumption(Model):
    """The body of `POST /v1/chains/{chain}/resume`."""

    config: dict[str, Any] = {}
    """Laid over the config of the step that failed. Keys as in `RunConfig`."""


class ReverseKL(Model):
    """log π_teacher − log π_prox of each sampled token: minus the KL of the policy to the teacher,
    in expectation (on-policy distillation; Agarwal et al. 2024). Needs `teacher`, and no reward."""

    type: Literal["reverse_kl"]
    """log π_teacher − log π_prox of each sampled token: minus the KL of the policy to the teacher,
in expectation (on-policy distillation; Agarwal et al. 2024). Needs `teacher`, and no reward."""


class SamplerProximal(Model):
    """π_prox = μ, the sampler: no extra forward pass."""

    type: Literal["sampler"] = "sampler"
    """π_prox = μ, the sampler: no extra forward pass."""


class SequenceMean(Model):
    """Mean over sequences of their token means (GRPO)."""

    type: Literal["sequence_mean"]
    """Mean over sequences of their token means (GRPO)."""


class SequenceValue(Model):
    """r − V at the completion's last token (minimind). Needs `critic`."""

    type: Literal["sequence_value"]
    """r − V at the completion's last token (minimind). Needs `critic`."""


class SeriesAnswer(Model):
    """Series by run, then by name, in the order of the request."""

    series: list[Series]
    """A metric that a run does not have, or not between `from` and `to`, is missing."""


class SingleTurn(Model):
    """The answer is sampled in one request."""

    type: Literal["single_turn"] = "single_turn"
    """The answer is sampled in one request."""


class TokenMean(Model):
    """Sum over tokens / number of tokens in the global batch (DAPO)."""

    type: Literal["token_mean"] = "token_mean"
    """Sum over tokens / number of tokens in the global batch (DAPO)."""


class Trackio(Model):
    """A run of Trackio with the id of this run."""

    project: str = "headrace"
    """The project."""


class ValidatedGrader(Model):
    """A grader that can be used."""

    grader: dict[str, Any]
    """The grader object, as it was sent."""


class WarningData(Model):
    """A warning."""

    message: str
    """The warning, in words."""


class AnthropicError(Model):
    """An error in the format of Anthropic's API."""

    type: str
    """`invalid_request_error`, `api_error`, or by the status: `authentication_error`, `permission_error`, `not_found_error`, `request_too_large`, `rate_limit_error`, `overloaded_error`, `timeout_error`"""
    message: str
    """What went wrong, and the way out."""


class AnthropicErrorDocument(Model):
    """An error of a route of Anthropic's API."""

    type: Literal["error"]
    """`error`."""
    error: AnthropicError
    """What is wrong."""


class BPETokenizer(Model):
    """Byte-pair encoding over bytes, trained on the run's rows, with a chat template as ChatML that
    also writes tools and their calls."""

    type: Literal["bpe"]
    """Byte-pair encoding over bytes, trained on the run's rows, with a chat template as ChatML that
also writes tools and their calls."""
    vocabulary: int = 4096
    """Tokens: bytes, merges, and four special ones."""


class Balance(Model):
    """Only for models with experts; others accept the defaults and 0 alone."""

    aux_loss: float | None = None
    """Weight of the load-balancing loss; null: the model's own (`router_aux_loss_coef` in its
config); 0: none. Costs one more forward pass, unless routing is replayed."""
    z_loss: float | None = None
    """Weight of the router z-loss, the mean of logsumexp(router logits)²; null: the model's own
(`router_z_loss_coef`, which few have); 0: none."""


class BestOf(Model):
    """Samples more completions of a prompt than it trains (AReaL)."""

    generation_size: int
    """Completions sampled per prompt; `samples_per_prompt` of them are trained."""
    keep: Literal["best", "worst", "both"] = "best"
    """The completions that are trained. both: half the best and half the worst; an odd number takes
one more of the best."""


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


class ChangedRuns(Model):
    """The data of a `runs` message."""

    runs: list[RunSummary]
    """The runs that have changed, as lists show them."""
    deleted: list[str]
    """Ids of runs that were deleted."""


class ChangedValue(Model):
    """A key's value before and after."""

    from_: Any = Field(alias="from")
    """The value before."""
    to: Any
    """The new value."""


class CharacterTokenizer(Model):
    """One token per character of `alphabet`, plus beginning, end and padding."""

    type: Literal["character"] = "character"
    """One token per character of `alphabet`, plus beginning, end and padding."""
    alphabet: str = "0123456789+-*/=() "
    """All characters that prompts and answers may have."""


class CheckpointList(Model):
    """A page of the checkpoints of a run, the newest step first."""

    checkpoints: list[Checkpoint]
    """Those on the data volume now."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


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


class EndAnswer(Model):
    """The outcome of the session."""

    ended: bool
    """True."""
    turns: int
    """That it had. Without any it is not trained."""


class FrozenReference(Model):
    """The model that the run started from, or the one at `path`."""

    path: str | None = None
    """The model that the reference is at first: a folder, a hub name, or `run:RUN`, with the
policy's tokenizer; `ema` and `refresh` also need the policy's architecture. Default: the model
that the run started from."""
    type: Literal["frozen"] = "frozen"
    """The model that the run started from, or the one at `path`."""


class Gate(Model):
    """A condition on another component of the reward."""

    component: str
    """Name of an earlier reward."""
    at_least: float
    """Its verifier's reward, before clip and weight, must be at least this."""


class KeyList(Model):
    """A page of the keys that are accepted besides the first, oldest first."""

    keys: list[ApiKeyRecord]
    """Their names; never the keys."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class LaggedProximal(Model):
    """π_prox = a copy of the policy, refreshed every `every` steps (minimind). Without w, the
    sampler's mismatch stays uncorrected."""

    type: Literal["lagged"]
    """π_prox = a copy of the policy, refreshed every `every` steps (minimind). Without w, the
sampler's mismatch stays uncorrected."""
    every: int = 4
    """Steps between refreshes."""


class Login(Model):
    """The key that a browser logs in with."""

    token: str
    """To be opened as `/#login=TOKEN`."""
    seconds: int
    """How long it works, once."""


class ModelEvaluations(Model):
    """A page of evaluations of models, newest first."""

    evaluations: list[ModelEvaluation]
    """Each with its progress or figures."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class NewConversation(Model):
    """A conversation that begins."""

    items: Any = None
    """What it begins with: items."""
    metadata: Any = None
    """Texts by name, kept with it."""


class NewSession(Model):
    """A conversation that begins."""

    prompt_key: str = ""
    """What kind of prompt it is: its reward is compared with those of the same key (advantage `running_mean`). Empty: with all."""
    name: str = ""
    """With it the request may be sent again: it returns the same session, with a new key, and 410 once that is over."""


class OffPolicySequenceMask(Model):
    """Weight 0 for sequences with A < 0 and mean(log μ − log π) > delta, else 1 (DeepSeek-V3.2)."""

    type: Literal["off_policy_sequence_mask"]
    """Weight 0 for sequences with A < 0 and mean(log μ − log π) > delta, else 1 (DeepSeek-V3.2)."""
    delta: float = 0.5
    """How much less likely a bad answer may be for the policy, in nats per token."""


class OpenAIModelList(Model):
    """The models of this installation."""

    object: Literal["list"] = "list"
    """`list`."""
    data: list[OpenAIModel]
    """Fine-tuned models, then the bases of runs."""


class OpenAIModels(Model):
    """The models of a session."""

    object: str
    """`list`."""
    data: list[dict[str, Any]]
    """One: the run's policy."""


class PartScore(Model):
    """The score of one part of a completion."""

    end: int
    """Where it ends: characters (Unicode code points) of the completion."""
    score: float
    """What it earned, or the score of the completion up to there, depending on `dense` of the run's reward."""


class PartsOfUpload(Model):
    """The parts of a file, in its order."""

    part_ids: Any = None
    """Ids of parts."""
    md5: Any = None
    """The file's checksum, in hex."""


class PromptAddition(Model):
    """Rows to append to a dataset."""

    dataset: str
    """Its name or id."""
    prompts: list[Prompt]
    """The rows, in their order."""


class PromptMean(Model):
    """Mean over prompts of their token means; with `chunk`, over chunks of a prompt's samples."""

    type: Literal["prompt_mean"]
    """Mean over prompts of their token means; with `chunk`, over chunks of a prompt's samples."""
    chunk: int | None = None
    """Samples of a prompt that are averaged together, in sampling order; default: all of them."""


class RecipeList(Model):
    """A page of recipes."""

    recipes: list[RecipeModel]
    """By name."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class RenderedPiece(Model):
    """A part of a rendered row."""

    text: str
    """With special tokens; a long one lacks its middle."""
    trained: bool
    """Whether the loss of a supervised run counts it."""


class RepeatedRow(Model):
    """A row that repeats an earlier one."""

    row: int
    """Its index."""
    first: int
    """The index of the first row like it."""


class Repetitions(Model):
    """Rows that repeat earlier rows."""

    rows: int
    """How many repeat an earlier one."""
    examples: list[RepeatedRow]
    """The first of them."""


class RunList(Model):
    """A page of runs, newest first."""

    runs: list[RunSummary]
    """Without their configs; `GET /v1/runs/RUN` has one."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class RunningMean(Model):
    """r − b, b the running mean of the rewards that the sample's prompt key had in earlier batches;
    for a new key that of all rewards (SPO's value tracker, with a fixed decay). Each reward moves
    b by max(1 / (n + 1), 1 − decay)·(r − b), n the rewards before it."""

    type: Literal["running_mean"]
    """r − b, b the running mean of the rewards that the sample's prompt key had in earlier batches;
for a new key that of all rewards (SPO's value tracker, with a fixed decay). Each reward moves
b by max(1 / (n + 1), 1 − decay)·(r − b), n the rewards before it."""
    decay: float = 0.9
    """Weight of what b was; lower follows the policy faster, and is noisier."""


class SeriesNames(Model):
    """The metrics of a run."""

    run: str
    """The run's id."""
    names: list[NewestValue]
    """In alphabetical order."""


class SquaredValueLoss(Model):
    """½·max((V − R)², (clip(V, V_old − clip_range, V_old + clip_range) − R)²)."""

    clip_range: float | None = 0.2
    """Largest change of V from its value before the batch's updates; null: no limit."""
    type: Literal["mse"] = "mse"
    """½·max((V − R)², (clip(V, V_old − clip_range, V_old + clip_range) − R)²)."""


class StateData(Model):
    """A run's new state."""

    state: RunState
    """The state."""
    reason: str
    """Why, in words; may be empty."""


class StepData(Model):
    """A step's metrics, flat, by the names of docs/metrics.md."""

    step: int
    """The step."""
    bottleneck: str | None = None
    """The part that the step waited for most."""


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


class TrackerData(Model):
    """A tracker that gets the run's metrics."""

    tracker: str
    """Which tracker."""
    place: str
    """Where it shows the run."""


class UnreadableReference(Model):
    """A reference that a verifier cannot read."""

    row: int
    """The row's index."""
    reason: str
    """Why."""


class ValidationSet(Model):
    """A dataset to validate on; its name alone is enough."""

    dataset: str
    """Name or id of an uploaded dataset."""
    rows: int | None = None
    """At most this many of its rows, evenly spaced; default: `validation.rows`."""


class VerifierPage(Model):
    """A page of verifiers."""

    verifiers: list[VerifierInfo]
    """By name."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class WorkerList(Model):
    """A page of the workers whose heartbeat has not lapsed, by id."""

    workers: list[WorkerRecord]
    """Each as of its last heartbeat."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class AdaptiveBeta(Model):
    """After each batch of n samples, beta grows by the factor 1 + clip(KL / target − 1, −0.2, 0.2)
    · n / horizon (Ziegler et al. 2019)."""

    target: float = 6.0
    """The KL that beta steers to, in nats."""
    per: Literal["sample", "token"] = "sample"
    """How that KL is averaged. `sample`: the mean over samples of their summed KL. `token`: the
mean over all tokens in the loss (AReaL)."""
    horizon: float = 10000
    """Samples until beta has followed; larger is slower."""


class AverageNormalisation(Model):
    """Mean and deviation of all returns so far."""

    eps: float = 1e-05
    """Least variance."""
    clip: float | None = None
    """Clip the returns that the critic learns to ± this many deviations from the mean (AReaL: 5).
It then never learns the full value of a success that is rarer: with rewards of two values, 5
clips successes below 3.8 %. Default: no clip."""
    type: Literal["average"]
    """Mean and deviation of all returns so far."""


class Changed(Model):
    """A row on which the two differ: the share of its answers that are correct, or mean reward."""

    row: int
    """Index of the dataset row."""
    value: float
    """The value of this evaluation."""
    other: float
    """The value of the other evaluation."""


class CheckpointData(Model):
    """A checkpoint that is whole."""

    step: int
    """The step that it was made after."""
    directory: str
    """Relative to the data volume."""
    deleted: list[str] = []
    """Names of older checkpoints that were deleted for it."""


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


class Component(Model):
    """A dataset, and how much of an epoch it makes up."""

    dataset: str
    """Name or id of an uploaded dataset."""
    repeats: float | None = None
    """How often each of its rows comes in an epoch, e.g. 3, or 0.5 for every other row; default:
once."""
    weight: float | None = None
    """Its share of an epoch, in proportion to the weights of the other datasets, instead of
`repeats`. An epoch then has as many rows as all datasets have together."""


class DPO(Model):
    """Direct preference optimisation (Rafailov et al. 2023): of two answers to a prompt, the
    `chosen` one becomes more likely than the `rejected` one. The reference is the model that the
    run starts from. `data.train_on` has no effect: the answers alone are in the loss."""

    type: Literal["dpo"]
    """Direct preference optimisation (Rafailov et al. 2023): of two answers to a prompt, the
`chosen` one becomes more likely than the `rejected` one. The reference is the model that the
run starts from. `data.train_on` has no effect: the answers alone are in the loss."""
    beta: float = 0.1
    """How strongly a preference counts against the distance from the reference: the lower, the
further the policy goes."""
    label_smoothing: float = 0.0
    """Share of the pairs whose preference is taken to be the wrong way round (conservative DPO)."""


class DPPOLoss(Model):
    """−keep·A·r + tau·(log r)², r = π/μ; keep is 0 where A > 0 and π − μ > delta, or A < 0 and
    π − μ < −delta, else 1 (DPPO). Takes no correction."""

    type: Literal["dppo"]
    """−keep·A·r + tau·(log r)², r = π/μ; keep is 0 where A > 0 and π − μ > delta, or A < 0 and
π − μ < −delta, else 1 (DPPO). Takes no correction."""
    delta: float = 0.2
    """Largest move of a token's probability in the direction of its advantage."""
    tau: float = 0.001
    """Weight of the pull towards the sampler."""


class DatasetPreview(Model):
    """Some rows."""

    rows: list[PreviewRow]
    """In their order."""
    total: int
    """Rows of the dataset."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class Deleted(Model):
    """What was deleted."""

    id: str
    """Its name."""
    object: str
    """`response` or `conversation.deleted`."""
    deleted: bool = True
    """True."""


class DeletedData(Model):
    """Files that a setting of the gateway has deleted after the run's end."""

    checkpoints: list[str]
    """Names of the checkpoints, which may be none."""
    rollouts: bool
    """Whether its rollouts were deleted."""
    bytes: int
    """Bytes that are free now, with those of weight versions."""


class DeletedFile(Model):
    """A file that is gone."""

    id: str
    """Its id."""
    object: Literal["file"] = "file"
    """`file`."""
    deleted: bool = True
    """True."""


class DeletedOpenAIModel(Model):
    """A model that is gone."""

    id: str
    """Its name."""
    object: Literal["model"] = "model"
    """`model`."""
    deleted: bool = True
    """`true`."""


class DeletedPermission(Model):
    """A permission that is gone."""

    id: str
    """Its id."""
    object: Literal["checkpoint.permission"] = "checkpoint.permission"
    """`checkpoint.permission`."""
    deleted: bool = True
    """`true`."""


class DynamicSampling(Model):
    """Filters groups whose trained samples all have the same reward, and groups of prompts that
    are too hard or too easy (DAPO). They do not count towards a batch."""

    low: float | None = None
    """Also filter groups with a mean reward below this (too hard)."""
    high: float | None = None
    """Also filter groups with a mean reward above this (too easy)."""
    max_filtered: int = 10
    """The run fails when more than max_filtered · `prompts_per_step` groups are filtered for one
batch."""


class EMAReference(Model):
    """After each step, reference + rate · (policy − reference), weight by weight (AReaL)."""

    path: str | None = None
    """The model that the reference is at first: a folder, a hub name, or `run:RUN`, with the
policy's tokenizer; `ema` and `refresh` also need the policy's architecture. Default: the model
that the run started from."""
    type: Literal["ema"]
    """After each step, reference + rate · (policy − reference), weight by weight (AReaL)."""
    rate: float
    """Share of the difference that is added. AReaL calls it `ref_ema_eta`."""


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


class GSPOLoss(Model):
    """The loss of ppo, with s·π/sg(π) for ρ, s = sg(exp(mean of log ρ over the sequence))
    (GSPO)."""

    type: Literal["gspo"]
    """The loss of ppo, with s·π/sg(π) for ρ, s = sg(exp(mean of log ρ over the sequence))
(GSPO)."""
    epsilon_low: float = 0.0003
    """Lower clip of the sequence ratio."""
    epsilon_high: float = 0.0004
    """Upper clip of the sequence ratio."""


class GraderToRun(Model):
    """A grader object, and an answer to grade."""

    grader: Any = None
    """The grader object."""
    model_sample: Any = None
    """The answer: `sample.output_text`."""
    item: Any = None
    """The fields of `item`."""


class HuberValueLoss(Model):
    """Like mse, but errors d beyond delta count delta·(|d| − delta/2) instead of ½d²."""

    clip_range: float | None = 0.2
    """Largest change of V from its value before the batch's updates; null: no limit."""
    type: Literal["huber"]
    """Like mse, but errors d beyond delta count delta·(|d| − delta/2) instead of ½d²."""
    delta: float = 10.0
    """Errors above this count linearly."""


class JobEventList(Model):
    """A page of events, newest first."""

    object: Literal["list"] = "list"
    """`list`."""
    data: list[JobEvent]
    """Newest first."""
    has_more: bool
    """Whether there is another page."""


class JobFailure(Model):
    """Why a job has failed."""

    code: str
    """The kind of error, for programs."""
    message: str
    """What went wrong."""
    param: str | None
    """The field at fault."""


class JobList(Model):
    """A page of jobs, newest first."""

    object: Literal["list"] = "list"
    """`list`."""
    data: list[FineTuningJob]
    """Newest first."""
    has_more: bool
    """Whether there is another page."""


class LeasedSession(Model):
    """One session, for one episode of an agent."""

    id: str
    """Its name."""
    base_url: str
    """What an OpenAI client takes as its base URL."""
    key: str
    """What it takes as its key. It permits this session's calls, and ends with it."""


class LengthBucket(Model):
    """Rows of similar length."""

    start: int
    """The shortest length of the bucket."""
    end: int
    """The longest one."""
    rows: int
    """Rows between these lengths, which count as inside."""


class LoRA(Model):
    """Adapters (Hu et al. 2021): a layer W·x becomes W·x + alpha / rank · B·A·x. Only A and B are
    trained, published and saved in checkpoints."""

    rank: int = 16
    """Rows of A and columns of B. vLLM serves at most 512."""
    alpha: float = 32.0
    """Scale of the adapters, before division by `rank`."""
    targets: list[str] | None = None
    """Linear layers with adapters, by the ends of their names, e.g. [q_proj, v_proj]; default: all
except the output head."""


class LogPage(Model):
    """A page of a log."""

    logs: list[LogLine]
    """Oldest first."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""
    later: str
    """To follow the log, send this as `cursor` after a moment: lines that come later stand behind it."""


class MappedRow(Model):
    """A row of a dataset, made of a row of a file."""

    prompt: str | list[dict[str, Any]]
    """Text, or chat messages."""
    answer: Any
    """The verifier's reference."""
    columns: dict[str, Any]
    """The columns that are neither."""


class ModelEvaluation(Model):
    """An evaluation of a model: its run and its progress."""

    run: RunSummary
    """Its run, of zero steps; its id names the evaluation."""
    model: str
    """What is evaluated, as `model.path`."""
    evaluation: EvaluationRecord | None
    """Its progress, and once it is done its figures. Null: it has not begun."""


class OwnEpisode(Model):
    """A class that an installed package has as an entry point of the group `headrace.episodes`."""

    type: Literal["own"]
    """A class that an installed package has as an entry point of the group `headrace.episodes`."""
    name: str
    """The entry point's name."""
    options: dict[str, Any] = {}
    """Keyword arguments for the class."""


class ProblemItem(Model):
    """One thing that is wrong."""

    path: str
    """Key path, e.g. `training.max_steps`; empty: the whole."""
    message: str
    """What is wrong there, and the way out."""
    item: str | None = None
    """The id of the item it is about, where the request has items."""


class Prompt(Model):
    """One row to add."""

    prompt: str | list[dict[str, Any]]
    """Text, or chat messages."""
    answer: Any = None
    """The verifier's reference."""
    columns: dict[str, Any] = {}
    """Anything else that verifiers need of the row."""


class RefreshReference(Model):
    """A copy of the policy, refreshed every `every` steps."""

    path: str | None = None
    """The model that the reference is at first: a folder, a hub name, or `run:RUN`, with the
policy's tokenizer; `ema` and `refresh` also need the policy's architecture. Default: the model
that the run started from."""
    type: Literal["refresh"]
    """A copy of the policy, refreshed every `every` steps."""
    every: int
    """Steps between refreshes."""


class Remark(Model):
    """A warning or an error."""

    seconds_ago: float
    """How long ago."""
    source: str
    """`run`, or the worker that reported it."""
    text: str
    """Its text."""


class RewardAnswer(Model):
    """The reward that counts: the first one of the session."""

    reward: float | None
    """Null: there is none, and it is not trained."""
    components: dict[str, float]
    """Its parts by name."""
    error: str
    """Why there is none."""


class RewardRequest(Model):
    """The reward of a session."""

    reward: Any = None
    """A number; null with an `error`."""
    components: Any = None
    """Numbers by name; without `reward`, it is their sum."""
    error: Any = None
    """Why there is no reward: the session is not trained."""


class Router(Model):
    """Only for models with experts; others accept the defaults and 0 alone."""

    aux_loss: float | None = None
    """Weight of the load-balancing loss; null: the model's own (`router_aux_loss_coef` in its
config); 0: none. Costs one more forward pass, unless routing is replayed."""
    z_loss: float | None = None
    """Weight of the router z-loss, the mean of logsumexp(router logits)²; null: the model's own
(`router_z_loss_coef`, which few have); 0: none."""
    replay: bool = False
    """vLLM records the experts of each token, and the learner uses the same ones. Costs layers ×
experts per token bytes a token on the wire, twice that beyond 256 experts."""


class RowOverSteps(Model):
    """A row of the set."""

    row: int
    """Index of the dataset row."""
    category: str | None
    """Its category."""
    values: list[float | None]
    """Its value at each of `steps`; null where it has no answer."""


class RunEvaluations(Model):
    """A page of the evaluations of a run."""

    run: str
    """The run's id."""
    evaluations: list[EvaluationRecord]
    """The newest step first; of one step in the order in which they were due."""
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


class SAPOLoss(Model):
    """−(4/τ)·σ(τ(ρ − 1))·A: the gradient fades smoothly as ρ leaves 1 (SAPO)."""

    type: Literal["sapo"]
    """−(4/τ)·σ(τ(ρ − 1))·A: the gradient fades smoothly as ρ leaves 1 (SAPO)."""
    tau_positive: float = 1.0
    """τ for A > 0."""
    tau_negative: float = 1.05
    """τ for A ≤ 0; a larger τ fades faster."""


class SequencePPOLoss(Model):
    """The loss of ppo, with exp(Σ log ρ over the sequence) for ρ, on each of its tokens (minimind).
    Made for aggregation `sequence_mean`: others give longer sequences more weight."""

    type: Literal["sequence_ppo"]
    """The loss of ppo, with exp(Σ log ρ over the sequence) for ρ, on each of its tokens (minimind).
Made for aggregation `sequence_mean`: others give longer sequences more weight."""
    epsilon_low: float = 0.1
    """Lower clip of the sequence ratio."""
    epsilon_high: float = 0.1
    """Upper clip of the sequence ratio."""


class SideCalls(Model):
    """Calls of a session that are answered and not trained, such as a call for a conversation's
    title. A call that matches any rule here is a side call."""

    models: list[str] = []
    """Calls whose `model` is in this list are side calls. Many agents have an option for the model
of small tasks; other calls may name any model."""
    max_tokens: int | None = None
    """Calls that ask for at most this many tokens (`max_tokens` or `max_completion_tokens`) are
side calls."""
    first_message: str = ""
    """Calls whose first message contains this text are side calls. With '' this rule matches no
call."""


class StepSubmission(Model):
    """One step of a chain: a run."""

    name: str
    """Unique in the chain. Small letters, digits, `-` and `_`."""
    recipe: str | None = None
    """A name that `GET /v1/recipes` lists."""
    config: RunConfig | dict[str, Any] | None = None
    """As in `POST /v1/runs`. `model.path` may be `step:NAME`, the last checkpoint of an earlier step, `step:NAME@best`, the one with the best validation, or `step:NAME@20`, that of step 20. Without `model.path` a step starts from the one before."""


class Teacher(Model):
    """The model whose log-probabilities the policy learns from. It has to know the same tokens."""

    path: str | None = None
    """A folder, a hub name, or `run:RUN`, as for `model.path`. The learner loads this model in
addition to the policy; `training.offload` and `placement` can move it to another place."""
    endpoint: str | None = None
    """A vLLM server, instead of `path`, by the name that the reward service gives it
(`--teachers`). The server scores answers while other answers are sampled."""
    model: str | None = None
    """With `endpoint`: the server's name of the model. null: the server's only model."""


class TokenSpan(Model):
    """Tokens of a completion that have one origin."""

    start: int
    """Its first token."""
    end: int
    """The token after its last one."""
    version: int | None
    """The policy version that sampled these tokens. Null: the policy did not sample them: output of a tool, a user's turn, or tokens that were forced."""


class TruncateCorrection(Model):
    """Weight min(w, cap) on each token's loss (truncated importance sampling)."""

    type: Literal["truncate"]
    """Weight min(w, cap) on each token's loss (truncated importance sampling)."""
    cap: float = 2.0
    """Largest weight."""
    level: Literal["token", "sequence"] = "token"
    """One weight per token, or the geometric mean per sequence."""


class UploadRequest(Model):
    """The body of `POST /v1/uploads`."""

    name: str
    """The file's name."""
    bytes: int
    """Its size."""
    fingerprint: str | None = None
    """Text that tells this file from others of its name and size, e.g. a checksum. The same file then gets the same upload again, with the bytes that have arrived."""


class WeightsAndBiases(Model):
    """A run of Weights & Biases with the id and the name of this run."""

    project: str = "headrace"
    """The project."""
    entity: str | None = None
    """User or team that the project belongs to. Default: that of the installation's key."""
    tags: list[str] = []
    """Tags of the run there."""


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


class AnthropicModels(Model):
    """A page of models as Anthropic's API lists them."""

    data: list[AnthropicModel]
    """The models."""
    has_more: bool
    """Whether there is another page."""
    first_id: str | None
    """The first one's id."""
    last_id: str | None
    """The last one's id."""


class CISPOLoss(Model):
    """−sg(clip(ρ, 1 − epsilon_low, 1 + epsilon_high))·A·log π (MiniMax-M1)."""

    type: Literal["cispo"]
    """−sg(clip(ρ, 1 − epsilon_low, 1 + epsilon_high))·A·log π (MiniMax-M1)."""
    epsilon_low: float = 1.0
    """Lower clip of the weight; 1 means none."""
    epsilon_high: float = 0.28
    """Upper clip of the weight."""
    absolute_cap: float | None = None
    """Use min(ρ, absolute_cap) as the weight, and neither epsilon."""


class ConversationAnswer(Model):
    """A conversation as OpenAI's API gives it."""

    id: str
    """Its name."""
    object: Literal["conversation"]
    """`conversation`."""
    created_at: int
    """Unix time."""
    metadata: dict[str, Any]
    """Texts by name."""


class CountRequest(Model):
    """A request whose tokens are counted."""

    model: Any = None
    """In a session it is ignored: there is one."""
    messages: Any = None
    """The conversation so far, and new messages: texts, calls, their results."""
    system: Any = None
    """A text, or blocks of text."""
    tools: Any = None
    """Tools with an `input_schema` that the policy may call."""


class DatasetFilter(Model):
    """Filters prompts that stay too hard or too easy out of later epochs (AReaL)."""

    low: float | None = None
    """A prompt is too hard if the mean reward of its samples, before shaping, is below."""
    high: float | None = None
    """It is too easy if that mean is above."""
    passes: int = 2
    """Times in a row that a prompt must be so."""
    max_share: float = 0.1
    """At most this share of the dataset is filtered, first come, first served."""


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


class EditData(Model):
    """A change of the run: on request (`by`, `changes`), or as its learner took it (`step`,
    `values`)."""

    by: str | None = None
    """The name of the key that changed it."""
    changes: dict[str, ChangedValue] | None = None
    """The changes, by key."""
    step: int | None = None
    """The first step that has the values."""
    values: dict[str, Any] | None = None
    """The values from then on, by key."""


class ExponentialNormalisation(Model):
    """Exponential moving mean and deviation of the returns."""

    eps: float = 1e-05
    """Least variance."""
    clip: float | None = None
    """Clip the returns that the critic learns to ± this many deviations from the mean (AReaL: 5).
It then never learns the full value of a success that is rarer: with rewards of two values, 5
clips successes below 3.8 %. Default: no clip."""
    type: Literal["exponential"] = "exponential"
    """Exponential moving mean and deviation of the returns."""
    beta: float = 0.99995
    """Decay per batch."""


class FineTuningPart(Model):
    """A part of an upload."""

    id: str
    """Its id, for `part_ids`."""
    object: Literal["upload.part"] = "upload.part"
    """`upload.part`."""
    created_at: int
    """Unix time."""
    upload_id: str
    """The upload's id."""


class GlobalWhiten(Model):
    """(G − mean G) / (std G + 1e-6) over the tokens of the whole batch, G the discounted return:
    gamma to the number of tokens that follow, times r (REINFORCE++). With rewards for each token it
    is GAE without a critic (AReaL's disable_value)."""

    type: Literal["global_whiten"]
    """(G − mean G) / (std G + 1e-6) over the tokens of the whole batch, G the discounted return:
gamma to the number of tokens that follow, times r (REINFORCE++). With rewards for each token it
is GAE without a critic (AReaL's disable_value)."""
    gamma: float = 1.0
    """Discount per token in the loss."""
    baseline: bool = False
    """Subtract the group's mean from r first (REINFORCE++-baseline)."""
    whiten: Literal["batch", "group"] = "batch"
    """The tokens that mean and deviation are of: those of the whole `batch`, or those of the
samples of each prompt, its `group` (AReaL's group_adv_norm)."""


class GraderRunAnswer(Model):
    """The outcome of a grader."""

    reward: float
    """The score; 0 with an error."""
    metadata: GraderMetadata
    """How it was run."""
    sub_rewards: dict[str, Any]
    """Scores of the graders of a `multi`."""
    model_grader_token_usage_per_model: dict[str, Any]
    """Tokens by model."""


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


class MaskCorrection(Model):
    """Weight w where low ≤ w ≤ high, else 0 (IcePop)."""

    type: Literal["mask"]
    """Weight w where low ≤ w ≤ high, else 0 (IcePop)."""
    low: float = 0.5
    """Tokens with a smaller weight get weight 0."""
    high: float = 5.0
    """Tokens with a larger weight get weight 0."""
    level: Literal["token", "sequence"] = "token"
    """One weight per token, or the geometric mean per sequence."""


class NewKey(Model):
    """The name of a new key, and what it may do."""

    name: str
    """For people: who or what will use it."""
    role: Literal["read", "submit", "admin"] = "admin"
    """`read`: sees everything, changes nothing. `submit`: also uploads, submits, changes and deletes. `admin`: also manages keys, and serves workers."""
    surface: Literal["all", "openai"] = "all"
    """`openai`: it reaches only `/openai/v1/` and the calls that ask a model."""
    project: str | None = None
    """It sees this project's files, jobs and fine-tuned models alone. What is made with it belongs to the project. Needs `surface: openai`: the rest of the API has no projects."""


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


class OpenAIModel(Model):
    """A model."""

    id: str
    """Its name: `model` of a job or of a call."""
    object: Literal["model"] = "model"
    """`model`."""
    created: int
    """Unix time."""
    owned_by: str
    """The project of its run; `headrace` for a model without project."""


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


class PPOLoss(Model):
    """−min(ρA, clip(ρ, 1 − epsilon_low, 1 + epsilon_high)·A) (PPO)."""

    type: Literal["ppo"] = "ppo"
    """−min(ρA, clip(ρ, 1 − epsilon_low, 1 + epsilon_high)·A) (PPO)."""
    epsilon_low: float = 0.2
    """The ratio is clipped below at 1 − epsilon_low."""
    epsilon_high: float = 0.2
    """The ratio is clipped above at 1 + epsilon_high."""
    dual_clip: float | None = None
    """For A < 0 the loss is at most −dual_clip · A."""


class Packing(Model):
    """Fill rows of `data.max_seq_len` tokens with conversations that do not see each other, by best
    fit: the longest one that still fits whole comes next. A step then has a number of tokens."""

    tokens_per_step: int
    """Tokens of each step, padding included: a multiple of `data.max_seq_len`."""
    when_none_fits: Literal["pad", "crop"] = "pad"
    """The rest of a row into which no waiting conversation fits. `pad` leaves it empty, which costs
no computation. `crop` fills it with the beginning of a conversation, whose end is lost."""
    crop: Literal["shortest", "first"] = "shortest"
    """The conversation that `when_none_fits: crop` cuts. `shortest`: the shortest, which loses
least. `first`: the one that has waited longest."""
    buffer: int = 1000
    """Conversations among which the one that fits best is chosen."""


class Permission(Model):
    """A project's permission for a model."""

    id: str
    """Its id."""
    object: Literal["checkpoint.permission"] = "checkpoint.permission"
    """`checkpoint.permission`."""
    created_at: int
    """Unix time."""
    project_id: str
    """The project."""


class Placement(Model):
    """The device of each."""

    reference: str = "same"
    """Device of the reference model, which the KL term compares the policy with."""
    lagged: str = "same"
    """Device of the lagged copy of the policy (`algorithm.proximal` of type `lagged`)."""
    critic: str = "same"
    """Device of the critic and of its optimizer's state."""
    teacher: str = "same"
    """Device of the teacher."""


class PolicyCountRequest(Model):
    """A request whose tokens are counted, to a run's policy."""

    model: Any = None
    """`RUN` or `RUN@latest` for the newest version of a run, `RUN@STEP` for the version after so many steps: one that a worker serves while the run trains, or a kept checkpoint. RUN is an id, the beginning of one, or a name. Also `ft:BASE:ORG:SUFFIX:ID`."""
    messages: Any = None
    """The conversation so far, and new messages: texts, calls, their results."""
    system: Any = None
    """A text, or blocks of text."""
    tools: Any = None
    """Tools with an `input_schema` that the policy may call."""


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


class RewardKL(Model):
    """Adds −beta·(log π_prox − log π_ref) to the reward of each token, fixed during the batch.
    Needs an advantage with rewards per token (`global_whiten`, `gae`)."""

    type: Literal["k1_in_reward"]
    """Adds −beta·(log π_prox − log π_ref) to the reward of each token, fixed during the batch.
Needs an advantage with rewards per token (`global_whiten`, `gae`)."""
    beta: float = 0.01
    """Weight of the term."""
    adaptive: AdaptiveBeta | None = None
    """Adapt `beta` to the KL; default: beta is constant."""
    reference: FrozenReference | EMAReference | RefreshReference = Field(
        default_factory=lambda: FrozenReference()
    )
    """The model π_ref. Default: `frozen`."""


class RowFindings(Model):
    """Counts over all rows of a dataset."""

    prompts: TextLengths
    """The prompts; of a chat, all contents together."""
    answers: TextLengths | None
    """The references. Null: no row has one."""
    duplicates: Repetitions
    """Rows with prompt and answer of an earlier row."""
    other_answers: Repetitions
    """Rows with the prompt of an earlier row, and an answer that no earlier row has for it."""


class SFTSchedule(Model):
    """Learning rate of a supervised run, as a share of its peak."""

    type: Literal["constant", "linear", "cosine", "wsd"] = "wsd"
    """constant; linear to the floor; cosine to the floor; wsd: flat, then linear to the floor."""
    warmup_steps: int = 0
    """Steps (batches, however many optimizer updates each has) of linear warm-up."""
    floor: float = 0.0
    """Share of the peak at the end."""
    decay_share: float = 0.2
    """wsd: share of the steps that the decay takes."""


class SamplePrice(Model):
    """What the samples of a run cost, by the GPUs that work on it."""

    per_1000_samples: float
    """Price of 1,000 trained samples."""
    per_hour: float
    """Price of an hour of these GPUs."""
    currency: str
    """As the operator writes it; may be empty."""
    gpus: dict[str, int]
    """How many GPUs, by their workers' class, or else by their name."""


class Schedule(Model):
    """Learning rate over the run, as a share of its peak."""

    type: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """constant; linear to the floor; cosine to the floor; wsd: flat, then linear to the floor."""
    warmup_steps: int = 0
    """Steps (batches, however many optimizer updates each has) of linear warm-up."""
    floor: float = 0.0
    """Share of the peak at the end."""
    decay_share: float = 0.2
    """wsd: share of the steps that the decay takes."""


class Tracking(Model):
    """Trackers by name. Each gets every metric of every step and evaluation, under the names of
    docs/metrics.md. The installation carries them. Its operator says which trackers runs may name
    (`HEADRACE_TRACKERS`), and holds their keys and addresses. A tracker that is away slows no
    run."""

    tensorboard: TensorBoard | None = None
    """Write TensorBoard's event files: `tensorboard: true`."""
    wandb: WeightsAndBiases | None = None
    """Log to Weights & Biases: `wandb: {project: mine}`."""
    mlflow: MLflow | None = None
    """Log to MLflow: `mlflow: {experiment: mine}`."""
    trackio: Trackio | None = None
    """Log to Trackio: `trackio: {project: mine}`."""


class Upload(Model):
    """A file that arrives in parts."""

    id: str
    """32 hex digits."""
    name: str
    """The file's name."""
    bytes: int
    """Its size."""
    received: int
    """Bytes that have arrived: where the next part begins."""


class WorkerData(Model):
    """A rollout worker's state in the run."""

    worker: str
    """The worker's id."""
    state: Literal["joined", "starting", "ready", "left"]
    """`starting`: its vLLM starts. `left`: on request. Each at most once a run."""
    detail: str
    """More, in words."""
    usual_seconds: float | None = None
    """How long such a start took on its host, if it was measured."""


class AnthropicModel(Model):
    """A model as Anthropic's API lists it."""

    id: str
    """Its name."""
    type: Literal["model"] = "model"
    """`model`."""
    display_name: str
    """Its name."""
    created_at: str
    """When its run was submitted."""
    lifecycle: Literal["active"] = "active"
    """`active`."""


class CheckpointEvent(Model):
    """A checkpoint is written."""

    run: str | None = None
    """The run's id; only `GET /v1/stream` has it."""
    id: str
    """Orders events within the run; send it as `Last-Event-ID` to go on after it."""
    time: float
    """Unix seconds, by the sender's clock."""
    kind: Literal["checkpoint"]
    """The kind of event."""
    data: CheckpointData
    """Where it is."""


class CheckpointPage(Model):
    """A page of checkpoints, newest first."""

    object: Literal["list"] = "list"
    """`list`."""
    data: list[JobCheckpoint]
    """Newest first."""
    first_id: str | None
    """The first checkpoint's id."""
    last_id: str | None
    """The last checkpoint's id: `after` of the next page."""
    has_more: bool
    """Whether there is another page."""


class DeletedEvent(Model):
    """Files of the run were deleted after its end."""

    run: str | None = None
    """The run's id; only `GET /v1/stream` has it."""
    id: str
    """Orders events within the run; send it as `Last-Event-ID` to go on after it."""
    time: float
    """Unix seconds, by the sender's clock."""
    kind: Literal["deleted"]
    """The kind of event."""
    data: DeletedData
    """Which files."""


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


class EditEvent(Model):
    """The run was changed on request, or its learner has taken a change."""

    run: str | None = None
    """The run's id; only `GET /v1/stream` has it."""
    id: str
    """Orders events within the run; send it as `Last-Event-ID` to go on after it."""
    time: float
    """Unix seconds, by the sender's clock."""
    kind: Literal["edit"]
    """The kind of event."""
    data: EditData
    """The change."""


class EvaluationEvent(Model):
    """An evaluation has ended."""

    run: str | None = None
    """The run's id; only `GET /v1/stream` has it."""
    id: str
    """Orders events within the run; send it as `Last-Event-ID` to go on after it."""
    time: float
    """Unix seconds, by the sender's clock."""
    kind: Literal["evaluation"]
    """The kind of event."""
    data: EvaluationData
    """Its figures."""


class FileList(Model):
    """A page of files."""

    object: Literal["list"] = "list"
    """`list`."""
    data: list[FineTuningFile]
    """By time."""
    first_id: str
    """The first file's id; empty without files."""
    last_id: str
    """The last file's id: `after` of the next page."""
    has_more: bool
    """Whether there is another page."""


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


class Items(Model):
    """Items of a response or of a conversation."""

    object: Literal["list"] = "list"
    """`list`."""
    data: list[dict[str, Any]]
    """All of them."""
    first_id: str = ""
    """The first one's id."""
    last_id: str = ""
    """The last one's id."""
    has_more: bool = False
    """False: these are all."""


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


class NewUpload(Model):
    """A file that will come in parts."""

    filename: Any = None
    """The file's name."""
    purpose: Any = None
    """`fine-tune`."""
    bytes: Any = None
    """The size of the whole file."""
    mime_type: Any = None
    """Not used."""
    expires_after: Any = None
    """When the file expires."""


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


class PausedEvent(Model):
    """A user asked the run to pause."""

    run: str | None = None
    """The run's id; only `GET /v1/stream` has it."""
    id: str
    """Orders events within the run; send it as `Last-Event-ID` to go on after it."""
    time: float
    """Unix seconds, by the sender's clock."""
    kind: Literal["paused"]
    """The kind of event."""
    data: RequestData
    """Who asked."""


class PermissionPage(Model):
    """A page of permissions."""

    object: Literal["list"] = "list"
    """`list`."""
    data: list[Permission]
    """By time."""
    first_id: str | None
    """The first permission's id."""
    last_id: str | None
    """The last permission's id: `after` of the next page."""
    has_more: bool
    """Whether there is another page."""


class PretrainedModel(Model):
    """A model folder in Hugging Face layout, a hub name, or an earlier run's last checkpoint."""

    source: Literal["pretrained"] = "pretrained"
    """A model folder in Hugging Face layout, a hub name, or an earlier run's last checkpoint."""
    path: str
    """A folder, a hub name (`org/name`), or `run:RUN` for the checkpoint of another run.
`run:RUN@STEP` selects the checkpoint of a step."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the forward pass and of published weights; optimizers work on float32. auto: on a GPU
the model's own (bfloat16 for float16), on a CPU float32; a run that resumes keeps its type."""
    trust_remote_code: bool = False
    """Run Python code that the model's folder ships. Read that code first. Refused unless the
operator allows it (HEADRACE_TRUST_REMOTE_CODE)."""
    lora: LoRA | None = None
    """Train adapters instead of the model's own weights; default: train all weights."""


class ProgressData(Model):
    """A supervised step's metrics, flat, and how far the run is."""

    step: int
    """The step."""
    bottleneck: str | None = None
    """The part that the step waited for most."""
    done: int
    """Units that are done."""
    total: int
    """All units."""
    unit: str
    """What is counted."""


class ProgressEvent(Model):
    """A step of a supervised run is trained."""

    run: str | None = None
    """The run's id; only `GET /v1/stream` has it."""
    id: str
    """Orders events within the run; send it as `Last-Event-ID` to go on after it."""
    time: float
    """Unix seconds, by the sender's clock."""
    kind: Literal["progress"]
    """The kind of event."""
    data: ProgressData
    """How far the run is, and the step's metrics."""


class ReferenceKL(Model):
    """beta · KL to the reference, in the loss; with d = log π − log π_ref: k1 d, k2 d²/2, k3
    e^(−d) + d − 1, k3+ the value of k3 with the gradient of k2."""

    type: Literal["k1", "k2", "k3", "k3+"]
    """beta · KL to the reference, in the loss; with d = log π − log π_ref: k1 d, k2 d²/2, k3
e^(−d) + d − 1, k3+ the value of k3 with the gradient of k2."""
    beta: float = 0.04
    """Weight of the term."""
    per: Literal["token", "sample"] = "token"
    """`token`: the term is part of each token's loss, and aggregated with it. `sample`: it is
summed over each sample, and the mean over samples is added to the loss (minimind)."""
    adaptive: AdaptiveBeta | None = None
    """Adapt `beta` to the KL; default: beta is constant."""
    reference: FrozenReference | EMAReference | RefreshReference = Field(
        default_factory=lambda: FrozenReference()
    )
    """The model π_ref. Default: `frozen`."""


class ResumedEvent(Model):
    """A user let the paused run go on."""

    run: str | None = None
    """The run's id; only `GET /v1/stream` has it."""
    id: str
    """Orders events within the run; send it as `Last-Event-ID` to go on after it."""
    time: float
    """Unix seconds, by the sender's clock."""
    kind: Literal["resumed"]
    """The kind of event."""
    data: RequestData
    """Who asked."""


class Rollouts(Model):
    """Answers that a run was trained on, the newest step first."""

    run: str
    """The run's id."""
    rollouts: list[RolloutSummary]
    """The answers; of a step by group."""
    damaged: list[str]
    """Files that cannot be read; answers in them are missing here."""
    none_because: str | None
    """Why there are no answers; null if there are some."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


class RowsOverSteps(Model):
    """A page of the rows of a held-out set over the steps of a run."""

    metric: Literal["accuracy", "reward"]
    """What values are: the share of a row's answers that are correct (`accuracy`), or its mean reward, if verifiers only rate."""
    steps: list[StepOfSet]
    """Ended evaluations of the set, oldest first: up to 40, the newest of which is the one asked for."""
    rows: list[RowOverSteps]
    """By number."""
    total: int
    """Rows that match."""
    next: str | None
    """`cursor` of the next page. Null: this is the last page."""


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


class StateEvent(Model):
    """The run's state has changed."""

    run: str | None = None
    """The run's id; only `GET /v1/stream` has it."""
    id: str
    """Orders events within the run; send it as `Last-Event-ID` to go on after it."""
    time: float
    """Unix seconds, by the sender's clock."""
    kind: Literal["state"]
    """The kind of event."""
    data: StateData
    """The state."""


class StepEvent(Model):
    """A step of a run that samples is trained."""

    run: str | None = None
    """The run's id; only `GET /v1/stream` has it."""
    id: str
    """Orders events within the run; send it as `Last-Event-ID` to go on after it."""
    time: float
    """Unix seconds, by the sender's clock."""
    kind: Literal["step"]
    """The kind of event."""
    data: StepData
    """Its metrics."""


class TokenLengths(Model):
    """How long rows are in a model's tokens."""

    model: str
    """The model."""
    rows: int
    """Rows that were counted, evenly chosen from a large dataset."""
    min: int
    """The shortest."""
    median: int
    """Half of the rows are no longer."""
    max: int
    """The longest."""


class TrackerEvent(Model):
    """The run's metrics are carried to a tracker."""

    run: str | None = None
    """The run's id; only `GET /v1/stream` has it."""
    id: str
    """Orders events within the run; send it as `Last-Event-ID` to go on after it."""
    time: float
    """Unix seconds, by the sender's clock."""
    kind: Literal["tracker"]
    """The kind of event."""
    data: TrackerData
    """The tracker."""


class WarningEvent(Model):
    """Something that a user should know."""

    run: str | None = None
    """The run's id; only `GET /v1/stream` has it."""
    id: str
    """Orders events within the run; send it as `Last-Event-ID` to go on after it."""
    time: float
    """Unix seconds, by the sender's clock."""
    kind: Literal["warning"]
    """The kind of event."""
    data: WarningData
    """The warning."""


class WorkerEvent(Model):
    """A worker has joined the run, starts, is ready, or has left."""

    run: str | None = None
    """The run's id; only `GET /v1/stream` has it."""
    id: str
    """Orders events within the run; send it as `Last-Event-ID` to go on after it."""
    time: float
    """Unix seconds, by the sender's clock."""
    kind: Literal["worker"]
    """The kind of event."""
    data: WorkerData
    """Which worker, and its state."""


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


class ApiKeyRecord(Model):
    """An API key, without the key."""

    id: str
    """8 hex digits."""
    name: str
    """For people: who or what uses it."""
    role: Literal["read", "submit", "admin"] = "admin"
    """`read` sees everything and changes nothing. `submit` also uploads, submits, changes, cancels and deletes. `admin` also manages keys, and is what workers need."""
    surface: Literal["all", "openai"] = "all"
    """`openai`: only `/openai/v1/` and the calls that ask a model. `all`: the API."""
    project: str | None = None
    """It sees this project's files, jobs and fine-tuned models alone. Null: those of all projects."""
    created: float
    """Unix time."""


class Calculator(Model):
    """The policy may call a calculator (nanochat): after `start`, an expression and `end` the
    result is inserted, between `output_start` and `output_end`, and sampling goes on. The result
    counts towards the answer's length, verifiers read it, and it is not trained. The calculator
    knows numbers, + - * / // ( ) and 'text'.count('t'); for anything else nothing is inserted."""

    type: Literal["calculator"]
    """The policy may call a calculator (nanochat): after `start`, an expression and `end` the
result is inserted, between `output_start` and `output_end`, and sampling goes on. The result
counts towards the answer's length, verifiers read it, and it is not trained. The calculator
knows numbers, + - * / // ( ) and 'text'.count('t'); for anything else nothing is inserted."""
    start: str = "<|python_start|>"
    """Text that begins a call."""
    end: str = "<|python_end|>"
    """Text that ends a call. Sampling stops at each one, even outside a call."""
    output_start: str = "<|output_start|>"
    """Text before the result."""
    output_end: str = "<|output_end|>"
    """Text after the result."""
    max_calls: int = 16
    """Calls per answer that get a result."""


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


class Critic(Model):
    """A value head on a second model, trained in the policy's minibatches and epochs."""

    path: str | None = None
    """The model it starts from: a folder, a hub name, or `run:RUN`, with the policy's tokenizer.
Default: the model that the policy started from. The head of a reward model is kept; a new head
returns 0."""
    optimizer: AdamW | AdamW8bit | MuonAdamW = Field(default_factory=lambda: AdamW())
    """Its optimizer; the learning rate follows the run's `schedule`. Default: `adamw`."""
    loss: SquaredValueLoss | HuberValueLoss = Field(default_factory=lambda: SquaredValueLoss())
    """Value loss, the mean over a minibatch's values. Default: `mse`."""
    loss_weight: float = 1.0
    """Multiplies the value loss. It matters for `max_grad_norm`, not for Adam's updates."""
    warmup_steps: int = 0
    """Steps at the start of the run that train the critic alone."""
    normalisation: ExponentialNormalisation | AverageNormalisation | None = None
    """Normalise the returns that the critic learns. Default: no."""


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


class JobMetrics(Model):
    """Metrics of a step, those that the method has."""

    step: int
    """The step."""
    train_loss: float | None = None
    """Loss of the step."""
    train_mean_reward: float | None = None
    """Mean reward of the step."""
    valid_loss: float | None = None
    """Loss on the validation file."""
    valid_mean_reward: float | None = None
    """Mean reward on that file."""
    full_valid_loss: float | None = None
    """As `valid_loss`."""


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


class Sessions(Model):
    """Agents outside Headrace lead the episodes: programs that speak the OpenAI API to the gateway,
    in a session for each completion (docs/agents.md). `sampling.max_tokens` then limits all tokens
    of each conversation of a session after its first prompt."""

    type: Literal["sessions"]
    """Agents outside Headrace lead the episodes: programs that speak the OpenAI API to the gateway,
in a session for each completion (docs/agents.md). `sampling.max_tokens` then limits all tokens
of each conversation of a session after its first prompt."""
    idle_seconds: float = 300
    """Seconds without a call after which the sessions of a group are lost and their task is leased
again. It replaces `rollout.lease_seconds` for sessions."""
    history: Literal["exact", "template"] = "exact"
    """The prompt of a later turn: `exact` is what was sampled and the new messages; `template` is
what the chat template makes of all messages, as outside training. Where the template changes
earlier answers (it drops their reasoning), the turn begins a branch. Both train what was
sampled."""
    scored: Literal["answer", "transcript"] = "answer"
    """The text that the run's verifiers read of a session without a sent reward. `answer`: the
session's last answer. `transcript`: the conversation that ends with that answer, from its first
answer on. It includes the messages in between and the chat template's text around them, without
special tokens."""
    max_turns: int = 256
    """Turns of a session, in all its conversations. A further call gets an empty answer that ends
with `length`, and the session is truncated."""
    side_calls: SideCalls = Field(default_factory=lambda: SideCalls())
    """Calls that are answered and not trained. Default: the defaults of its keys."""


class StepOfSet(Model):
    """An evaluation of the set, against the one before."""

    evaluation: str
    """Its id."""
    step: int
    """The step whose version answered."""
    value: float | None
    """Its mean over its rows."""
    better: int
    """Rows with a higher value than at the evaluation before."""
    worse: int
    """Rows with a lower value."""
    p: float | None
    """The probability of a division at least as uneven by chance: the exact sign test. Null for the first, and without a common row."""


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


class AdamW(Model):
    """Adam with decoupled weight decay."""

    eps: float = 1e-08
    """Added to Adam's denominator."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float | None = 1.0
    """Gradients are scaled down to this global norm; null: never."""
    in_backward: bool = False
    """Update each weight in the backward pass, as soon as its gradient is there, and free the
gradient. For one rank, or training.parallel fsdp, and minibatches of one micro-batch."""
    lr: float = 1e-06
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and second moments."""
    type: Literal["adamw"] = "adamw"
    """Adam with decoupled weight decay."""


class AdamW8bit(Model):
    """AdamW with moments of 8 bits, one scale per block of 256 (Dettmers et al. 2022, as in
    torchao): 2 bytes a weight instead of 8. Weights of fewer than 4,096 entries keep 32 bits."""

    eps: float = 1e-08
    """Added to Adam's denominator."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float | None = 1.0
    """Gradients are scaled down to this global norm; null: never."""
    in_backward: bool = False
    """Update each weight in the backward pass, as soon as its gradient is there, and free the
gradient. For one rank, or training.parallel fsdp, and minibatches of one micro-batch."""
    lr: float = 1e-06
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and second moments."""
    type: Literal["adamw_8bit"]
    """AdamW with moments of 8 bits, one scale per block of 256 (Dettmers et al. 2022, as in
torchao): 2 bytes a weight instead of 8. Weights of fewer than 4,096 entries keep 32 bits."""


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


class DatasetFindings(Model):
    """What the rows of a dataset are like."""

    dataset: str
    """Its name."""
    rows: int
    """Its rows."""
    state: Literal["counting", "counted", "failed"]
    """`counting`: a large dataset is read now, and `counts` is null; ask again."""
    counts: RowFindings | None
    """Counts over all rows."""
    references: list[ReadReferences]
    """What each verifier makes of the references: the dataset's own verifiers, and those that the request names."""
    tokens: TokenLengths | None
    """Lengths in tokens of the model that the request names: of prompts, as a run asks them."""
    problem: str | None
    """Why something was not counted."""


class EvaluationData(Model):
    """Figures of an evaluation, by the names of docs/metrics.md without `evaluation/`."""

    id: str
    """The evaluation's id."""
    step: int
    """The step after which it was asked for."""
    version: int
    """The policy's version."""
    name: str
    """The name of its rows' set."""
    rows: float | None = None
    """Rows that were answered."""
    reward: float | None = None
    """The mean reward."""
    accuracy: float | None = None
    """The share of correct answers, if a verifier says what is correct."""


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
    """Changes of the config, laid over RUN's key by key. Keys as in `RunConfig`."""
    pool: str | None = None
    """The learner and the workers that are to work on it. Default: those of RUN, so that the fork waits until RUN has ended."""
    priority: int = 0
    """Higher goes first."""
    tags: list[str] | None = None
    """Words to find it by. Default: RUN's."""
    notes: str | None = None
    """What people should know of it. Default: RUN's."""


class GAE(Model):
    """Σ over the tokens l from t on of (gamma·lambda)^(l−t)·δ_l, δ_t = r_t + gamma·V_{t+1} − V_t
    (generalised advantage estimation). Needs `critic`."""

    type: Literal["gae"]
    """Σ over the tokens l from t on of (gamma·lambda)^(l−t)·δ_l, δ_t = r_t + gamma·V_{t+1} − V_t
(generalised advantage estimation). Needs `critic`."""
    gamma: float = 1.0
    """Discount per token in the loss."""
    lambda_: float = Field(default=0.95, alias="lambda")
    """1: the return minus V, no bias; 0: δ alone, least variance."""
    whiten: Literal["batch", "group"] | Literal[False] = "batch"
    """(A − mean A) / (std A + 1e-6) over the tokens of the whole `batch` (which `true` means), or
over those of the samples of each prompt, its `group` (AReaL's group_adv_norm); `false`: not."""
    score_at: Literal["last", "end"] = "last"
    """The place that gets r: the `last` token in the loss; or the `end` after the completion's last
token (torchtune), so that the critic's V there takes part in the advantages and learns r. A
truncated completion has no end, and its last token gets r."""
    keep_mean: bool = False
    """Add mean A back after whitening (torchtune)."""
    bootstrap_truncated: bool = False
    """After the last token of a truncated completion take the critic's V, not 0."""


class GraderMetadata(Model):
    """How a grader was run."""

    name: str
    """The grader's name."""
    type: str
    """The grader's type."""
    errors: GraderErrors
    """What kept it from a score."""
    execution_time: float
    """Seconds."""
    scores: dict[str, Any]
    """Scores by grader."""
    token_usage: int | None
    """Tokens of the models that were asked."""
    sampled_model_name: str | None
    """The model that was asked, if it is one."""


class JobCheckpoint(Model):
    """A checkpoint of a job."""

    id: str
    """Its id."""
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    """`fine_tuning.job.checkpoint`."""
    created_at: int
    """Unix time."""
    fine_tuned_model_checkpoint: str
    """Its name as a model."""
    fine_tuning_job_id: str
    """The job."""
    step_number: int
    """The step that it was made after."""
    metrics: JobMetrics
    """Metrics of that step."""


class JobEvent(Model):
    """An event of a job."""

    id: str
    """Its id."""
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    """`fine_tuning.job.event`."""
    created_at: int
    """Unix time."""
    level: Literal["info", "warn", "error"]
    """`info`, `warn` or `error`."""
    message: str
    """What happened."""
    type: Literal["message", "metrics"]
    """`metrics`: `data` has numbers."""
    data: dict[str, Any]
    """Metrics of a step, or empty."""


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


class MadeKey(ApiKeyRecord):
    """A new key. Only this answer ever shows it."""

    key: str
    """To be sent as `Authorization: Bearer KEY`."""


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


class ReadReferences(Model):
    """What a verifier makes of the references of a dataset."""

    verifier: str
    """Its name."""
    state: Literal["counting", "counted", "failed"]
    """`counting`: it reads further ones; ask again."""
    rows: int
    """References that it has read."""
    unreadable: int
    """References that it cannot read. Answers to their rows have no reward."""
    examples: list[UnreadableReference]
    """The first of them."""
    remark: str = ""
    """What it finds odd in most of the others."""
    problem: str | None = None
    """Why it has not read all of them."""


class ResponsesAnswer(Model):
    """A response as OpenAI's API gives it, with all that it repeats of its request."""

    id: str
    """Its name."""
    object: Literal["response"]
    """`response`."""
    created_at: int
    """Unix time."""
    status: str
    """`completed` or `incomplete`."""
    model: str
    """The run."""
    output: list[dict[str, Any]]
    """Items: `reasoning`, `message`, and calls."""
    usage: dict[str, Any]
    """Tokens of prompt and answer."""


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


class RewardComponentInput(Model):
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


class SFTAdamW(Model):
    """Adam with decoupled weight decay."""

    eps: float = 1e-08
    """Added to Adam's denominator."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float | None = 1.0
    """Gradients are scaled down to this global norm; null: never."""
    in_backward: bool = False
    """Update each weight in the backward pass, as soon as its gradient is there, and free the
gradient. For one rank, or training.parallel fsdp, and minibatches of one micro-batch."""
    lr: float = 1e-05
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and second moments."""
    type: Literal["adamw"] = "adamw"
    """Adam with decoupled weight decay."""


class SFTAdamW8bit(Model):
    """AdamW with moments of 8 bits, one scale per block of 256 (Dettmers et al. 2022, as in
    torchao): 2 bytes a weight instead of 8. Weights of fewer than 4,096 entries keep 32 bits."""

    eps: float = 1e-08
    """Added to Adam's denominator."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float | None = 1.0
    """Gradients are scaled down to this global norm; null: never."""
    in_backward: bool = False
    """Update each weight in the backward pass, as soon as its gradient is there, and free the
gradient. For one rank, or training.parallel fsdp, and minibatches of one micro-batch."""
    lr: float = 1e-05
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and second moments."""
    type: Literal["adamw_8bit"]
    """AdamW with moments of 8 bits, one scale per block of 256 (Dettmers et al. 2022, as in
torchao): 2 bytes a weight instead of 8. Weights of fewer than 4,096 entries keep 32 bits."""


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


class Tools(Model):
    """The policy calls tools, in several turns: those of MCP servers, and Python in the reward
    service's sandbox (docs/environments.md). Results count towards `sampling.max_tokens`, and are
    not trained. Verifiers read the last answer."""

    type: Literal["tools"]
    """The policy calls tools, in several turns: those of MCP servers, and Python in the reward
service's sandbox (docs/environments.md). Results count towards `sampling.max_tokens`, and are
not trained. Verifiers read the last answer."""
    servers: list[str] = []
    """MCP servers that offer tools, by the names that the operator has given them
(`HEADRACE_MCP_SERVERS`)."""
    python: bool = False
    """Whether the tool `python` runs programs of the policy, in the reward service's sandbox."""
    max_turns: int = 8
    """The most answers of an episode. An episode that still calls tools after them is truncated."""
    result_tokens: int = 512
    """The longest result of a call, in tokens. A longer result is cut, with a note for the
policy."""
    call_seconds: float = 60
    """Seconds that a call may take. After them the sample is not trained. A program of the tool
`python` is ended instead, with a note for the policy."""
    episode_seconds: float = 900
    """Seconds that an episode may take. After them the sample is not trained."""


class Validation(Model):
    """Loss and bits per byte of rows that are not trained, before the first step, every few steps
    and at the end. The best checkpoint is kept."""

    datasets: list[ValidationSet] = []
    """The validation datasets, by name or as sections; default: a share of the rows to train on is
kept out."""
    share: float = 0.02
    """Share of each dataset's rows that is kept out, unless there are `datasets`; 0: no
validation."""
    every: int = 100
    """Steps between validations."""
    rows: int | None = 2000
    """At most this many rows of each dataset, evenly spaced; null: all. The first step waits for
them, too."""
    tokens: int | None = None
    """About this many tokens in all: each dataset gives the same share of its rows, evenly spaced.
Default: all tokens of the rows."""
    best: Literal["loss", "bits_per_byte"] = "loss"
    """The checkpoint that is kept has the lowest loss per token, or the fewest bits per byte."""
    patience: int | None = None
    """End the run after this many validations in a row without a new minimum of `best`; default:
never."""


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


class FilePreview(Model):
    """The beginning of a file: its own columns, and the rows of a dataset that they become."""

    format: str | None
    """Its format. Null: it cannot be told."""
    columns: list[str]
    """Columns of the first rows."""
    source: list[dict[str, Any]]
    """The first rows as they stand in the file. A long value is text without its middle."""
    prompt: list[str]
    """The columns that become the prompt."""
    answer: list[str]
    """The columns that become the answer."""
    rows: list[MappedRow]
    """The same rows as the dataset would have them."""
    notes: list[str]
    """Guesses about how the file is read."""
    problem: str | None
    """Why the file or the mapping cannot be used."""


class FineTuningFile(Model):
    """A file."""

    id: str
    """Its id."""
    object: Literal["file"] = "file"
    """`file`."""
    bytes: int
    """Its size."""
    created_at: int
    """Unix time."""
    expires_at: int | None = None
    """Unix time. Left out: it stays."""
    filename: str
    """As it was sent."""
    purpose: Literal["fine-tune", "fine-tune-results"]
    """What it is for."""
    status: Literal["processed"] = "processed"
    """Its rows were checked."""


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


class MessagesAnswer(Model):
    """An answer as Anthropic's API gives it."""

    id: str
    """Its name."""
    type: Literal["message"]
    """`message`."""
    role: Literal["assistant"]
    """`assistant`."""
    model: str
    """The run."""
    content: list[dict[str, Any]]
    """Blocks: `thinking`, `text`, `tool_use`."""
    stop_reason: str
    """`end_turn`, `tool_use`, `max_tokens`, `stop_sequence`."""
    stop_sequence: str | None
    """The text at which the answer ended."""
    usage: dict[str, int]
    """Tokens of prompt and answer."""


class PolicyCompletionsRequest(Model):
    """A request of OpenAI's completions, to a run's policy."""

    model: Any = None
    """`RUN` or `RUN@latest` for the newest version of a run, `RUN@STEP` for the version after so many steps: one that a worker serves while the run trains, or a kept checkpoint. RUN is an id, the beginning of one, or a name. Also `ft:BASE:ORG:SUFFIX:ID`."""
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


class PolicyResponsesRequest(Model):
    """A request of OpenAI's Responses API, to a run's policy."""

    model: Any = None
    """`RUN` or `RUN@latest` for the newest version of a run, `RUN@STEP` for the version after so many steps: one that a worker serves while the run trains, or a kept checkpoint. RUN is an id, the beginning of one, or a name. Also `ft:BASE:ORG:SUFFIX:ID`."""
    input: Any = None
    """A text, or items: messages, function calls and their outputs."""
    instructions: Any = None
    """A text that comes before the conversation."""
    tools: Any = None
    """Tools of type `function` that the policy may call."""
    stream: Any = None
    """Whether the answer comes as server-sent events."""
    max_output_tokens: Any = None
    """Longest answer."""
    temperature: Any = None
    """Also `top_p`, `top_k`, `min_p` and penalties. Default: those that the run samples with."""
    text: Any = None
    """With `format`: `json_object` or `json_schema`, as `response_format`."""


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


class RunSubmission(Model):
    """The body of `POST /v1/runs`. At least one of `recipe`, `config`, `resume_from`."""

    recipe: str | None = None
    """A name that `GET /v1/recipes` lists."""
    config: RunConfig | dict[str, Any] | None = None
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


class Sampling(Model):
    """How rollout workers sample."""

    temperature: float = 1.0
    """Sampling temperature. The learner computes log-probabilities at the same."""
    top_p: float = 1.0
    """Sample from the fewest likeliest tokens with this total probability. 1 is off."""
    top_k: int = 0
    """Sample from this many likeliest tokens. 0 is off. Each token carries its candidates (its
sampling mask: with 50, 55 to 90 bytes), and the learner computes log-probabilities over
them."""
    max_tokens: int = 64
    """Longest completion, in tokens."""
    ignore_eos: bool = False
    """Sample max_tokens, past any end of sequence (benchmarks)."""
    stop_token_ids: list[int] = []
    """More tokens that end a completion, besides the tokenizer's end of sequence."""
    json_schema: dict[str, Any] | None = None
    """JSON schema that each completion keeps to: vLLM samples only tokens that the schema allows.
Needs `top_k`, because each token then carries its candidates. For `rollout.episode:
single_turn`."""
    seed: int | None = None
    """Gives each sample of a task a fixed seed, so that a synchronous run can be repeated. Slower:
vLLM then samples row by row. Default: no seeds."""


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


class TextLengths(Model):
    """How long texts are, in characters."""

    rows: int
    """Rows that have the text."""
    min: int
    """The shortest."""
    median: int
    """Half of the rows are no longer."""
    p95: int
    """95 % of the rows are no longer."""
    max: int
    """The longest."""
    longest_row: int
    """The index of the first row with the longest text."""
    mean: float
    """The mean."""
    buckets: list[LengthBucket]
    """Numbers of rows for a histogram. Each bucket begins at a power of two."""


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


class FineTuningUpload(Model):
    """A file that comes in parts."""

    id: str
    """Its id."""
    object: Literal["upload"] = "upload"
    """`upload`."""
    bytes: int
    """The size of the whole file."""
    created_at: int
    """Unix time."""
    expires_at: int
    """Unix time after which it takes no parts."""
    filename: str
    """The file's name."""
    purpose: Literal["fine-tune", "fine-tune-results"]
    """What the file is for."""
    status: Literal["pending", "completed", "cancelled", "expired"]
    """Whether it takes parts, and how it ended."""
    file: FineTuningFile | None = None
    """The file, once it is completed."""


class MessagesRequest(Model):
    """A request of Anthropic's Messages API."""

    model: Any = None
    """In a session it is ignored: there is one."""
    messages: Any = None
    """The conversation so far, and new messages: texts, calls, their results."""
    system: Any = None
    """A text, or blocks of text."""
    tools: Any = None
    """Tools with an `input_schema` that the policy may call."""
    max_tokens: Any = None
    """Longest answer."""
    stream: Any = None
    """Whether the answer comes as server-sent events."""
    stop_sequences: Any = None
    """Up to 4 texts at which the answer ends."""
    tool_choice: Any = None
    """`auto`, `none`; in runs with `sampling.top_k` also `any` and `tool`."""
    temperature: Any = None
    """In a session that of the run."""


class NewFineTuningJob(Model):
    """A job to create."""

    model: Any = None
    """As `model.path` of a run, or a fine-tuned model's name."""
    training_file: Any = None
    """The id of a file."""
    validation_file: Any = None
    """The id of a file that is not trained."""
    method: Any = None
    """`supervised`, `dpo` or `reinforcement`, with options."""
    hyperparameters: Any = None
    """Older form of `method.supervised`."""
    suffix: Any = None
    """A part of the model's name, up to 64 characters."""
    seed: Any = None
    """Default: one is made."""
    metadata: Any = None
    """Up to 16 texts by name."""
    integrations: Any = None
    """`wandb`, if the operator allows it."""


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


class PolicyChatRequest(Model):
    """A request of OpenAI's chat completions, to a run's policy."""

    model: Any = None
    """`RUN` or `RUN@latest` for the newest version of a run, `RUN@STEP` for the version after so many steps: one that a worker serves while the run trains, or a kept checkpoint. RUN is an id, the beginning of one, or a name. Also `ft:BASE:ORG:SUFFIX:ID`."""
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


class PolicyMessagesRequest(Model):
    """A request of Anthropic's Messages API, to a run's policy."""

    model: Any = None
    """`RUN` or `RUN@latest` for the newest version of a run, `RUN@STEP` for the version after so many steps: one that a worker serves while the run trains, or a kept checkpoint. RUN is an id, the beginning of one, or a name. Also `ft:BASE:ORG:SUFFIX:ID`."""
    messages: Any = None
    """The conversation so far, and new messages: texts, calls, their results."""
    system: Any = None
    """A text, or blocks of text."""
    tools: Any = None
    """Tools with an `input_schema` that the policy may call."""
    max_tokens: Any = None
    """Longest answer."""
    stream: Any = None
    """Whether the answer comes as server-sent events."""
    stop_sequences: Any = None
    """Up to 4 texts at which the answer ends."""
    tool_choice: Any = None
    """`auto`, `none`; in runs with `sampling.top_k` also `any` and `tool`."""
    temperature: Any = None
    """Also `top_p`, `top_k`, `min_p` and penalties. Default: those that the run samples with."""


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
    """`training.max_steps`, more than it has trained. Also moves the end of its learning rate's schedule. It replaces `training.epochs`."""
    max_staleness: int | None = None
    """`rollout.max_staleness`. Supervised runs have none."""
    evaluation_every: int | None = None
    """`evaluation.every`; of a supervised run `validation.every`."""
    checkpoint_every: int | None = None
    """`training.checkpoint_every`."""
    lr: float | None = None
    """`optimizer.lr`, the peak of its schedule."""


class StepDryRun(DryRun):
    """The dry run of one step."""

    name: str
    """The step's."""


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


class HeldOut(Model):
    """A held-out dataset, and how its rows are answered and scored. In `more`, an option that is
    left out is as in `evaluation` itself."""

    dataset: str
    """Name or id of the held-out dataset."""
    name: str | None = None
    """The name in metrics and on the page; default: the dataset's name."""
    rows: int | None = None
    """Only this many rows, the first ones; default: all."""
    samples: int | None = None
    """Completions per row; default: 1."""
    temperature: float | None = None
    """Sampling temperature; default: 0, which is greedy."""
    max_tokens: int | None = None
    """Longest completion; default: sampling.max_tokens."""
    category: str | None = None
    """A column of the rows by whose values the metrics are also given, e.g. `level`; of a column
that is an object, `COLUMN.KEY`."""
    system: str | None = None
    """System message before each prompt that is not a chat already; default: as in `data`."""
    template: str | None = None
    """Text around a text prompt, with the placeholder {prompt}; default: the dataset's own, if it
was uploaded with a mapping that brings one; else as in `data`."""
    rewards: list[RewardComponentInput] | None = None
    """Components of its reward; default: the dataset's own, else the run's `rewards`."""


class MixedPrompts(Model):
    """A dataset that is mixed in. Keys that it leaves out are as for `data.dataset`."""

    dataset: str
    """Name or id of an uploaded dataset."""
    repeats: float | None = None
    """How often each of its rows comes in an epoch, e.g. 3, or 0.5 for every other row; default:
once."""
    weight: float | None = None
    """Its share of an epoch, in proportion to the weights of the other datasets, instead of
`repeats`. An epoch then has as many rows as all datasets have together."""
    name: str | None = None
    """Name in the metrics of a mixture; default: the dataset's, numbered if it is there more than
once (`words`, `words#2`)."""
    system: str | None = None
    """System message; default: `data.system`."""
    template: str | None = None
    """Text around a text prompt; default: `data.template`."""
    chat_template: Literal["auto", "none"] | None = None
    """Default: `data.chat_template`."""
    rewards: list[RewardComponentInput] = []
    """Components of the reward of its answers; default: the run's `rewards`."""
    max_tokens: int | None = None
    """Longest completion, in tokens; default: `sampling.max_tokens`."""
    episode: SingleTurn | Calculator | Tools | Sessions | OwnEpisode | None = None
    """How a completion is made; default: `rollout.episode`."""


class PreviewRequest(RunSubmission):
    """The body of `POST /v1/preview`: a submission, and the rows to show."""

    start: int = 0
    """The first row."""
    rows: int = 3
    """How many."""


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


class ScratchModel(Model):
    """A Llama with random weights and its own small tokenizer; with experts, a Qwen3-MoE."""

    source: Literal["scratch"]
    """A Llama with random weights and its own small tokenizer; with experts, a Qwen3-MoE."""
    hidden_size: int = 128
    """Width of the residual stream."""
    layers: int = 4
    """Transformer blocks."""
    heads: int = 4
    """Attention heads; divides `hidden_size`."""
    intermediate_size: int = 512
    """Width of the feed-forward layers, or of each expert."""
    experts: int = 0
    """Experts in each layer; 0: a dense model."""
    experts_per_token: int = 2
    """Experts of each token, if there are any."""
    max_length: int = 256
    """The model's positions, in tokens."""
    tokenizer: CharacterTokenizer | BPETokenizer = Field(
        default_factory=lambda: CharacterTokenizer()
    )
    """How text becomes tokens. Default: `character`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the forward pass; optimizers work on float32. auto: bfloat16 on a GPU, float32 on a
CPU."""


class Shaping(Model):
    """Changes a sample's reward r before advantages, in the order of the keys below."""

    bias: float = 0.0
    """Subtracted from r."""
    scale: float = 1.0
    """Multiplies r − bias."""
    max_reward_clip: float | None = None
    """(r − bias) · scale is clipped to ± this."""
    penalise_no_eos: bool = False
    """Replace the reward of completions without end of sequence by `reward_penalty`."""
    min_response_length: int = 0
    """Replace the reward of completions with fewer tokens by `reward_penalty`."""
    reward_penalty: float | None = None
    """The reward of such completions."""
    mask_no_eos_with_zero: bool = False
    """Replace the reward of completions without end of sequence by 0."""
    overlong_buffer: int = 0
    """Add min(−(length − (`sampling.max_tokens` − overlong_buffer)) / overlong_buffer ·
overlong_factor, 0) (DAPO). 0: nothing."""
    overlong_factor: float = 1.0
    """The reward that a completion of `sampling.max_tokens` loses."""
    mask_truncated: bool = False
    """Mask completions that were truncated, at `sampling.max_tokens` or
`rollout.straggler_deadline`, from the loss. They still count in their group's statistics."""


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


class VLLM(Model):
    """Options of a worker's vLLM server."""

    max_model_len: int | None = None
    """Tokens of prompt and completion together, at most; default: the model's own limit."""
    max_num_seqs: int | None = None
    """Completions generated at once, at most; default: as many as fit into vLLM's cache, at the
length that the run's completions have, and at most what vLLM chooses for its device."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights for sampling; auto: as published, or bfloat16 with `quantization`."""
    quantization: Literal["fp8_per_channel"] | None = None
    """Weights of linear layers in 8 bits for sampling, with a scale for each output channel, and
activations with one for each token. vLLM makes them of the bfloat16 weights of each version.
Half the memory and more speed, where the GPU multiplies such numbers, for a larger difference
between sampler and learner (`mismatch/kl`), which `algorithm.correction` is for."""
    tensor_parallel_size: int = 1
    """GPUs that share one server."""
    gpu_memory_utilization: float | None = None
    """Share of a GPU's memory for the server; default: 0.9, or less if it shares the GPU
(docs/operate.md)."""
    sleeps: bool = False
    """Whether vLLM sleeps while the learner trains: they take turns on a GPU that is too small for
both. The gateway then sets this key and `gpu_memory_utilization` (docs/operate.md)."""
    ngram_tokens: int = 0
    """Tokens that vLLM guesses ahead, from where the last ones came before in the prompt and the
completion (n-gram speculative decoding); 0 is off. The policy checks all of them in one pass,
so that completions and log-probabilities have its distribution. Faster where answers repeat
text and few completions run at once. On GPUs only."""
    extra: dict[str, Any] = {}
    """Other options of the vLLM server by name, e.g. {"enable-prefix-caching": false}. Switches are
true or false. Options that could run code or read files are refused unless the operator allows
them (HEADRACE_TRUST_REMOTE_CODE)."""
    startup_seconds: float = 600
    """Seconds that the server may take to start."""


class SFTConfig(Model):
    """Supervised training of a model, from nothing or from an existing one."""

    type: Literal["sft"]
    """Supervised training of a model, from nothing or from an existing one."""
    model: PretrainedModel | ScratchModel
    """The model to train."""
    data: SFTData
    """The rows to learn from."""
    objective: Likelihood | DPO = Field(default_factory=lambda: Likelihood())
    """The loss over these rows. Default: `likelihood`."""
    packing: Packing | None = None
    """Batches of a number of tokens; default: batches of `training.rows_per_step` rows."""
    optimizer: SFTAdamW | SFTAdamW8bit | MuonAdamW = Field(default_factory=lambda: SFTAdamW())
    """The optimizer. The default of a model from scratch is `muon`. Default: `adamw`."""
    schedule: SFTSchedule = Field(default_factory=lambda: SFTSchedule())
    """Learning rate schedule. Default: `wsd`."""
    router: Balance = Field(default_factory=lambda: Balance())
    """Routers of a mixture-of-experts model. Default: the defaults of its keys."""
    training: SFTTraining = Field(default_factory=lambda: SFTTraining())
    """Length, batch, micro-batches and checkpoints. Default: the defaults of its keys."""
    validation: Validation = Field(default_factory=lambda: Validation())
    """Rows that are not trained. Default: the defaults of its keys."""
    tracking: Tracking = Field(default_factory=lambda: Tracking())
    """Experiment trackers that get this run's metrics. Default: the defaults of its keys."""


class SFTData(Model):
    """The rows to learn from: conversations, prompts with answers, or plain text; with objective
    dpo prompts with a `chosen` and a `rejected` answer."""

    dataset: str
    """Name or id of an uploaded dataset."""
    repeats: float | None = None
    """How often each of its rows comes in an epoch, e.g. 3, or 0.5 for every other row; default:
once."""
    weight: float | None = None
    """Its share of an epoch, in proportion to the weights of the other datasets, instead of
`repeats`. An epoch then has as many rows as all datasets have together."""
    system: str | None = None
    """System message before each prompt, unless it is a chat that has one."""
    template: str = "{prompt}"
    """Text around a text prompt, e.g. to ask for an answer format. A chat stays as it is."""
    chat_template: str = "auto"
    """auto: the tokenizer's chat template, if it has one; none: prompts stay plain text; else the
text of a Jinja template, which the model keeps. `headrace submit` also takes the PATH of a
file."""
    chat_template_kwargs: dict[str, Any] = {}
    """Variables of the chat template by name, e.g. `{enable_thinking: false}` for Qwen3. They hold
wherever the run renders a prompt: in training, evaluation, sessions and `headrace chat`."""
    mix: list[Component] = []
    """More datasets, mixed in."""
    train_on: Literal["assistant", "last", "all"] = "assistant"
    """The tokens that the loss counts. `assistant`: every turn of the assistant, and its end.
`last`: the last one alone. `all`: every token, which plain text needs. The answer to a prompt
is one turn of the assistant."""
    max_seq_len: int | None = None
    """Longest row, in tokens; default: the positions of the model."""
    overlong: Literal["refuse", "skip", "crop"] = "refuse"
    """How to treat a longer row: `refuse` fails the run and names the row, `skip` leaves the row
out, `crop` cuts its end off. The run warns with the number of rows that are left out or cut.
If a row has two answers the longer one decides, and each is cut off by itself."""


class SessionResponsesRequest(Model):
    """A request of OpenAI's Responses API in a session, which keeps responses."""

    model: Any = None
    """In a session it is ignored: there is one."""
    input: Any = None
    """A text, or items: messages, function calls and their outputs."""
    instructions: Any = None
    """A text that comes before the conversation."""
    tools: Any = None
    """Tools of type `function` that the policy may call."""
    stream: Any = None
    """Whether the answer comes as server-sent events."""
    max_output_tokens: Any = None
    """Longest answer."""
    temperature: Any = None
    """In a session that of the run."""
    text: Any = None
    """With `format`: `json_object` or `json_schema`, as `response_format`."""
    previous_response_id: Any = None
    """A response of the session to continue."""
    conversation: Any = None
    """A conversation of the session to continue."""
    store: Any = None
    """False: the response cannot be named later."""


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
    """Laid over the config that this makes, key by key. Keys as in `RunConfig`."""
    name: str | None = None
    """For people. Default: made of the model and the dataset."""
    pool: str = "default"
    """Whose workers answer. The evaluation waits in the pool's queue."""
    priority: int = 0
    """Higher goes first."""


class RLConfig(Model):
    """Reinforcement learning of one policy, on one dataset or on several."""

    type: Literal["rl"] = "rl"
    """Reinforcement learning of one policy, on one dataset or on several."""
    model: PretrainedModel
    """The policy to start from."""
    data: Data
    """The prompts."""
    rewards: list[RewardComponentInput]
    """Components of the reward, which is their weighted sum. The first one decides whether an
answer counts as correct. If the submission itself names none, those of its dataset come before
the recipe's, if the dataset was uploaded with a named mapping; so does `data.template`. The
list may be empty where agents or an episode of your own say all rewards, and with advantage
`reverse_kl`, which learns nothing from them."""
    sampling: Sampling = Field(default_factory=lambda: Sampling())
    """Sampling options. Default: the defaults of its keys."""
    rollout: Rollout = Field(default_factory=lambda: Rollout())
    """Rollout workers. Default: the defaults of its keys."""
    algorithm: Algorithm = Field(default_factory=lambda: Algorithm())
    """The objective. Default: the defaults of its keys."""
    optimizer: AdamW | AdamW8bit | MuonAdamW = Field(default_factory=lambda: AdamW())
    """The optimizer. Default: `adamw`."""
    schedule: Schedule = Field(default_factory=lambda: Schedule())
    """Learning rate schedule. Default: `constant`."""
    training: Training = Field(default_factory=lambda: Training())
    """Length, micro-batches and checkpoints. Default: the defaults of its keys."""
    placement: Placement = Field(default_factory=lambda: Placement())
    """Devices of the models besides the policy. `same` is the policy's device. `cuda:N` is another
one: the first rank of a host puts the model on GPU N and computes it there, the second on GPU
N + 1, and so on. Default: the defaults of its keys."""
    evaluation: Evaluation | None = None
    """Held-out evaluation."""
    tracking: Tracking = Field(default_factory=lambda: Tracking())
    """Experiment trackers that get this run's metrics. Default: the defaults of its keys."""


class Rollout(Model):
    """How groups are leased and generated."""

    max_staleness: int = 1
    """Versions between sampling a token and training on it, at most (η). 0: synchronous."""
    lease_seconds: float = 60
    """A worker without progress for this long loses its leases to others."""
    update_mode: Literal["keep", "abort", "wait"] = "keep"
    """Requests in flight at a weight update. keep: they continue with their KV cache. abort: they
stop, and the new version continues their text. wait: they finish before the update, and no new
ones start."""
    weights: Literal["auto", "full"] = "auto"
    """The weights that the learner publishes after a step. auto: only the changed weights (a delta)
if they are bfloat16 and the delta is smaller; from time to time all weights. full: always all
weights, which saves each rank of the learner 2 bytes of memory for each weight that it
holds."""
    straggler_deadline: float | None = None
    """Seconds after its lease when a group that still generates is stopped; those in which vLLM
sleeps do not count (`vllm.sleeps`). Default: never."""
    at_deadline: Literal["complete", "release"] = "complete"
    """How a group ends at `straggler_deadline`. complete: its samples are truncated there, as at
max_tokens. release: the task is leased again, and dropped the third time (`too_slow`). A group
with a sample that has no token yet is always released."""
    stragglers: Literal["wait", "resample"] = "wait"
    """An unfinished group that would be too stale for the next batch. wait: the learner waits for
it. resample: it does not, and the prompt is sampled again, and dropped the third time
(`too_slow`). That is faster if `max_staleness` is small and few answers are long, and trains
less on long answers."""
    groups_in_flight: int | None = None
    """Groups that one worker generates at once; default: enough for as many completions as vLLM
runs at once, and a quarter more, which wait inside vLLM."""
    episode: SingleTurn | Calculator | Tools | Sessions | OwnEpisode = Field(
        default_factory=lambda: SingleTurn()
    )
    """How a completion is made. `episode: calculator` is short for `episode: {type: calculator}`,
any other name for `{type: own, name: NAME}`. Default: `single_turn`."""
    canary_limit: float | None = None
    """After each weight update vLLM scores some fixed sequences. It serves the wrong weights if its
log-probabilities differ from the learner's by more nats than this, on average. Default: 0.005
where both compute in float32; else eight times what is usual in this run, and at most 0.3 (more
for deep models)."""
    vllm: VLLM = Field(default_factory=lambda: VLLM())
    """Options of the vLLM server. Default: the defaults of its keys."""
    keep_share: Literal["auto"] | float = "auto"
    """Share of the trained groups whose answers are kept with their tokens, log-probabilities and
rewards, for `headrace rollouts`, `headrace samples` and the page. auto: all groups of a step up
to 524,288 tokens (prompts included), and of a larger step an even share with about as many
tokens. A step then takes at most about 5 MB of the data volume: 7.5 GB a day with a step
a minute. 0: none."""
    stream_bytes: int = 1073741824
    """Bytes of the run's finished groups in Redis above which workers keep theirs until the learner
has made room. Best at four batches or more."""


class RowCounts(Model):
    """Counts over all rows of a dataset, or over evenly chosen rows of a large one."""

    rows: int = 0
    """Rows that were rendered."""
    fewest_tokens: int = 0
    """Of the shortest row."""
    most_tokens: int = 0
    """Of the longest row."""
    median_tokens: int = 0
    """Half of the rows have no more."""
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


class RunPreview(Rendering):
    """Rows as the run's model will read them."""

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


class GraderErrors(Model):
    """What kept a grader from a score."""

    formula_parse_error: bool
    """`calculate_output` has no value."""
    sample_parse_error: bool
    """The answer is not JSON, or lacks a field that a template names."""
    truncated_observation_error: bool
    """Never."""
    unresponsive_reward_error: bool
    """Not graded in time."""
    invalid_variable_error: bool
    """`item` lacks a field of a template."""
    other_error: bool
    """Anything else."""
    python_grader_server_error: bool
    """The program hit a limit."""
    python_grader_server_error_type: str | None
    """The limit."""
    python_grader_runtime_error: bool
    """`grade` failed."""
    python_grader_runtime_error_details: str | None
    """How."""
    model_grader_server_error: bool
    """The model's endpoint failed."""
    model_grader_refusal_error: bool
    """The model refused."""
    model_grader_parse_error: bool
    """The model's reply has no score."""
    model_grader_server_error_details: str | None
    """How it failed."""


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


class Training(Model):
    """Length, micro-batches and checkpoints."""

    tokens_per_microbatch: int = 16384
    """Tokens in one forward and backward pass of one rank, prompts included, at most. A longer
sequence has a pass of its own."""
    activation_checkpointing: Literal["auto"] | bool = "auto"
    """Compute the activations of each block again in the backward pass, instead of keeping them:
less memory, about a third slower, the same gradients. `auto`: where those of the largest
micro-batch would not fit into the GPU with all else, by the estimate that
`headrace submit --dry-run` shows; not on a CPU."""
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several ranks share the training. `ddp`: each holds all weights, gradients and optimizer
state. `fsdp`: each holds a slice of them, and gathers a block when it computes it. `auto`: ddp
on a CPU, or if weights, gradients and optimizer state fit into half of a GPU; else fsdp."""
    context_parallel: int = 1
    """Ranks that share each micro-batch, for sequences too long for one: each computes a stretch of
the tokens, and for attention a share of the heads. It has to divide the ranks and the model's
attention heads. A micro-batch then has `tokens_per_microbatch` for each rank that shares it."""
    compile: Literal["auto"] | bool = "auto"
    """torch.compile the blocks of all models, except attention. Needs a C compiler, and a minute
or two at each start. `auto`: on CUDA, for models without experts, where something small can be
compiled at the start. `headrace why` says what a run does."""
    compile_backend: Literal["inductor", "cudagraphs", "aot_eager", "eager"] = "inductor"
    """The backend of torch.compile. `inductor` writes kernels. `cudagraphs` records those of
PyTorch. `aot_eager` and `eager` only trace the blocks, to find out which part of compiling
changes a number."""
    max_steps: int | None = None
    """Batches to train; default: `epochs` over the dataset as it is at submission. Rows that are
added later are sampled too, but do not make the run longer. 0: train nothing, only evaluate
(`headrace eval` makes such a run)."""
    epochs: float | None = None
    """Passes over the dataset, instead of max_steps. Default: 1."""
    offload: list[Literal["optimizer", "reference", "lagged", "critic", "teacher"]] = []
    """State that stays in host memory, and is on the GPU only while it is used. `optimizer`: the
state of all optimizers, copied there and back for each update. `reference`, `lagged` (the copy
of proximal lagged), `teacher`: their weights, copied there once a step. `critic`: its weights,
copied there twice a step and back once, and its optimizer's state, once each way."""
    checkpoint_every: int = 10
    """Steps between checkpoints. After a crash the steps since the last one are trained again, on
the same groups."""
    checkpoint_seconds: float | None = None
    """Also make a checkpoint after the first step that ends this many seconds after the last one;
default: `checkpoint_every` alone decides."""
    keep_checkpoints: int = 2
    """Checkpoints kept on disk, the newest ones. Pinned ones stay besides, and for a supervised run
the best one."""
    keep_every: int | None = None
    """Also keep the first checkpoint of each such number of steps: with 100 those of the steps 100,
200 and so on, or the next ones after these. Default: none."""
    seed: int = 0
    """Seed of the prompts' order and of all that is random in the learner."""


class Data(Model):
    """The prompts."""

    dataset: str = ""
    """Name or id of an uploaded dataset, or a dataset of the hub, `hf://ORG/NAME/CONFIG/SPLIT`,
which the gateway fetches once. Required, unless `source` is `sessions`."""
    repeats: float | None = None
    """How often each of its rows comes in an epoch, e.g. 3, or 0.5 for every other row; default:
once."""
    weight: float | None = None
    """Its share of an epoch, in proportion to the weights of the other datasets, instead of
`repeats`. An epoch then has as many rows as all datasets have together."""
    name: str | None = None
    """Name in the metrics of a mixture; default: the dataset's, numbered if it is there more than
once (`words`, `words#2`)."""
    system: str | None = None
    """System message before each prompt, unless it is a chat that has one."""
    template: str = "{prompt}"
    """Text around a text prompt, e.g. to ask for an answer format. A chat stays as it is."""
    chat_template: str = "auto"
    """auto: the tokenizer's chat template, if it has one; none: prompts stay plain text; else the
text of a Jinja template, which the model keeps. `headrace submit` also takes the PATH of a
file."""
    chat_template_kwargs: dict[str, Any] = {}
    """Variables of the chat template by name, e.g. `{enable_thinking: false}` for Qwen3. They hold
wherever the run renders a prompt: in training, evaluation, sessions and `headrace chat`."""
    source: Literal["dataset", "sessions"] = "dataset"
    """With `sessions` the run has no dataset: applications open sessions as they have conversations
(docs/agents.md, live traffic). Needs `rollout.episode: sessions`."""
    reward_deadline: float | None = None
    """With `source: sessions`: seconds after a session's end by which its reward has to come. One
without a reward by then is discarded. Default: a day."""
    mix: list[MixedPrompts] = []
    """More datasets, mixed in. A mixture has the rows that its datasets have at submission."""
    long_prompts: Literal["drop", "cut"] = "drop"
    """How long prompts are handled. `drop`: the row of a prompt that fills
`rollout.vllm.max_model_len` is not trained. `cut`: the longest text of a prompt loses its
beginning, so that `max_tokens` of an answer fit after the prompt. Events of the run count the
long prompts."""
    order: Literal["shuffled", "file"] = "shuffled"
    """The order of the rows in an epoch. `shuffled`: another one in each epoch, by `training.seed`.
`file`: as they were uploaded, in every epoch."""
    filter: DatasetFilter | None = None
    """Filter prompts that stay too hard or too easy: their later tasks end at once, as
`filtered_prompt`, and other prompts take their place."""
    curriculum: Curriculum | None = None
    """Sample prompts by their running pass rate: other tasks end at once, as `curriculum`, and the
next prompts take their place. `{}` is enough."""


class Evaluation(HeldOut):
    """Accuracy on held-out rows, each time by one version, while training goes on."""

    more: list[HeldOut] = []
    """More held-out datasets. They are evaluated one after the other."""
    every: int | None = None
    """Steps between evaluations; default: only at start and end. One that falls due while another
is open waits for it."""
    at_start: bool = True
    """Also evaluate before the first step."""
    workers: int = 1
    """Workers that answer while training goes on: those that only evaluate
(`HEADRACE_EVALUATION_ONLY`), then idle ones. The others go on with training alone. After the
last step all workers answer."""
    share: float = 0.5
    """The share of such a worker's completions in vLLM that evaluation may use while the worker has
prompts to train on. Evaluation gets more if training leaves room."""


class SFTTraining(Training):
    """Length, batch, micro-batches and checkpoints of a supervised run."""

    rows_per_step: int | None = None
    """Rows of each step, whatever their lengths. Default: 128, unless there is `packing`."""


class Uploaded(DatasetRecord):
    """A dataset, and how its file was read."""

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
    left_out: int = 0
    """Bad rows that `bad_rows=skip` left out. A warning names the first."""


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


class MuonAdamW(Model):
    """Muon for the matrices inside the blocks, AdamW for embeddings, head and vectors."""

    eps: float = 1e-08
    """Added to Adam's denominator."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float | None = 1.0
    """Gradients are scaled down to this global norm; null: never."""
    in_backward: bool = False
    """Update each weight in the backward pass, as soon as its gradient is there, and free the
gradient. For one rank, or training.parallel fsdp, and minibatches of one micro-batch."""
    type: Literal["muon"]
    """Muon for the matrices inside the blocks, AdamW for embeddings, head and vectors."""
    lr: float = 0.02
    """Peak learning rate of the matrices."""
    momentum: float = 0.95
    """Muon's momentum."""
    momentum_start: float | None = None
    """Muon's momentum at the first step, from which it rises to `momentum` (nanochat: 0.85);
default: it is `momentum` from the first step."""
    momentum_warmup_steps: int = 300
    """Steps (batches) until it has risen."""
    adamw_lr: float = 0.003
    """Peak learning rate of everything else."""
    embedding_lr: float | None = None
    """Peak learning rate of the embedding; default: adamw_lr."""
    unembedding_lr: float | None = None
    """Peak learning rate of the output head, unless it is tied to the embedding; default:
adamw_lr."""
    scalar_lr: float | None = None
    """Peak learning rate of norms, biases and other vectors; default: adamw_lr."""
    initial_lr_fraction: float = 1.0
    """Factor on all learning rates here (nanochat's init_lr_frac): supervised training of a
pretrained model begins at a fraction of its pretraining rates."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's betas."""
    embedding_weight_decay: float | None = None
    """Weight decay of the embedding; default: weight_decay. Vectors never decay."""
    unembedding_weight_decay: float | None = None
    """Weight decay of the output head; default: weight_decay."""


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
    cost: SamplePrice | None = None
    """What samples cost at the rate of the last step, by `HEADRACE_GPU_HOUR_PRICE` and the GPUs that work on the run now; null: no price is set, there is no GPU, or no step goes on."""


class Algorithm(Model):
    """One objective. Batch sizes count prompts: a step trains
    `prompts_per_step · samples_per_prompt` trajectories."""

    prompts_per_step: int = 32
    """Groups per batch (B)."""
    samples_per_prompt: int = 8
    """Completions per group."""
    dynamic_sampling: DynamicSampling | None = None
    """Filter groups whose trained samples all have the same reward, before shaping: their tasks end
as `filtered_group`, and other prompts take their place (DAPO). `{}` is enough."""
    best_of: BestOf | None = None
    """Sample more completions of a prompt than are trained, and choose by their rewards, before
shaping; of equal rewards the longer completion wins (AReaL)."""
    minibatches: int = 1
    """Optimizer steps per pass over a batch."""
    epochs_per_batch: int = 1
    """Passes over each batch."""
    shaping: Shaping = Field(default_factory=lambda: Shaping())
    """Changes of a reward before advantages. Default: the defaults of its keys."""
    advantage: (
        GroupMean
        | GroupZScore
        | LeaveOneOut
        | RunningMean
        | GlobalWhiten
        | GAE
        | SequenceValue
        | ReverseKL
    ) = Field(default_factory=lambda: GroupZScore())
    """Advantage estimator. Default: `group_zscore`."""
    critic: Critic | None = None
    """The critic, which advantages `gae` and `sequence_value` need."""
    teacher: Teacher | None = None
    """The teacher, which advantage `reverse_kl` needs."""
    loss: PPOLoss | ReinforceLoss | CISPOLoss | GSPOLoss | SequencePPOLoss | DPPOLoss | SAPOLoss = (
        Field(default_factory=lambda: PPOLoss())
    )
    """Policy loss. Default: `ppo`."""
    aggregation: TokenMean | SequenceMean | PromptMean | ConstantLength = Field(
        default_factory=lambda: TokenMean()
    )
    """How token losses become one number. Default: `token_mean`."""
    proximal: SamplerProximal | RecomputeProximal | LoglinearProximal | LaggedProximal = Field(
        default_factory=lambda: SamplerProximal()
    )
    """The policy that the ratio is taken against. Default: `sampler`."""
    correction: NoCorrection | TruncateCorrection | MaskCorrection | OffPolicySequenceMask = Field(
        default_factory=lambda: NoCorrection()
    )
    """Off-policy correction between sampler and proximal policy. Default: `none`."""
    kl: NoKL | ReferenceKL | RewardKL = Field(default_factory=lambda: NoKL())
    """Penalty for the distance to a reference model. Default: `none`."""
    entropy_bonus: float = 0.0
    """Weight c of −c·entropy in each token's loss."""
    router: Router = Field(default_factory=lambda: Router())
    """Routers of a mixture-of-experts model. Default: the defaults of its keys."""
    early_stop_ratio: float | None = None
    """Skip the rest of a batch's updates, this one included, if the mean ratio over a minibatch
exceeds this."""
    early_stop_kl: float | None = None
    """The same for the mean k3 of KL(π_prox ‖ π), in nats per token."""


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


class FineTuningJob(Model):
    """A fine-tuning job."""

    id: str
    """Its id."""
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    """`fine_tuning.job`."""
    created_at: int
    """Unix time."""
    finished_at: int | None
    """Unix time; null: it is not over."""
    estimated_finish: int | None
    """Unix time; null: not known."""
    model: str
    """The model that it starts from."""
    fine_tuned_model: str | None
    """The finished model's name."""
    organization_id: str
    """The organisation that was named at its creation."""
    status: Literal[
        "validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"
    ]
    """Its status."""
    training_file: str
    """The file's id."""
    validation_file: str | None
    """The file's id."""
    result_files: list[str]
    """The file with its metrics, once it has ended."""
    trained_tokens: int | None
    """Tokens trained; null: it is not over."""
    error: JobFailure | None
    """Why it has failed."""
    seed: int
    """Seed of all that is random."""
    hyperparameters: dict[str, Any]
    """Of a supervised job; as in `method`."""
    method: dict[str, Any]
    """The method, with the numbers used for `auto`."""
    integrations: list[dict[str, Any]]
    """Its trackers."""
    metadata: dict[str, str] | None
    """Texts by name."""
    user_provided_suffix: str | None = None
    """A part of the model's name."""


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
    project: str | None = None
    """The project of OpenAI's API that it belongs to. Null: to none."""
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


class WorkerRecord(Model):
    """A rollout worker's last heartbeat."""

    id: str
    """Its name."""
    pool: str
    """Which pool it belongs to."""
    evaluation_only: bool = False
    """Whether it samples nothing to train on (`HEADRACE_EVALUATION_ONLY`)."""
    worker_class: str = ""
    """What kind of machine it runs on, in its operator's words, such as `spot` (`HEADRACE_WORKER_CLASS`)."""
    serving_only: bool = False
    """Whether it only answers calls of finished runs (`HEADRACE_SERVING_ONLY`)."""
    host: str
    """The machine it runs on."""
    pid: int
    """Its process id there."""
    state: str
    """`starting`, `idle`, `generating`, `waiting_admission`, `updating`, `sleeping` while the learner has its GPU, `evaluating`, `loading` and `serving` models of finished runs, `unhealthy`, `stopping`; `silent` after 5 s without a heartbeat."""
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
    models: list[str] = []
    """Models of finished runs that it serves now, as `RUN@STEP`."""
    loading: str | None = None
    """The model of a finished run that it loads now, as `RUN@STEP`."""
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


class RunRecord(RunSummary):
    """One run as the store knows it."""

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


class CancelledRun(RunRecord):
    """A run after the request to cancel it."""

    is_released: bool
    """Whether no learner works on it any more. Until then its learner may still train a step, and write a checkpoint."""


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

RunEvent: TypeAlias = (
    StateEvent
    | StepEvent
    | ProgressEvent
    | EvaluationEvent
    | WorkerEvent
    | WarningEvent
    | CheckpointEvent
    | EditEvent
    | PausedEvent
    | ResumedEvent
    | DeletedEvent
    | TrackerEvent
)
"""An event of a run; `kind` says which."""

RunState: TypeAlias = Literal[
    "queued", "starting", "running", "paused", "cancelling", "succeeded", "failed", "cancelled"
]
"""Life of a run. The last three are final."""

ScoreStatus: TypeAlias = Literal[
    "correct", "wrong", "partial", "scored", "no_answer", "unparsable", "timeout", "error"
]
"""How one scoring ended."""

RunConfig: TypeAlias = RLConfig | SFTConfig
"""The config of a run, as `GET /v1/schema` has it: `rl` or `sft`."""
