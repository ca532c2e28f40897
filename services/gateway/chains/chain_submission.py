"""Checks a submitted chain, and makes its record.

Every step is checked when the chain is submitted, as far as the model of an earlier step is known
by its config; and again when its run is queued, then with the real checkpoint.
"""

import secrets
import time
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from headrace.config_keys import value_at, with_value
from services.contracts.chains import (
    CHAIN,
    STEP,
    ChainRecord,
    ChainStep,
    new_run_id,
    references,
    referred,
)
from services.contracts.config import SFTConfig
from services.contracts.config.model import ScratchModel
from services.contracts.records import Tags
from services.estimate.model_shape import scratch_config
from services.gateway.dependencies import Dependencies
from services.gateway.submission.fitting import DryRun, refusals
from services.gateway.submission.model_check import Problems
from services.gateway.submission.run_submission import (
    Accepted,
    RunSubmission,
    accept,
    described_run,
    merged_config,
    refusal,
)
from services.http import Problem
from services.models import ModelFolder

MOST_STEPS = 20


class StepSubmission(BaseModel):
    """One step of a chain: a run."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")] = Field(
        description="Unique in the chain. Small letters, digits, `-` and `_`."
    )
    recipe: str | None = Field(None, description="A name that `GET /v1/recipes` lists.")
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="As in `POST /v1/runs`. `model.path` may be `step:NAME`, the last checkpoint "
        "of an earlier step, `step:NAME@best`, the one with the best validation, or "
        "`step:NAME@20`, that of step 20. Without `model.path` a step starts from the one before.",
    )


class ChainSubmission(BaseModel):
    """The body of `POST /v1/chains`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "name": "sums",
                "steps": [
                    {
                        "name": "sft",
                        "recipe": "demo_sft",
                        "config": {"data": {"dataset": "examples"}},
                    },
                    {
                        "name": "rl",
                        "recipe": "demo_grpo",
                        "config": {
                            "model": {"path": "step:sft"},
                            "data": {"dataset": "mine"},
                            "evaluation": {"dataset": "mine"},
                        },
                    },
                ],
            }
        },
    )

    name: Annotated[str, Field(min_length=1, max_length=50)] = Field(
        "chain", description="For people. Its runs are called NAME-STEP."
    )
    note: Annotated[str, Field(max_length=1000)] = Field(
        "", description="What its reader should know; it stands at the beginning of the report."
    )
    pool: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] = Field(
        "default", description="The learner and the workers that are to work on its runs."
    )
    priority: int = Field(0, ge=-1000, le=1000, description="Higher goes first.")
    tags: Tags = Field(default_factory=list, description="Words to find its runs by.")
    steps: list[StepSubmission] = Field(
        min_length=1, max_length=MOST_STEPS, description="Runs, one after the other."
    )

    @model_validator(mode="after")
    def _names(self) -> "ChainSubmission":
        names = [step.name for step in self.steps]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two steps are called {twice!r}: give each a name of its own")
        return self


class StepDryRun(DryRun):
    """The dry run of one step."""

    name: str = Field(description="The step's.")


class ChainDryRun(BaseModel):
    """The resolved chain and its needs. Nothing is queued."""

    name: str = Field(description="For people.")
    steps: list[StepDryRun] = Field(description="In their order.")


class AcceptedChain(NamedTuple):
    """A submission that may be queued."""

    record: ChainRecord
    warnings: list[str]
    accepted: list[Accepted]
    """The accepted run of each step."""


async def dry_run_of(deps: Dependencies, submission: ChainSubmission) -> ChainDryRun:
    """Resolve each step, including steps that do not fit. Raise Problem as `accept_chain` does."""
    record, _, accepted = await accept_chain(deps, submission, fitting=False)
    steps = [
        StepDryRun(name=step.name, **dict(described_run(run)))
        for step, run in zip(record.steps, accepted, strict=True)
    ]
    return ChainDryRun(name=record.name, steps=steps)


