"""Why a run is slow or stuck: the answer of `GET /v1/runs/{id}/why` and `headrace why`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, Field

from services.contracts.events import Event
from services.contracts.prices import SamplePrice
from services.contracts.records import SILENT, RunRecord, RunState, WorkerRecord

CUT = 0.5
"""From this share on, truncation explains rewards of 0."""

Cause = Literal[
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
Place = Literal["returned", "generating", "scoring", "waiting", "planned", "trained"]


def all_zero(row: Mapping[str, Any]) -> str:
    """Say that every reward of a step is 0, and what to look at, from its row of metrics: the
    warning when such steps begin, and the sentence of `why` while they last."""
    begin, cut = f"every reward of step {row.get('step', '?')} is 0", row.get("response/truncated")
    if cut is not None and cut >= CUT:
        which = "all its answers" if cut == 1 else f"{cut:.0%} of its answers"
        return (
            f"{begin}: {which} were cut off before they ended; raise sampling.max_tokens, or see "
            "with `headrace samples` why they do not end"
        )
    return (
        f"{begin}: check the verifier and its reference answers, or start from a model that solves "
        "some prompts"
    )


class OldestTask(BaseModel):
    """The task that has been in flight longest, by its position in the run's order."""

    task: int = Field(description="Its position in the run's order.")
    place: Place = Field(
        description="Where it is: released and not leased again (`returned`), with a worker "
        "(`generating`, `scoring`), finished and `waiting` for a batch, `planned` for one, or "
        "`trained` and waiting for the checkpoint."
    )
    worker: str | None = Field(None, description="Who holds it, or who finished it.")
    step: int | None = Field(None, description="The step it is planned for.")
    lease_seconds_left: float | None = Field(
        None, description="Until its lease lapses, if it is not renewed. Below 0: it has lapsed."
    )
    failures: dict[str, int] = Field(
        default_factory=dict, description="Attempts at it that failed, by cause."
    )
    seconds: float | None = Field(
        None, description="Since it was leased, or, once finished, since its group arrived."
    )


class Flow(BaseModel):
    """How many tasks are where, now."""

    returned: int = Field(0, description="Released, not leased again yet.")
    held: int = Field(0, description="With workers.")
    lapsed: int = Field(0, description="Of these, those whose lease has lapsed.")
    waiting: int = Field(0, description="Finished groups that no batch has taken.")
    planned: int = Field(0, description="Groups of batches that are not trained yet.")
    trained: int = Field(0, description="Trained groups that no checkpoint covers yet.")
    filtered: int = Field(
        0,
        description="Groups that were filtered while those of the present batch were finished. "
        "Their tasks have ended.",
    )


class LiveTraffic(BaseModel):
    """The sessions of a run with `data.source: sessions`."""

    open: int = Field(description="Open now.")
    waiting: int = Field(description="Ended, and without a reward.")
    ready: int = Field(description="With a reward, and not handed in.")
    opened: int = Field(description="Opened so far.")
    discarded: int = Field(description="Of these, those that are not trained: without a reward.")


class LearnerHold(BaseModel):
    """The process that is the pool's learner."""

    host: str = Field(description="The machine it runs on.")
    pid: int | None = Field(description="The process id of rank 0 there.")
    held_seconds: float | None = Field(description="How long it has been the pool's learner.")
    prolonged_seconds_ago: float = Field(
        description="When it last prolonged its lock; it does so every 2 s, and loses it after 10."
    )


class OpenEvaluation(BaseModel):
    """An evaluation that is not finished."""

    id: str = Field(description="Its id.")
    name: str = Field(description="What metrics call the held-out set.")
    step: int = Field(description="The step after which it was due.")
    version: str = Field(description="The version that answers.")
    rows: int = Field(description="Rows to answer.")
    answered: int = Field(description="Rows that have an answer.")
    held: int = Field(description="Rows that workers work on.")
    workers: list[str] = Field(description="Workers that take part.")
    waiting: int = Field(description="Evaluations that wait for this one.")


class Remark(BaseModel):
    """A warning or an error."""

    seconds_ago: float = Field(description="How long ago.")
    source: str = Field(description="`run`, or the worker that reported it.")
    text: str = Field(description="Its text.")


