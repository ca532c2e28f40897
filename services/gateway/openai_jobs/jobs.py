"""Objects of OpenAI's fine-tuning jobs, and how they follow from the record of a run. Pure.

A job is a run. `JobRecord` holds only what the run's record cannot: its files, method and metadata.
"""

import hashlib
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from services.contracts.openai_models import PERSONAL, fine_tuned_name, read_fine_tuned_name
from services.contracts.records import RunRecord, RunState
from services.gateway.openai_jobs.files import FineTuningFile
from services.gateway.openai_jobs.job_requests import JobRequest, MethodType

PREFIX = "ftjob-"
JOB = re.compile(r"ftjob-[0-9a-f]{24}")
NOTE = "OpenAI fine-tuning job "
"""How the notes of a job's run begin."""
Status = Literal[
    "validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"
]


class JobFailure(BaseModel):
    """Why a job has failed."""

    code: str = Field(description="The kind of error, for programs.")
    message: str = Field(description="What went wrong.")
    param: str | None = Field(description="The field at fault.")


class FineTuningJob(BaseModel):
    """A fine-tuning job."""

    id: str = Field(description="Its id.")
    object: Literal["fine_tuning.job"] = Field("fine_tuning.job", description="`fine_tuning.job`.")
    created_at: int = Field(description="Unix time.")
    finished_at: int | None = Field(description="Unix time; null: it is not over.")
    estimated_finish: int | None = Field(description="Unix time; null: not known.")
    model: str = Field(description="The model that it starts from.")
    fine_tuned_model: str | None = Field(description="The finished model's name.")
    organization_id: str = Field(description="The organisation that was named at its creation.")
    status: Status = Field(description="Its status.")
    training_file: str = Field(description="The file's id.")
    validation_file: str | None = Field(description="The file's id.")
    result_files: list[str] = Field(description="The file with its metrics, once it has ended.")
    trained_tokens: int | None = Field(description="Tokens trained; null: it is not over.")
    error: JobFailure | None = Field(description="Why it has failed.")
    seed: int = Field(description="Seed of all that is random.")
    hyperparameters: dict[str, Any] = Field(description="Of a supervised job; as in `method`.")
    method: dict[str, Any] = Field(description="The method, with the numbers used for `auto`.")
    integrations: list[dict[str, Any]] = Field(description="Its trackers.")
    metadata: dict[str, str] | None = Field(description="Texts by name.")
    user_provided_suffix: str | None = Field(None, description="A part of the model's name.")


class JobList(BaseModel):
    """A page of jobs, newest first."""

    object: Literal["list"] = Field("list", description="`list`.")
    data: list[FineTuningJob] = Field(description="Newest first.")
    has_more: bool = Field(description="Whether there is another page.")


class JobMetrics(BaseModel):
    """Metrics of a step, those that the method has."""

    step: int = Field(description="The step.")
    train_loss: float | None = Field(None, description="Loss of the step.")
    train_mean_reward: float | None = Field(None, description="Mean reward of the step.")
    valid_loss: float | None = Field(None, description="Loss on the validation file.")
    valid_mean_reward: float | None = Field(None, description="Mean reward on that file.")
    full_valid_loss: float | None = Field(None, description="As `valid_loss`.")


class JobCheckpoint(BaseModel):
    """A checkpoint of a job."""

    id: str = Field(description="Its id.")
    object: Literal["fine_tuning.job.checkpoint"] = Field(
        "fine_tuning.job.checkpoint", description="`fine_tuning.job.checkpoint`."
    )
    created_at: int = Field(description="Unix time.")
    fine_tuned_model_checkpoint: str = Field(description="Its name as a model.")
    fine_tuning_job_id: str = Field(description="The job.")
    step_number: int = Field(description="The step that it was made after.")
    metrics: JobMetrics = Field(description="Metrics of that step.")


class CheckpointPage(BaseModel):
    """A page of checkpoints, newest first."""

    object: Literal["list"] = Field("list", description="`list`.")
    data: list[JobCheckpoint] = Field(description="Newest first.")
    first_id: str | None = Field(description="The first checkpoint's id.")
    last_id: str | None = Field(description="The last checkpoint's id: `after` of the next page.")
    has_more: bool = Field(description="Whether there is another page.")


class JobRecord(BaseModel):
    """The fields of a job that its run does not have."""

    id: str
    created: float
    request: JobRequest
    training: FineTuningFile
    validation: FineTuningFile | None = None
    seed: int
    submitter: str
    organization: str | None = None
    project: str | None = None
    hyperparameters: dict[str, Any] = {}
    """The numbers used. Empty until the rows are counted."""
    error: JobFailure | None = None
    """The reason why the job has no run."""
    is_new: bool = True
    """Whether its run is still to be queued."""

    @property
    def run(self) -> str:
        """The id of its run."""
        return self.id.removeprefix(PREFIX)[:8]

    @property
    def result_file(self) -> str:
        """The id of the file with its metrics."""
        return f"file-{self.id.removeprefix(PREFIX)}"

    def model_name(self, step: int | None = None) -> str:
        """Return the name of its model, or of a checkpoint."""
        request = self.request
        base = request.model
        if read_fine_tuned_name(base) is not None:
            # The parts behind the base: organisation, suffix, id, and perhaps the checkpoint.
            behind = 4 if "ckpt-step-" in base.rpartition(":")[2] else 3
            base = ":".join(base.split(":")[1:-behind])
        return fine_tuned_name(
            base, self.organization or PERSONAL, request.suffix or "", self.run, step
        )


