"""From a submission to a run record: recipe, overrides, and all checks before anything starts.

A refusal lists all problems at once, each with its key path.
"""

import secrets
import time
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field

from recipes import UnknownRecipe, find_recipe, merged
from services.contracts.config import ConfigError, RLConfig, SFTConfig, parse_config
from services.contracts.config.model import lora_of
from services.contracts.preview import Rendering
from services.contracts.records import DatasetRecord, Notes, RunRecord, RunState, Tags
from services.estimate.answer import Estimate
from services.gateway.dependencies import Dependencies
from services.gateway.previews import Shown
from services.gateway.reference_checks import ReferenceCheck
from services.gateway.submission.dataset_check import (
    Datasets,
    check_categories,
    find_datasets,
    unlearnable,
    with_names,
)
from services.gateway.submission.dataset_defaults import with_defaults
from services.gateway.submission.fitting import DryRun, fitted, refusals
from services.gateway.submission.held_out_check import check_held_out
from services.gateway.submission.hub_data import with_hub_datasets
from services.gateway.submission.lora_check import check_targets
from services.gateway.submission.mixture_shares import DatasetShare, shares_of
from services.gateway.submission.model_check import (
    Models,
    Problems,
    Steps,
    check_context,
    check_experts,
    check_models,
    check_stop_tokens,
    check_tokenizer,
    check_trust,
    positions_of,
)
from services.gateway.submission.resuming import begins_anew, changed_by_resume, resumable
from services.gateway.submission.row_problems import count_problems, rows_to_count, same_answers
from services.gateway.submission.row_sample import read_rows
from services.gateway.submission.run_length import repeated_rows, run_length, trained_already
from services.gateway.submission.template_check import template_use, template_warnings
from services.gateway.submission.verifier_check import VerifierCheck, check_verifiers
from services.gateway.submission.worker_check import check_episodes, check_gpus
from services.gateway.tracking import refused_trackers
from services.http import Problem
from services.http.problems import MAX_LISTED
from services.models import ModelFolder
from services.recovery.record_copies import forget_run, keep_copy, keep_run

EDITED = ("name", "tags", "notes", "priority", "config", "edits", "paused_by")
"""What an edit changes in a run's record."""
RUN_REFUSED = "the run was not queued: its config has "


class RunSubmission(BaseModel):
    """The body of `POST /v1/runs`. At least one of `recipe`, `config`, `resume_from`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "recipe": "grpo",
                "config": {"model": {"path": "Qwen/Qwen3-0.6B"}, "data": {"dataset": "mine"}},
            }
        },
    )

    recipe: str | None = Field(None, description="A name that `GET /v1/recipes` lists.")
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="Laid over the recipe key by key, or the whole config where no recipe is "
        "named. Another `type` of a section replaces that section; a list is replaced, but for the "
        'places that a mapping names (`{"rewards": {"0": {"weight": 2}}}`).',
    )
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="For people; default: the recipe's name."
    )
    pool: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] | None = Field(
        None,
        description="The learner and the workers that are to work on it. Default: those of the run "
        "that is resumed, else the pool `default`.",
    )
    priority: int = Field(0, ge=-1000, le=1000, description="Higher goes first.")
    tags: Tags | None = Field(
        None, description="Words to find it by. Default: those of the run that is resumed."
    )
    notes: Notes | None = Field(
        None,
        description="What people should know of it. Default: those of the run that is resumed.",
    )
    resume_from: str | None = Field(
        None,
        description="A run (id, beginning of the id, or name) whose checkpoint and open tasks this "
        "one takes over (of an evaluation of a model: the answers); without `recipe` its config, "
        "too. If it has no checkpoint, this run begins from the first step. RUN@STEP takes the "
        "checkpoint of an earlier step; tasks that were trained after it are open again. If the "
        "last checkpoint is damaged, the newest whole one is taken.",
    )


class Accepted(NamedTuple):
    """A submission that may be queued."""

    record: RunRecord
    estimate: Estimate | None
    """None: the model's folder is not here."""
    config: RLConfig | SFTConfig
    model: ModelFolder | None
    """The policy to start from; None: a new model, or files that this host lacks."""
    mixture: list[DatasetShare]
    """Empty: one dataset."""
    unfinished: list[ReferenceCheck]
    """Checks of references that go on: the run's events have what they find."""
    rendering: Rendering
    """The rows that were rendered."""


def described_run(accepted: Accepted) -> DryRun:
    """Return the resolved submission and its needs."""
    record, estimate = accepted.record, accepted.estimate
    return DryRun(
        config=record.config,
        max_steps=record.max_steps,
        warnings=record.warnings,
        from_datasets=record.from_datasets,
        preview=record.preview,
        estimate=estimate,
        mixture=accepted.mixture,
        refusals=[f"{key}: {reason}" for key, reason in refusals(estimate)],
    )


