"""Chains of runs: the record that Redis keeps, how it changes, and what the API shows.

A chain works on one step at a time. The record holds the id of a step's run before that run is
submitted, and each id is written once. So a second submission, after a crash or by another gateway,
submits the same run. All functions here are pure.
"""

import re
import secrets
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

from headrace.config_keys import MODEL_PATHS, text_at, value_at, with_value
from services.contracts.preview import Rendering
from services.contracts.records import RunState, RunSummary

CHAIN = "chain-"
"""How the id of a chain begins, and that of no run."""
STEP = "step:"
REFERENCE = re.compile(r"step:(?P<step>[^@]*)(?:@(?P<which>best|\d{1,12}))?")


class ChainState(StrEnum):
    """Life of a chain. The last three end with its present step; `resume` leaves the last two."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Whether the chain submits nothing any more."""
        return self in (ChainState.SUCCEEDED, ChainState.FAILED, ChainState.CANCELLED)


class ChainStep(BaseModel):
    """One step of a chain, as it was submitted."""

    name: str = Field(description="Unique in the chain.")
    recipe: str | None = Field(None, description="The recipe that its config began with.")
    config: dict[str, Any] = Field(
        description="The validated config, defaults filled in. `model.path` may name an earlier "
        "step: `step:NAME`."
    )
    runs: list[str] = Field(
        description="Ids of its runs, the present one last: each resumption of the chain adds one."
    )

    @property
    def run(self) -> str:
        """The id of its present run, which may not be submitted yet."""
        return self.runs[-1]


class ChainRecord(BaseModel):
    """A chain as the store knows it."""

    id: str = Field(description="`chain-` and 8 hex digits.")
    name: str = Field(description="For people; several chains may share one.")
    note: str = Field("", description="What its reader should know; it stands in the report.")
    pool: str = Field(description="The pool that works on its runs.")
    tags: list[str] = Field(default_factory=list, description="Those of its runs.")
    submitter: str = Field("", description="That of its runs.")
    project: str | None = Field(None, description="That of its runs.")
    priority: int = Field(0, description="That of its runs.")
    state: ChainState = Field(ChainState.RUNNING, description="Its state.")
    reason: str = Field("", description="Why it is in this state, in words.")
    created: float = Field(description="Unix seconds.")
    finished: float | None = Field(None, description="When it was over, in Unix seconds.")
    at: int = Field(0, description="The step that it works on, or ended with, counted from 0.")
    steps: list[ChainStep] = Field(description="In their order.")

    @property
    def step(self) -> ChainStep:
        """The step that it works on, or ended with."""
        return self.steps[self.at]


class StepView(BaseModel):
    """One step of a chain, with what its run says."""

    name: str = Field(description="Unique in the chain.")
    kind: str = Field(description="The type of its run: `rl` or `sft`.")
    run: str | None = Field(description="The id of its present run; null: not submitted yet.")
    runs: list[str] = Field(description="The ids of all its runs, oldest first.")
    state: str = Field(description="`waiting`, or the state of its run.")
    reason: str = Field("", description="Why the run is in this state, in words.")
    step: int = Field(0, description="Batches that the run has trained.")
    max_steps: int | None = Field(None, description="Batches that it trains.")
    checkpoint: str | None = Field(None, description="Its checkpoint, relative to the data volume.")
    models: dict[str, str] = Field(
        default_factory=dict,
        description="The models of its config that earlier steps make, by key: `model.path`, "
        "`step:NAME`.",
    )


class ChainView(BaseModel):
    """One chain as the API shows it."""

    id: str = Field(description="`chain-` and 8 hex digits.")
    name: str = Field(description="For people; several chains may share one.")
    note: str = Field(description="What its reader should know.")
    pool: str = Field(description="The pool that works on its runs.")
    state: ChainState = Field(description="Its state.")
    reason: str = Field(description="Why it is in this state, in words.")
    created: float = Field(description="Unix seconds.")
    finished: float | None = Field(description="When it was over, in Unix seconds.")
    at: int = Field(description="The step that it works on, or ended with, counted from 0.")
    steps: list[StepView] = Field(description="In their order.")
    warnings: list[str] = Field(
        default_factory=list,
        description="Of its configs, each with its step and its key; only in the answer to a "
        "submission.",
    )
    from_datasets: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        description="As of a run, by step; only in the answer to a submission.",
    )
    previews: dict[str, Rendering] = Field(
        default_factory=dict,
        description="The first row of each step, rendered; only in the answer to a submission.",
    )


