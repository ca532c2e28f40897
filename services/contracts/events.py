"""Events of a run, in order: what `watch`, the page and `GET /v1/runs/{id}/events` show.

`Event` is what the store keeps. `RunEvent` describes the data of each kind, for the OpenAPI
document and the clients that are made from it.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from services.contracts.records import RunState

EventKind = Literal[
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
    "deleted",
    "tracker",
]


class Event(BaseModel):
    """One event. `id` orders events within a run and is what a client resumes after."""

    id: str
    time: float
    kind: EventKind
    data: dict[str, Any]

    @property
    def taken(self) -> float:
        """When Redis received it, in Unix seconds by its clock; `time` is the sender's."""
        return int(self.id.partition("-")[0]) / 1000


class _Described(BaseModel):
    """The fields of each event."""

    run: str | None = Field(None, description="The run's id; only `GET /v1/stream` has it.")
    id: str = Field(
        description="Orders events within the run; send it as `Last-Event-ID` to go on after it.",
        examples=["1767225600000-0"],
    )
    time: float = Field(description="Unix seconds, by the sender's clock.")


class StateData(BaseModel):
    """A run's new state."""

    state: RunState = Field(description="The state.")
    reason: str = Field(description="Why, in words; may be empty.")


class StateEvent(_Described):
    """The run's state has changed."""

    kind: Literal["state"] = Field(description="The kind of event.")
    data: StateData = Field(description="The state.")


class StepData(BaseModel):
    """A step's metrics, flat, by the names of docs/metrics.md."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"example": {"step": 12, "reward/mean": 0.43}}
    )

    __pydantic_extra__: dict[str, float | None]

    step: int = Field(description="The step.")
    bottleneck: str | None = Field(
        None, description="The part that the step waited for most.", examples=["rollout"]
    )


class StepEvent(_Described):
    """A step of a run that samples is trained."""

    kind: Literal["step"] = Field(description="The kind of event.")
    data: StepData = Field(description="Its metrics.")


class ProgressData(StepData):
    """A supervised step's metrics, flat, and how far the run is."""

    done: int = Field(description="Units that are done.")
    total: int = Field(description="All units.")
    unit: str = Field(description="What is counted.", examples=["steps"])


class ProgressEvent(_Described):
    """A step of a supervised run is trained."""

    kind: Literal["progress"] = Field(description="The kind of event.")
    data: ProgressData = Field(description="How far the run is, and the step's metrics.")


class EvaluationData(BaseModel):
    """Figures of an evaluation, by the names of docs/metrics.md without `evaluation/`."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(description="The evaluation's id.")
    step: int = Field(description="The step after which it was asked for.")
    version: int = Field(description="The policy's version.")
    name: str = Field(description="The name of its rows' set.")
    rows: float | None = Field(None, description="Rows that were answered.")
    reward: float | None = Field(None, description="The mean reward.")
    accuracy: float | None = Field(
        None, description="The share of correct answers, if a verifier says what is correct."
    )


class EvaluationEvent(_Described):
    """An evaluation has ended."""

    kind: Literal["evaluation"] = Field(description="The kind of event.")
    data: EvaluationData = Field(description="Its figures.")


class WorkerData(BaseModel):
    """A rollout worker's state in the run."""

    worker: str = Field(description="The worker's id.")
    state: Literal["joined", "starting", "ready", "left"] = Field(
        description="`starting`: its vLLM starts. `left`: on request. Each at most once a run."
    )
    detail: str = Field(description="More, in words.")
    usual_seconds: float | None = Field(
        None, description="How long such a start took on its host, if it was measured."
    )


class WorkerEvent(_Described):
    """A worker has joined the run, starts, is ready, or has left."""

    kind: Literal["worker"] = Field(description="The kind of event.")
    data: WorkerData = Field(description="Which worker, and its state.")


class WarningData(BaseModel):
    """A warning."""

    message: str = Field(description="The warning, in words.")


class WarningEvent(_Described):
    """Something that a user should know."""

    kind: Literal["warning"] = Field(description="The kind of event.")
    data: WarningData = Field(description="The warning.")


class CheckpointData(BaseModel):
    """A checkpoint that is whole."""

    step: int = Field(description="The step that it was made after.")
    directory: str = Field(description="Relative to the data volume.")
    deleted: list[str] = Field(
        default_factory=list,
        description="Names of older checkpoints that were deleted for it.",
        examples=[["step-000040-3f9a1c"]],
    )


class CheckpointEvent(_Described):
    """A checkpoint is written."""

    kind: Literal["checkpoint"] = Field(description="The kind of event.")
    data: CheckpointData = Field(description="Where it is.")


class ChangedValue(BaseModel):
    """A key's value before and after."""

    before: Any = Field(alias="from", description="The value before.")
    to: Any = Field(description="The new value.")


class EditData(BaseModel):
    """A change of the run: on request (`by`, `changes`), or as its learner took it (`step`,
    `values`)."""

    by: str | None = Field(None, description="The name of the key that changed it.")
    changes: dict[str, ChangedValue] | None = Field(None, description="The changes, by key.")
    step: int | None = Field(None, description="The first step that has the values.")
    values: dict[str, Any] | None = Field(None, description="The values from then on, by key.")


class EditEvent(_Described):
    """The run was changed on request, or its learner has taken a change."""

    kind: Literal["edit"] = Field(description="The kind of event.")
    data: EditData = Field(description="The change.")


class RequestData(BaseModel):
    """The request's sender. A `state` follows once the learner has done it."""

    by: str = Field(description="The name of the key that asked for it.")


class PausedEvent(_Described):
    """A user asked the run to pause."""

    kind: Literal["paused"] = Field(description="The kind of event.")
    data: RequestData = Field(description="Who asked.")


class ResumedEvent(_Described):
    """A user let the paused run go on."""

    kind: Literal["resumed"] = Field(description="The kind of event.")
    data: RequestData = Field(description="Who asked.")


class DeletedData(BaseModel):
    """Files that a setting of the gateway has deleted after the run's end."""

    checkpoints: list[str] = Field(description="Names of the checkpoints, which may be none.")
    rollouts: bool = Field(description="Whether its rollouts were deleted.")
    bytes: int = Field(description="Bytes that are free now, with those of weight versions.")


class DeletedEvent(_Described):
    """Files of the run were deleted after its end."""

    kind: Literal["deleted"] = Field(description="The kind of event.")
    data: DeletedData = Field(description="Which files.")


class TrackerData(BaseModel):
    """A tracker that gets the run's metrics."""

    tracker: str = Field(description="Which tracker.", examples=["wandb"])
    place: str = Field(description="Where it shows the run.")


class TrackerEvent(_Described):
    """The run's metrics are carried to a tracker."""

    kind: Literal["tracker"] = Field(description="The kind of event.")
    data: TrackerData = Field(description="The tracker.")


class RunEvent(
    RootModel[
        Annotated[
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
            | TrackerEvent,
            Field(discriminator="kind"),
        ]
    ]
):
    """An event of a run; `kind` says which."""