class _Draft(NamedTuple):
    """A submission whose names are resolved and whose config is parsed."""

    config: RLConfig | SFTConfig
    name: str
    datasets: Datasets
    models: Models
    from_datasets: dict[str, str]
    problems: Problems
    """Names that mean nothing here. A preview that has any is refused."""
    fetched: list[str]
    """Warnings about datasets that were fetched from the hub for it."""

    @property
    def first(self) -> DatasetRecord | None:
        """The run's own dataset; None: applications bring the prompts."""
        return self.datasets.get("data.dataset")


async def accept(
    deps: Dependencies,
    submission: RunSubmission,
    steps: Steps | None = None,
    rows: range | None = None,
    is_fork: bool = False,
) -> Accepted:
    """The record to queue. `steps`: what earlier steps of a chain will have made. `rows`: those
    that are to be shown; then no reference is checked, and what would refuse the run is a warning
    if the rows can be shown all the same. `is_fork`: the run of `resume_from` is forked, and stays
    as it is. Raises Problem (404 for an unknown recipe or run, 409 for a run that is not over, 422
    listing everything that is wrong with the config)."""
    resumed = await resumable(deps, submission.resume_from, is_fork)
    source = resumed.record if resumed else None
    previous = None if source is None or begins_anew(source) else source
    draft = await _draft(deps, submission, source, previous, steps, may_fetch=not rows)
    config, datasets, problems = draft.config, draft.datasets, draft.problems
    checked = VerifierCheck([], [])
    if isinstance(config, RLConfig) and not rows:
        checked = await check_verifiers(deps, config, datasets, problems)
    before = resumed.warnings if resumed else []
    warnings = [*before, *draft.fetched, *checked.warnings, *draft.models.warnings]
    if source is not None and previous is None:
        warnings.append(
            f"run {source.name} ({source.id}) ended without a checkpoint: this run has its config, "
            "and begins from the first step"
        )
    is_refused = bool(problems)
    problems += await _unfit(deps, draft)
    problems += refused_trackers(config, deps.settings)
    if previous is not None:
        problems += changed_by_resume(config, previous.config)
    mixture = shares_of(config, datasets, previous, problems)
    epoch_rows = mixture.epoch_rows or (draft.first.rows if draft.first else 0)
    max_steps = run_length(config, epoch_rows, problems)
    problems += trained_already(max_steps, previous)
    if problems and (is_refused or not rows):
        raise refusal(problems)
    rendering, unusable, row_warnings = await _rendered(deps, draft, rows)
    problems += unusable
    if problems and not rows:
        raise refusal(problems)
    # A preview shows the rows of a run that a submission would refuse.
    warnings += [f"{key}: a run would be refused: {text}" for key, text in problems]
    warnings += row_warnings
    pool = submission.pool or (source.pool if source else "default")
    warnings += repeated_rows(config, epoch_rows, max_steps)
    # An evaluation alone trains on nothing.
    warnings += await check_held_out(deps, datasets) if max_steps != 0 else []
    warnings += config.warnings()
    if isinstance(config, RLConfig):
        warnings += await check_gpus(deps, pool, config)
        warnings += await check_categories(deps, config, datasets)
    config, fit_warnings, estimate = await fitted(deps, pool, config, draft.models)
    record = RunRecord(
        id=secrets.token_hex(4),
        name=draft.name,
        pool=pool,
        kind=config.type,
        state=RunState.QUEUED,
        tags=_labels(submission.tags, source.tags if source else []),
        notes=(source.notes if source else "") if submission.notes is None else submission.notes,
        priority=submission.priority,
        config=config.model_dump(mode="json"),
        recipe=submission.recipe or (source.recipe if source else None),
        warnings=warnings + fit_warnings,
        from_datasets=draft.from_datasets,
        dataset_names={key: dataset.name for key, dataset in datasets.items()},
        preview=rendering.first,
        resume_from=previous.id if previous else None,
        resume_step=previous.committed_step if previous and previous.checkpoint else None,
        is_fork=is_fork,
        project=source.project if source else None,
        created=time.time(),
        max_steps=max_steps,
        dataset_rows=mixture.rows,
    )
    if resumed and (resumed.goes_back or is_fork):
        at = ("checkpoint", "committed_step", "step", "version")
        record = record.model_copy(update={name: getattr(resumed.record, name) for name in at})
    policy = draft.models.policy
    return Accepted(record, estimate, config, policy, mixture.shares, checked.unfinished, rendering)


def _labels(submitted: list[str] | None, inherited: list[str]) -> list[str]:
    """Return the tags of a run, each once."""
    return list(dict.fromkeys(inherited if submitted is None else submitted))