class Why(BaseModel):
    """A run's progress, and the cause that holds it up."""

    run: str = Field(description="The run's id.")
    name: str = Field(description="Its name.")
    state: RunState = Field(description="Where it is in its life.")
    step: int = Field(description="Batches trained.")
    max_steps: int | None = Field(description="Batches it is to train.")
    cause: Cause = Field(
        description="What holds it up, in one word; `none` where nothing does, `over` where it "
        "has ended."
    )
    words: str = Field(description="The same as a sentence.")
    last_step_seconds_ago: float | None = Field(
        description="When a step was last finished; null: none since it started."
    )
    flow: Flow = Field(description="How many tasks are where.")
    oldest: OldestTask | None = Field(description="The task that has been in flight longest.")
    evaluation: OpenEvaluation | None = Field(description="The open evaluation, if there is one.")
    traffic: LiveTraffic | None = Field(
        description="Sessions of applications; null: the run has a dataset."
    )
    learner: LearnerHold | None = Field(description="The pool's learner; null: none is alive.")
    computation: dict[str, str] = Field(
        description="How the learner computes, and why, by part: `attention`, "
        "`shared_prompts`, `activations`, `compile`, `parallel`."
    )
    workers: list[WorkerRecord] = Field(description="The pool's workers by their last heartbeats.")
    heard: dict[str, float] = Field(
        description="Seconds since each worker's heartbeat; after 5 it does not count as alive."
    )
    remarks: list[Remark] = Field(description="The newest warnings and errors, newest first.")
    cost: SamplePrice | None = Field(
        None,
        description="What samples cost at the rate of the last step, by `HEADRACE_GPU_HOUR_PRICE` "
        "and the GPUs that work on the run now; null: no price is set, there is no GPU, or no step "
        "goes on.",
    )


@dataclass(frozen=True)
class ClockJump:
    """A jump of Redis' clock."""

    until: float
    """The clock showed no later time before the jump."""
    by: float
    """Seconds; below 0: it went back."""


def seconds_since(moment: float, now: float, jumps: Sequence[ClockJump]) -> float:
    """Seconds from `moment` to `now`, both by a clock with these jumps, oldest first. A time that
    the clock has shown twice, because it went back, counts as the later one."""
    for jump in jumps:
        if (jump.by > 0 and moment <= jump.until) or (jump.by < 0 and moment > now):
            moment += jump.by
    return max(0.0, now - moment)


@dataclass(frozen=True)
class Situation:
    """Everything that a diagnosis needs, as plain values."""

    time: float
    """Unix seconds, by Redis' clock."""
    run: RunRecord
    active: RunRecord | None = None
    """The run that the pool works on."""
    ahead: list[str] = field(default_factory=list)
    """Runs before this one in its pool's queue."""
    queued: bool = False
    learner: LearnerHold | None = None
    workers: list[WorkerRecord] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    """The newest, oldest first."""
    flow: Flow = field(default_factory=Flow)
    planned_step: int | None = None
    """The first step that has a plan and is not trained."""
    oldest: OldestTask | None = None
    evaluation: OpenEvaluation | None = None
    traffic: LiveTraffic | None = None
    jumps: tuple[ClockJump, ...] = ()
    """Jumps of Redis' clock, oldest first."""

    @cached_property
    def alive(self) -> list[WorkerRecord]:
        """Workers with a recent heartbeat."""
        return [worker for worker in self.workers if worker.state != SILENT]

    def heard(self, worker: WorkerRecord) -> float:
        """Seconds since the worker's heartbeat."""
        return self.since(worker.heartbeat)

    def last(self, *kinds: str) -> Event | None:
        """Return the newest event whose kind is in `kinds`."""
        return next((event for event in reversed(self.events) if event.kind in kinds), None)

    def age(self, event: Event | None) -> float | None:
        """Seconds since the event."""
        if event is None:
            return None
        if event.taken > self.time:
            # A stream's ids never go back, though the clock did: the sender's clock is better.
            return self.since(min(event.time, self.time))
        return self.since(event.taken)

    def since(self, moment: float) -> float:
        """Seconds since a time by Redis' clock, also if that has jumped since then."""
        return seconds_since(moment, self.time, self.jumps)
