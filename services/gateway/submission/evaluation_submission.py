"""Turns a request to evaluate a model into the config of its run. The run has zero steps: it
publishes the model, has the rows answered by the pool's workers, and ends.

Missing keys come from the evaluation that the request is `like`; else from the dataset's template
and rewards; else from the run that made the model. Only `resolve_model` does I/O.
"""

from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from recipes import merged
from services.contracts.config import ConfigError
from services.contracts.evaluation import EvaluationRecord
from services.contracts.records import DatasetRecord, RunRecord, RunSummary
from services.gateway.dependencies import Dependencies, find_run
from services.gateway.submission.run_submission import RunSubmission, refusal
from services.http import Problem
from services.models.path import PREFIX, run_named

PROMPT = ("system", "template", "chat_template", "chat_template_kwargs")
SAMPLING = ("top_p", "top_k", "max_tokens", "stop_token_ids")
HELD_OUT = ("temperature", "max_tokens", "system", "template", "rewards")
ROLLOUT = ("vllm", "episode", "canary_limit", "lease_seconds")


class EvaluationSubmission(BaseModel):
    """The body of `POST /v1/evaluations`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {"model": "Qwen/Qwen3-0.6B", "dataset": "mine", "verifier": "math"}
        },
    )

    model: Annotated[str, Field(min_length=1)] = Field(
        description="A run (id, name) for what it made, `RUN@STEP` for its checkpoint of a step; a "
        "folder, or a hub name (org/name)."
    )
    dataset: Annotated[str, Field(min_length=1)] = Field(description="Name or id.")
    samples: int | None = Field(None, ge=1, le=1024, description="Answers of each row. Default: 1.")
    rows: int | None = Field(None, ge=1, description="Only the first ones. Default: all.")
    temperature: float | None = Field(
        None, ge=0, le=10, description="Default: 0 (greedy) for one answer a row, else 1."
    )
    max_tokens: int | None = Field(None, ge=1, description="Longest answer. Default: 512.")
    category: str | None = Field(
        None, min_length=1, description="A column by whose values results are also given."
    )
    verifier: str | None = Field(
        None,
        min_length=1,
        description="What scores the answers, where neither the dataset nor the run that made the "
        "model says so, or in place of that.",
    )
    like: str | None = Field(
        None, description="Another evaluation, whose options hold where this one has none."
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="Laid over the config that this makes, key by key."
    )
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="For people. Default: made of the model and the dataset."
    )
    pool: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] = Field(
        "default", description="Whose workers answer. The evaluation waits in the pool's queue."
    )
    priority: int = Field(0, ge=-1000, le=1000, description="Higher goes first.")


def is_evaluation(run: RunSummary) -> bool:
    """Whether a run trains nothing."""
    return run.kind == "rl" and run.max_steps == 0


async def resolve_model(deps: Dependencies, model: str) -> tuple[str, RunRecord | None]:
    """Return `model.path` for the model of a request, and the run that made the model, if any.
    Raise Problem 404 for an unknown run, and 409 if several ids begin with the given text."""
    if (name := run_named(model)) is not None:
        return model, await find_run(deps, name)
    here = Path(model).is_absolute() or model.startswith((".", "~"))
    if here or "/" in model:
        return model, None
    reference = run_named(PREFIX + model)
    assert reference is not None
    run = await find_run(deps, reference)
    return PREFIX + run.id + model.removeprefix(reference), run


def evaluation_run(
    asked: EvaluationSubmission,
    path: str,
    dataset: DatasetRecord,
    made_by: RunRecord | None,
    like: RunRecord | None,
) -> RunSubmission:
    """The run of zero steps. Raises Problem 422."""
    base = _inherited(dataset, made_by, like)
    of_model = (made_by.config.get("model") or {}) if made_by else {}
    model = {key: of_model[key] for key in ("dtype", "trust_remote_code") if key in of_model}
    samples = asked.samples or (base["evaluation"].get("samples") or 1)
    temperature = asked.temperature
    if temperature is None and (like is None or asked.samples is not None):
        temperature = 0.0 if samples == 1 else 1.0
    requested = {
        "dataset": dataset.id,
        "samples": samples,
        "rows": asked.rows,
        "temperature": temperature,
        "max_tokens": asked.max_tokens,
        "category": asked.category,
    }
    raw: dict[str, Any] = {
        "type": "rl",
        "model": {**model, "path": path},
        "data": {**base["data"], "dataset": dataset.id},
        "sampling": base["sampling"],
        "rollout": base["rollout"],
        # Training's own options mean nothing here, but have to fit the rest.
        "algorithm": {"prompts_per_step": 1, "samples_per_prompt": 2},
        "training": {"max_steps": 0},
        "evaluation": base["evaluation"]
        | {key: value for key, value in requested.items() if value is not None},
    }
    if asked.max_tokens is not None:
        raw["sampling"] = {**raw["sampling"], "max_tokens": asked.max_tokens}
    rewards = [{"verifier": asked.verifier}] if asked.verifier else base["rewards"]
    if rewards:
        raw["rewards"] = rewards
    try:
        config = merged(raw, asked.config)
    except ConfigError as error:
        raise refusal(error.problems) from None
    training = config.get("training")
    trains = isinstance(training, dict) and training.get("max_steps") != 0
    if trains or config.get("type") != "rl":
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "an evaluation trains nothing: leave type and training.max_steps out of config, or "
            "submit a run (`headrace submit`)",
            [("config", "is that of a run that trains")],
        )
    if not config.get("rewards"):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"nothing says how answers to dataset {dataset.name} are scored: name a verifier "
            "(--verifier math), or upload the file with a mapping that brings one (`headrace "
            "datasets add FILE --mapping gsm8k`)",
            [("verifier", "is required for this dataset")],
        )
    name = asked.name or f"{_short(path, made_by)} on {dataset.name}"[:100]
    return RunSubmission(
        config=config, name=name, pool=asked.pool, priority=asked.priority, recipe=None
    )


def differing(
    config: dict[str, Any],
    other: dict[str, Any],
    evaluation: EvaluationRecord,
    against: EvaluationRecord,
) -> list[str]:
    """The options, besides the model, in which the evaluations of two runs differ."""
    sections = {"data": PROMPT, "sampling": SAMPLING, "evaluation": HELD_OUT}
    options = [
        f"{section}.{key}"
        for section, keys in sections.items()
        for key in keys
        if (config.get(section) or {}).get(key) != (other.get(section) or {}).get(key)
    ]
    if config.get("rewards") != other.get("rewards"):
        options.append("rewards")
    return options + [
        key for key in ("samples", "rows") if getattr(evaluation, key) != getattr(against, key)
    ]


def _inherited(
    dataset: DatasetRecord, made_by: RunRecord | None, like: RunRecord | None
) -> dict[str, Any]:
    """Return the values of keys that the request may leave out, by section."""
    if like is not None:
        config = like.config
        kept = {key: value for key, value in config["evaluation"].items() if value is not None}
        return {
            "data": _part(config, "data", PROMPT),
            "sampling": _part(config, "sampling", SAMPLING),
            "rollout": _part(config, "rollout", ROLLOUT),
            "rewards": config["rewards"],
            "evaluation": kept,
        }
    config = made_by.config if made_by else {}
    # A supervised run samples nothing; of its prompts the form is what the model has learned.
    sampled = config if config.get("type") == "rl" else {"data": config.get("data")}
    inherited: dict[str, Any] = {
        "data": _part(sampled, "data", PROMPT),
        "sampling": _part(sampled, "sampling", SAMPLING) or {"max_tokens": 512},
        "rollout": _part(sampled, "rollout", ROLLOUT),
        # Dense rewards need an advantage with rewards per token; an evaluation takes their sum.
        "rewards": [reward | {"dense": None} for reward in sampled.get("rewards") or []],
        "evaluation": {"at_start": True},
    }
    if dataset.defaults is not None:
        # The same for every model that is compared on it.
        inherited["data"]["template"] = dataset.defaults.template
        inherited["rewards"] = [reward.model_dump() for reward in dataset.defaults.rewards]
    return inherited


def _part(config: dict[str, Any], section: str, keys: tuple[str, ...]) -> dict[str, Any]:
    whole = config.get(section) or {}
    return {key: whole[key] for key in keys if whole.get(key) is not None}


def _short(path: str, made_by: RunRecord | None) -> str:
    if made_by is None:
        return Path(path).name or path
    step = path.rpartition("@")[2] if "@" in path else ""
    return f"{made_by.name}@{step}" if step else made_by.name