def status_of(record: JobRecord, run: RunRecord | None) -> Status:
    """Return a job's status. `run` is None until the job's rows are checked."""
    if record.error is not None:
        return "failed"
    if run is None:
        return "validating_files"
    match run.state:
        case RunState.QUEUED:
            return "queued"
        case RunState.SUCCEEDED:
            return "succeeded"
        case RunState.FAILED:
            return "failed"
        case RunState.CANCELLED | RunState.CANCELLING:
            return "cancelled"
    # A run that is paused for another reason, such as a full disk, goes on by itself.
    return "paused" if run.paused_by else "running"


def job_of(
    record: JobRecord,
    run: RunRecord | None,
    rows: Iterable[Mapping[str, Any]] = (),
    now: float | None = None,
) -> FineTuningJob:
    """Return a job as OpenAI's API shows it. `rows`: the metrics of a run that is over."""
    status, request = status_of(record, run), record.request
    used = record.hyperparameters or request.method.hyperparameters.model_dump(exclude_none=True)
    error, finished, estimate = record.error, None, None
    if run is not None and run.state.final:
        finished = int(run.finished or run.created)
    elif error is not None:
        finished = int(record.created)
    if run is not None and run.state is RunState.FAILED:
        error = JobFailure(code="server_error", message=run.reason or "the run failed", param=None)
    if run is not None and status == "running" and run.eta_seconds is not None:
        estimate = int((time.time() if now is None else now) + run.eta_seconds)
    return FineTuningJob(
        id=record.id,
        created_at=int(record.created),
        finished_at=finished,
        estimated_finish=estimate,
        model=request.model,
        fine_tuned_model=record.model_name() if status == "succeeded" else None,
        organization_id=record.organization or PERSONAL,
        status=status,
        training_file=record.training.id,
        validation_file=record.validation and record.validation.id,
        result_files=[record.result_file] if status == "succeeded" else [],
        trained_tokens=trained_tokens(run, rows) if run is not None and run.state.final else None,
        error=error,
        seed=record.seed,
        hyperparameters=used if request.method.type == "supervised" else {},
        method=_method(request, used),
        integrations=[each.model_dump(exclude_none=True) for each in request.integrations or []],
        metadata=request.metadata,
        user_provided_suffix=request.suffix,
    )


def _method(request: JobRequest, used: dict[str, Any]) -> dict[str, Any]:
    kind: MethodType = request.method.type
    options: dict[str, Any] = {"hyperparameters": used}
    if request.method.reinforcement is not None:
        options |= request.method.reinforcement.model_dump(
            include={"grader", "response_format"}, exclude_none=True
        )
    return {"type": kind, kind: options}


def trained_tokens(run: RunRecord, rows: Iterable[Mapping[str, Any]]) -> int:
    """Return the tokens that a run has trained: of a supervised run those of the rows, else those
    of the answers. `rows`: its metrics by step."""
    if run.kind == "sft":
        return int(run.metrics.get("train/tokens", 0))
    trained: dict[int, float] = {}
    for row in rows:
        rate, seconds = row.get("throughput/tokens_per_second"), row.get("time/step")
        if "step" in row and rate is not None and seconds is not None:
            # A step that was trained again after a crash counts once.
            trained[row["step"]] = rate * seconds
    return round(sum(trained.values()))


RESULT_COLUMNS = {
    "supervised": {
        "train_loss": "train/loss",
        "train_accuracy": "",
        "valid_loss": "validation/loss",
        "valid_mean_token_accuracy": "",
    },
    "dpo": {
        "train_loss": "train/loss",
        "train_accuracy": "train/accuracy",
        "valid_loss": "validation/loss",
        "valid_accuracy": "validation/accuracy",
    },
    "reinforcement": {
        "train_mean_reward": "reward/mean",
        "valid_mean_reward": "evaluation/reward",
    },
}
"""Columns of the file of results, and the metrics in them. A run does not measure the accuracy of
tokens: that column is empty."""


def results_csv(method: MethodType, rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the metrics of a run by step, in the columns of OpenAI's files of results."""
    columns = RESULT_COLUMNS[method]
    by_step: dict[int, dict[str, float]] = {}
    for row in rows:
        step = row.get("step", row.get("evaluation/step"))
        if not isinstance(step, int | float):
            continue
        kept = {name: row[metric] for name, metric in columns.items() if metric in row}
        if kept:
            by_step.setdefault(int(step), {}).update(kept)
    lines = [",".join(["step", *columns])]
    for step in sorted(by_step):
        values = [by_step[step].get(name) for name in columns]
        lines.append(",".join([str(step), *("" if v is None else f"{v:.6g}" for v in values)]))
    return ("\n".join(lines) + "\n").encode()


def metrics_of(row: Mapping[str, Any], step: int) -> JobMetrics:
    """Return the metrics of a step by OpenAI's names."""
    valid = row.get("validation/loss")
    return JobMetrics(
        step=step,
        train_loss=row.get("train/loss"),
        train_mean_reward=row.get("reward/mean"),
        valid_loss=valid,
        full_valid_loss=valid,
        valid_mean_reward=row.get("evaluation/reward"),
    )


def checkpoint_id(job: str, step: int) -> str:
    """Return the id of a job's checkpoint, the same each time."""
    return f"ftckpt_{hashlib.sha256(f'{job} {step}'.encode()).hexdigest()[:24]}"