def new_run_id() -> str:
    """8 hex digits."""
    return secrets.token_hex(4)


def referred(path: Any) -> tuple[str, str] | None:
    """(step, which) of `step:NAME` (which: "last"), `step:NAME@best` or `step:NAME@20`; None for a
    model that no step makes."""
    match = REFERENCE.fullmatch(path) if isinstance(path, str) else None
    return (match["step"], match["which"] or "last") if match else None


def references(config: dict[str, Any]) -> dict[str, str]:
    """The models of a config that earlier steps make: by key, what stands there."""
    paths = {key: text_at(config, key) for key in MODEL_PATHS}
    return {key: path for key, path in paths.items() if path and referred(path)}


def with_paths(config: dict[str, Any], paths: dict[str, str]) -> dict[str, Any]:
    """The config with other values of the keys that `references` names."""
    for key, path in paths.items():
        config = with_value(config, key, path)
    return config


def advanced(chain: ChainRecord, run: RunSummary | None, now: float) -> ChainRecord:
    """Return the chain after a look at the run of its present step, unchanged if nothing follows.
    `run` is None if that run does not exist yet."""
    if chain.state.over:
        return chain
    if chain.state is ChainState.CANCELLING and (run is None or run.state.final):
        what = "it ended" if run else "it began"
        when = "after" if run else "before"
        return ended(chain, ChainState.CANCELLED, f"on request, {when} {what}", now)
    if run is None or not run.state.final:
        return chain
    if run.state is RunState.SUCCEEDED:
        if chain.at + 1 < len(chain.steps):
            return chain.model_copy(update={"at": chain.at + 1})
        return ended(chain, ChainState.SUCCEEDED, "", now)
    state = ChainState.FAILED if run.state is RunState.FAILED else ChainState.CANCELLED
    return ended(chain, state, run.reason, now)


def ended(chain: ChainRecord, state: ChainState, reason: str, now: float) -> ChainRecord:
    """The chain after its end, with the reason that its present step gives."""
    words = "" if state is ChainState.SUCCEEDED else f"step {chain.step.name}: {reason or state}"
    return chain.model_copy(update={"state": state, "reason": words, "finished": now})


def cancelling(chain: ChainRecord) -> ChainRecord:
    """Return the chain after a request to cancel it, unchanged if the chain is over."""
    if chain.state.over:
        return chain
    reason = f"its step {chain.step.name} ends first"
    return chain.model_copy(update={"state": ChainState.CANCELLING, "reason": reason})


def resumed(chain: ChainRecord, config: dict[str, Any], run: str) -> ChainRecord:
    """Resume a failed or cancelled chain at its present step, with the config `config`, as the run
    `run`. A chain in another state is returned unchanged."""
    if chain.state not in (ChainState.FAILED, ChainState.CANCELLED):
        return chain
    step = chain.step.model_copy(update={"config": config, "runs": [*chain.step.runs, run]})
    steps = [*chain.steps[: chain.at], step, *chain.steps[chain.at + 1 :]]
    changes = {"state": ChainState.RUNNING, "reason": "", "finished": None, "steps": steps}
    return chain.model_copy(update=changes)


def viewed(chain: ChainRecord, runs: dict[str, RunSummary]) -> ChainView:
    """The chain with what its steps' runs say, by id."""
    steps = [_step(step, runs.get(step.run)) for step in chain.steps]
    return ChainView(**chain.model_dump(exclude={"steps"}), steps=steps)


def _step(step: ChainStep, run: RunSummary | None) -> StepView:
    view = StepView(
        name=step.name,
        kind=str(step.config.get("type", "rl")),
        run=None,
        runs=step.runs[:-1],
        state="waiting",
        models=references(step.config),
    )
    if run is None:
        steps = value_at(step.config, "training.max_steps")
        return view.model_copy(update={"max_steps": steps if isinstance(steps, int) else None})
    fields = ("state", "reason", "step", "max_steps", "checkpoint")
    of_run = {field: getattr(run, field) for field in fields}
    return view.model_copy(update={"run": run.id, "runs": step.runs, **of_run})