async def _draft(
    deps: Dependencies,
    submission: RunSubmission,
    source: RunRecord | None,
    previous: RunRecord | None,
    steps: Steps | None,
    *,
    may_fetch: bool,
) -> _Draft:
    """Merge recipe, dataset and submission, resolve names, and parse the config. Raises Problem as
    `accept` does."""
    raw, name = merged_config(submission, source)
    problems: Problems = []
    fetched: list[str] = []
    raw = await with_hub_datasets(deps, raw, problems, fetched, may_fetch=may_fetch)
    raw, datasets = await find_datasets(deps, raw, problems, source)
    goes_on_with = source.config if source and submission.recipe is None else None
    submitted = submission.config if submission.recipe is not None else None
    try:
        raw, from_datasets = with_defaults(raw, datasets, goes_on_with, submitted)
        raw, models = await check_models(deps, raw, problems, steps, previous)
        config = parse_config(raw)
    except ConfigError as error:
        problems = error.problems + [p for p in problems if p[0] not in dict(error.problems)]
        problems = with_names(problems, await deps.store.datasets.list())
        raise refusal(problems, error.more) from None
    problems += await anyio.to_thread.run_sync(unlearnable, config, datasets, deps.volume)
    return _Draft(config, name, datasets, models, from_datasets, problems, fetched)


async def _unfit(deps: Dependencies, draft: _Draft) -> Problems:
    """Problems of a config with the operator's settings, the run's models and the workers."""
    config, models, model = draft.config, draft.models, draft.models.policy
    problems = check_trust(deps, config)
    problems += await anyio.to_thread.run_sync(check_tokenizer, models)
    if model is not None:
        problems += check_context(model, config)
        if isinstance(config, RLConfig):
            problems += check_experts(model, config) + check_stop_tokens(model, config)
        problems += check_targets(model, lora_of(config.model))
    if isinstance(config, RLConfig):
        problems += await check_episodes(deps, config)
    return problems


async def _rendered(
    deps: Dependencies, draft: _Draft, rows: range | None
) -> tuple[Rendering, Problems, list[str]]:
    """`rows` of the run's dataset, or the first one, rendered; and problems and warnings of all
    rows."""
    config, first, models = draft.config, draft.first, draft.models
    shown = Shown([i for i in rows or (0,) if first is None or i < first.rows])
    positions = positions_of(models.policy)
    samples = await anyio.to_thread.run_sync(read_rows, config, draft.datasets, deps.volume)
    asked = await anyio.to_thread.run_sync(rows_to_count, config, samples, positions)
    rendering = await deps.previews.of(config, first, models.tokenizer, shown, asked)
    problems, warnings = count_problems(config, samples, rendering.counts, positions)
    warnings += template_warnings(rendering, config) + template_use(config, samples)
    warnings += same_answers(samples)
    return rendering, problems, warnings


async def keep_record(deps: Dependencies, run: str) -> None:
    """Write the copy of a run's record on the data volume. A run that is deleted meanwhile gets no
    copy: gateways refuse to start when a copy is unknown to Redis, because data was lost. A run
    that is edited meanwhile gets another copy: the gateway of the edit may have written its own
    before this one."""
    record = await deps.store.runs.get(run)
    while record is not None:
        await keep_copy(keep_run, deps.volume.root, record)
        kept, record = record, await deps.store.runs.get(run)
        if record is None:
            await anyio.to_thread.run_sync(forget_run, deps.volume.root, run)
        elif all(getattr(record, field) == getattr(kept, field) for field in EDITED):
            return


def refusal(problems: Problems, more: int = 0, refused: str = RUN_REFUSED) -> Problem:
    """The answer to the submission of a run or a chain with these problems, and `more` that are not
    explained."""
    total = len(problems) + more
    count = "a problem" if total == 1 else f"{total:,} problems"
    if total > MAX_LISTED:
        count += f", of which {MAX_LISTED} are listed"
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, refused + count, problems)


def merged_config(
    submission: RunSubmission, previous: RunRecord | None
) -> tuple[dict[str, Any], str]:
    """The raw config after merging, and the run's name. Raises Problem (see `accept`)."""
    base: dict[str, Any] = {}
    name = "run"
    if submission.recipe is not None:
        try:
            base = find_recipe(submission.recipe).config
        except UnknownRecipe as error:
            raise Problem(HTTPStatus.NOT_FOUND, str(error)) from None
        name = submission.recipe
    elif previous is not None:
        base, name = previous.config, previous.name
    elif not submission.config:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "nothing was submitted: name a recipe, or give a config",
            [("recipe", "is required where there is no config")],
        )
    try:
        return merged(base, submission.config), submission.name or name
    except ConfigError as error:
        raise refusal(error.problems) from None