async def accept_chain(
    deps: Dependencies, submission: ChainSubmission, fitting: bool = True
) -> AcceptedChain:
    """Return the record of a submitted chain. Raises Problem 422, which lists all problems by step
    and key. With `fitting`, a step that does not fit its pool's GPUs is a problem too."""
    problems: Problems = []
    warnings: list[str] = []
    steps: list[ChainStep] = []
    made: dict[str, ModelFolder | None] = {}
    made_by: dict[str, Accepted] = {}
    for submitted in submission.steps:
        name, before, model = submitted.name, next(reversed(made), None), None
        for_run = RunSubmission(
            recipe=submitted.recipe,
            config=submitted.config,
            pool=submission.pool,
            priority=submission.priority,
        )
        try:
            raw, _ = merged_config(for_run, None)
            if _starts_from_step(raw, before):
                for_run.config = with_value(for_run.config, "model.path", f"{STEP}{before}")
                raw, _ = merged_config(for_run, None)
            accepted = await accept(deps, for_run, made)
            too_large = refusals(accepted.estimate) if fitting else []
            if wrong := [*too_large, *_missing_checkpoints(raw, made_by)]:
                raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "", wrong)
        except Problem as error:
            listed = [(problem.path, problem.message) for problem in error.problems]
            for path, text in listed or [("", error.detail)]:
                problems.append((_place(name, path), text))
        else:
            model, config = _makes(name, accepted), accepted.record.config
            runs = [new_run_id()]
            steps.append(ChainStep(name=name, recipe=for_run.recipe, config=config, runs=runs))
            warnings += [_place(name, text) for text in accepted.record.warnings]
            made_by[name] = accepted
        made[name] = model
    if problems:
        raise refusal(problems, refused="the chain was not queued: its steps have ")
    record = ChainRecord(
        id=CHAIN + secrets.token_hex(4),
        name=submission.name,
        note=submission.note,
        pool=submission.pool,
        priority=submission.priority,
        tags=list(dict.fromkeys(submission.tags)),
        created=time.time(),
        steps=steps,
    )
    return AcceptedChain(record, warnings, list(made_by.values()))


def _starts_from_step(raw: dict[str, Any], before: str | None) -> bool:
    """Whether a step with this config starts from the step `before` it. It does unless its config
    names another model."""
    # `parse_config` refuses a model that is a text or a number.
    if before is None or not isinstance(raw.get("model", {}), dict) or value_at(raw, "model.path"):
        return False
    return value_at(raw, "model.source") in (None, "pretrained")


def _makes(step: str, accepted: Accepted) -> ModelFolder | None:
    """Return the model that a step will make, if its config tells."""
    model = accepted.config.model
    if isinstance(model, ScratchModel):
        return ModelFolder(Path(STEP + step), scratch_config(model))
    return accepted.model


def _validates(accepted: Accepted) -> bool:
    """Whether a step's run will know its best checkpoint."""
    config = accepted.config
    if not isinstance(config, SFTConfig):
        return False
    return bool(config.validation.datasets or config.validation.share)


def _missing_checkpoints(
    raw: dict[str, Any], made_by: Mapping[str, Accepted]
) -> Iterable[tuple[str, str]]:
    """Yield a problem for each checkpoint of an earlier step, the best or a numbered one, that will
    not exist when that step ends."""
    for key, path in references(raw).items():
        step, which = referred(path) or ("", "")
        accepted = made_by.get(step)
        if accepted is None:
            continue
        if which == "best" and not _validates(accepted):
            yield (
                key,
                f"{path}: step {step} has no validation that would say which checkpoint is best: "
                f"set validation there, or use {STEP}{step}",
            )
        elif which.isdigit() and (why := lacks(accepted, int(which))):
            yield key, f"{path}: step {step} {why}, or use {STEP}{step}"


def lacks(accepted: Accepted, step: int) -> str | None:
    """Return why a run that trains to its end will have no checkpoint of `step`, or None if it will
    or may have one."""
    config, last = accepted.config, accepted.record.max_steps
    if last is None or step == last:
        return None
    if step > last:
        return f"trains {last} steps: name one of them"
    # Any step that is validated may be the best one, whose checkpoint stays.
    if (
        isinstance(config, SFTConfig)
        and _validates(accepted)
        and not step % config.validation.every
    ):
        return None
    every, keep = config.training.checkpoint_every, config.training.keep_checkpoints
    if not step or step % every:
        return (
            f"makes a checkpoint after every {every} steps and after the last one, {last}: name "
            "one of these, set training.checkpoint_every there"
        )
    # The last step counts, a multiple or not.
    later = -(-last // every) - step // every
    keep_every = config.training.keep_every
    if later >= keep and not (keep_every and step % keep_every == 0):
        return (
            f"makes {later} checkpoints after that of step {step}, and keeps {keep} of all: raise "
            "training.keep_checkpoints there, or set training.keep_every"
        )
    return None


def _place(step: str, rest: str) -> str:
    return f"steps.{step}.{rest}".rstrip(".")
