"""Which runs can be resumed, and which keys of the config a resumed run cannot change."""

from http import HTTPStatus
from typing import Any

from services.contracts.config import ConfigError, parse_config
from services.contracts.records import RunRecord
from services.gateway.dependencies import Dependencies, find_run
from services.gateway.model_check import Problems
from services.http import Problem

KEPT_BY_RESUME = (
    ("type",),
    ("data", "source"),
    ("data", "order"),
    ("model", "path"),
    ("model", "lora"),
    ("training", "seed"),
    ("algorithm", "prompts_per_step"),
    ("optimizer", "type"),
    ("algorithm", "critic", "path"),
    ("algorithm", "critic", "optimizer", "type"),
)
"""What a checkpoint holds, and what a task and a step mean: a run that goes on cannot change it."""
KEPT_BY_SUPERVISED = (
    ("data",),
    ("objective", "type"),
    ("packing",),
    ("training", "rows_per_step"),
    ("validation", "datasets"),
    ("validation", "share"),
)
"""The order of a supervised run, in which its checkpoint is a place."""
KEPT_BY_EVALUATION = (
    ("data",),
    ("sampling",),
    ("rewards",),
    ("rollout", "episode"),
    ("model", "dtype"),
    ("rollout", "vllm", "quantization"),
    ("rollout", "vllm", "dtype"),
    ("rollout", "vllm", "max_model_len"),
    ("evaluation",),
    ("training", "max_steps"),
)
"""What the answers of an evaluation of a model depend on."""


def changed_by_resume(config: dict[str, Any], previous: dict[str, Any]) -> Problems:
    """Keys of a whole config that differ from the resumed run's and must not."""
    config, previous = _complete(config), _complete(previous)
    problems: Problems = []
    supervised = KEPT_BY_SUPERVISED if config.get("type") == "sft" else ()
    evaluates = _at(previous, ("training", "max_steps")) == 0
    for path in (*KEPT_BY_RESUME, *supervised, *(KEPT_BY_EVALUATION if evaluates else ())):
        new, old = _at(config, path), _at(previous, path)
        if new != old:
            problems.append(
                (
                    ".".join(path),
                    f"is {new}, but the run that is resumed has {old}, which "
                    + (
                        "the answers that it has depend on: leave it, or evaluate anew"
                        if evaluates
                        else "its checkpoint and its open tasks depend on: leave it, or start a "
                        "new run with model.path run:RUN"
                    ),
                )
            )
    return problems


def _complete(config: dict[str, Any]) -> dict[str, Any]:
    """`config` with the keys that are newer than its run, as their defaults."""
    try:
        return parse_config(config).model_dump(mode="json")
    except ConfigError:
        return config


def _at(config: dict[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = config
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


async def resumable(deps: Dependencies, reference: str | None) -> RunRecord | None:
    """The run to resume; None without a reference. Raises Problem (404, 409)."""
    if reference is None:
        return None
    run = await find_run(deps, reference)
    if run.damage:
        raise Problem(HTTPStatus.CONFLICT, f"{run.damage}: it cannot be resumed")
    if not run.state.final:
        raise Problem(
            HTTPStatus.CONFLICT,
            f"run {run.name} ({run.id}) is {run.state}: cancel it before it is resumed, or let it "
            "go on",
        )
    return run


def begins_anew(run: RunRecord) -> bool:
    """Whether a run that resumes `run` starts from the beginning. An evaluation of a model goes on
    from its answers."""
    return run.checkpoint is None and run.max_steps != 0
