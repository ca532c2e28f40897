"""Events of a fine-tuning job, derived from the events of its run. Pure."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, Field

from services.contracts.events import Event
from services.contracts.records import RunState
from services.gateway.openai_jobs.jobs import JobRecord, metrics_of

PREFIX = "ftevent-"
Level = Literal["info", "warn", "error"]


class JobEvent(BaseModel):
    """An event of a job."""

    id: str = Field(description="Its id.")
    object: Literal["fine_tuning.job.event"] = Field(
        "fine_tuning.job.event", description="`fine_tuning.job.event`."
    )
    created_at: int = Field(description="Unix time.")
    level: Level = Field(description="`info`, `warn` or `error`.")
    message: str = Field(description="What happened.")
    type: Literal["message", "metrics"] = Field(description="`metrics`: `data` has numbers.")
    data: dict[str, Any] = Field(description="Metrics of a step, or empty.")


class JobEventList(BaseModel):
    """A page of events, newest first."""

    object: Literal["list"] = Field("list", description="`list`.")
    data: list[JobEvent] = Field(description="Newest first.")
    has_more: bool = Field(description="Whether there is another page.")


def first_events(record: JobRecord) -> list[JobEvent]:
    """Return the events before those of the run, the oldest first."""
    files = [record.training, *([record.validation] if record.validation else [])]
    sentences = [
        f"Created fine-tuning job: {record.id}",
        *(f"Validating file: {file.id}" for file in files),
    ]
    events = [
        _event(f"0-{number}", record.created, sentence)
        for number, sentence in enumerate(sentences, 1)
    ]
    if record.error is not None:
        number = f"0-{len(events) + 1}"
        events.append(_event(number, record.created, record.error.message, level="error"))
    return events


def events_of(record: JobRecord, event: Event, total: int | None) -> Iterator[JobEvent]:
    """Iterate over the job's events for an event of its run. `total`: the run's steps."""
    data = event.data
    match event.kind:
        case "state":
            sentences = _of_state(record, data)
            for number, (level, sentence) in enumerate(sentences):
                id = event.id if len(sentences) == 1 else f"{event.id}-{number}"
                yield _event(id, event.time, sentence, level=level)
        case "step" | "progress" if "step" in data:
            yield _of_step(event, total)
        case "evaluation":
            yield _of_evaluation(event)
        case "checkpoint":
            name = record.model_name(data.get("step"))
            sentence = f"Checkpoint created at step {data.get('step')}: {name}"
            yield _event(event.id, event.time, sentence)
        case "warning":
            yield _event(event.id, event.time, str(data.get("message", "")), level="warn")
        case "worker" if data.get("state") in ("starting", "ready"):
            sentence = f"Worker {data.get('worker')} is {data['state']}"
            yield _event(event.id, event.time, sentence)
        case "paused" | "resumed":
            sentence = f"Fine-tuning job {event.kind} by {data.get('by')}"
            yield _event(event.id, event.time, sentence)


def run_event_id(id: str) -> str:
    """Return the id of the run's event that a job's event comes from."""
    return "-".join(id.removeprefix(PREFIX).split("-")[:2])


def _of_state(record: JobRecord, data: dict[str, Any]) -> list[tuple[Level, str]]:
    reason = f": {data['reason']}" if data.get("reason") else ""
    match data.get("state"):
        case RunState.QUEUED:
            return [("info", "Files validated, moving job to queued state")]
        case RunState.STARTING:
            return [("info", "Fine-tuning job is starting")]
        case RunState.RUNNING:
            return [("info", "Fine-tuning job started")]
        case RunState.PAUSED:
            return [("warn", f"Fine-tuning job paused{reason}")]
        case RunState.CANCELLING:
            return [("info", f"Fine-tuning job is being cancelled{reason}")]
        case RunState.CANCELLED:
            return [("info", f"Fine-tuning job cancelled{reason}")]
        case RunState.FAILED:
            return [("error", f"Fine-tuning job failed{reason}")]
        case RunState.SUCCEEDED:
            return [
                ("info", f"New fine-tuned model created: {record.model_name()}"),
                ("info", "The job has successfully completed"),
            ]
    return []


def _of_step(event: Event, total: int | None) -> JobEvent:
    step = int(event.data["step"])
    metrics = metrics_of(event.data, step).model_dump(exclude_none=True)
    shown = {
        "training loss": metrics.get("train_loss"),
        "training mean reward": metrics.get("train_mean_reward"),
        "validation loss": metrics.get("valid_loss"),
    }
    if "train_mean_reward" in metrics:
        del shown["training loss"]
    words = ", ".join(f"{name}={value:.2f}" for name, value in shown.items() if value is not None)
    of = f"/{total}" if total else ""
    data = metrics | ({"total_steps": total} if total else {})
    sentence = f"Step {step}{of}{': ' if words else ''}{words}"
    return _event(event.id, event.time, sentence, data=data)


def _of_evaluation(event: Event) -> JobEvent:
    step, reward = event.data.get("step"), event.data.get("reward")
    metrics = {"step": step, "valid_mean_reward": reward, "accuracy": event.data.get("accuracy")}
    kept = {name: value for name, value in metrics.items() if value is not None}
    sentence = f"Evaluation at step {step}"
    if isinstance(reward, int | float):
        sentence += f": validation mean reward={reward:.2f}"
    return _event(event.id, event.time, sentence, data=kept)


def _event(
    id: str,
    time: float,
    message: str,
    *,
    level: Level = "info",
    data: dict[str, Any] | None = None,
) -> JobEvent:
    return JobEvent(
        id=f"{PREFIX}{id}",
        created_at=int(time),
        level=level,
        message=message,
        type="message" if data is None else "metrics",
        data=data or {},
    )
