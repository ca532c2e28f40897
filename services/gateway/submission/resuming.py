"""Checks that a run can be resumed, and that its new config changes only keys that may change."""

import re
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import anyio.to_thread

from headrace.config_keys import value_at
from services.contracts.config import ConfigError, RLConfig, SFTConfig, parse_config
from services.contracts.records import RunRecord
from services.gateway.dependencies import Dependencies, find_run
from services.gateway.submission.model_check import Problems
from services.http import Problem
from services.models.path import checkpoint_of, run_with_step
from services.volume import Volume
from services.volume.checkpoint import CHECKED_BYTES, NAME, damage, earlier

KEPT_BY_RESUME = (
    "type",
    "data.source",
    "data.order",
    "model.path",
    "model.lora",
    "training.seed",
    "algorithm.prompts_per_step",
    "optimizer.type",
    "algorithm.critic.path",
    "algorithm.critic.optimizer.type",
)
"""Keys that a resumed run cannot change: they define the checkpoint, tasks and steps."""
KEPT_BY_SUPERVISED = (
    "data",
    "objective.type",
    "packing",
    "training.rows_per_step",
    "validation.datasets",
    "validation.share",
)
"""The order of a supervised run, in which its checkpoint is a place."""
KEPT_BY_EVALUATION = (
    "data",
    "sampling",
    "rewards",
    "rollout.episode",
    "model.dtype",
    "rollout.vllm.quantization",
    "rollout.vllm.dtype",
    "rollout.vllm.max_model_len",
    "evaluation",
    "training.max_steps",
)
"""Keys that determine the answers of an evaluation of a model."""


def changed_by_resume(config: RLConfig | SFTConfig, previous: dict[str, Any]) -> Problems:
    """Keys of a config that differ from the resumed run's and must not."""
    whole, previous = config.model_dump(mode="json"), _complete(previous)
    supervised = KEPT_BY_SUPERVISED if isinstance(config, SFTConfig) else ()
    evaluates = value_at(previous, "training.max_steps") == 0
    why = "its checkpoint and its open tasks depend on: leave it, or start a new run with "
    why += "model.path run:RUN"
    if evaluates:
        why = "the answers that it has depend on: leave it, or evaluate anew"
    pairs = {
        key: (value_at(whole, key), value_at(previous, key))
        for key in (*KEPT_BY_RESUME, *supervised, *(KEPT_BY_EVALUATION if evaluates else ()))
    }
    return [
        (key, f"is {new}, but the run that is resumed has {old}, which {why}")
        for key, (new, old) in pairs.items()
        if new != old
    ]


def _complete(config: dict[str, Any]) -> dict[str, Any]:
    """`config` with the keys that are newer than its run, as their defaults."""
    try:
        return parse_config(config).model_dump(mode="json")
    except ConfigError:
        return config


class Resumed(NamedTuple):
    """A run that another one continues."""

    record: RunRecord
    """Its checkpoint and step are those that the new run starts from."""
    goes_back: bool
    """Whether they are not its last ones."""
    warnings: list[str]


async def resumable(
    deps: Dependencies, reference: str | None, is_fork: bool = False
) -> Resumed | None:
    """The run to resume: RUN, or RUN@STEP for the checkpoint of an earlier step; None without a
    reference. If the last checkpoint is damaged, the newest one that is whole takes its place. A
    fork needs a checkpoint, and takes that of a run that trains, too. Raises Problem (404, 409)."""
    if reference is None:
        return None
    named, step = await _run_and_step(deps, reference)
    run = await run_with_step(named, step, deps.store.runs.get)
    if run.damage:
        raise Problem(HTTPStatus.CONFLICT, f"{run.damage}: it cannot be resumed")
    if is_fork and run.checkpoint is None:
        raise Problem(HTTPStatus.CONFLICT, _nothing_to_fork(run))
    if not is_fork and not run.state.final:
        raise Problem(
            HTTPStatus.CONFLICT,
            f"run {run.name} ({run.id}) is {run.state}: cancel it before it is resumed, or let it "
            "go on",
        )
    if begins_anew(run) or run.checkpoint is None:
        if step is not None:
            raise Problem(
                HTTPStatus.CONFLICT, f"run {run.name} ({run.id}) ended without a checkpoint"
            )
        return Resumed(run, False, [])
    try:
        path = checkpoint_of(run, deps.volume.root, step)
    except ValueError as error:
        raise Problem(HTTPStatus.CONFLICT, str(error)) from None
    return await anyio.to_thread.run_sync(_checked, run, deps.volume, path, step)


def _nothing_to_fork(run: RunRecord) -> str:
    """Say why a run without a checkpoint cannot be forked, and what to do."""
    named = f"run {run.name} ({run.id}) has no checkpoint, so it cannot be forked"
    if run.max_steps == 0:
        return f"{named}: it is an evaluation of a model, which trains nothing"
    if run.state.final:
        return f"{named}: `headrace resume {run.id}` begins it anew"
    every = value_at(run.config, "training.checkpoint_every")
    return f"{named}: wait for its first one, which it writes after step {every}"


def begins_anew(run: RunRecord) -> bool:
    """Whether a run that resumes `run` starts from the beginning. An evaluation of a model goes on
    from its answers."""
    return run.checkpoint is None and run.max_steps != 0


async def _run_and_step(deps: Dependencies, reference: str) -> tuple[RunRecord, int | None]:
    """The run that a reference names, and the step after its @. A name may have an @ of its own."""
    run, at, step = reference.rpartition("@")
    try:
        return await find_run(deps, reference), None
    except Problem:
        if not at or not re.fullmatch(r"[0-9]{1,12}", step):
            raise
    return await find_run(deps, run), int(step)


def _checked(run: RunRecord, volume: Volume, path: str, step: int | None) -> Resumed:
    """`run` at its checkpoint `path`, or if that is damaged at an earlier one. Raises Problem if
    the user named the `step`, and if no earlier one is whole."""
    folder, back = volume.path(path), path != run.checkpoint
    # Another host's volume may have it: then the learner checks.
    problem = damage(folder, CHECKED_BYTES) if folder.parent.is_dir() else None
    if problem is None:
        return Resumed(_at(run, path), back, [])
    whole = [
        checkpoint for checkpoint in earlier(folder) if damage(checkpoint[1], CHECKED_BYTES) is None
    ]
    steps = ", ".join(f"{run.id}@{at}" for at, _ in whole) or "none"
    if step is not None or not whole:
        raise Problem(HTTPStatus.CONFLICT, f"{problem}; earlier ones that are whole: {steps}")
    (at, newest), *_ = whole
    warning = (
        f"{problem}; the run goes on from step {at}, whose checkpoint is whole: what was trained "
        "after it is trained again"
    )
    return Resumed(_at(run, str(newest.relative_to(volume.root))), True, [warning])


def _at(run: RunRecord, path: str) -> RunRecord:
    """`run` as of the checkpoint `path`."""
    named = NAME.fullmatch(Path(path).name)
    step = int(named[1]) if named and path != run.checkpoint else run.committed_step
    now = {"committed_step": step, "step": step, "version": step}
    return run.model_copy(update={"checkpoint": path, **now})
