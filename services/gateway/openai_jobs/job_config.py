"""Makes the submission of a run from a fine-tuning job: recipes, and numbers for `auto`. Pure."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.gateway.openai_jobs.files import FieldError
from services.gateway.openai_jobs.graders import place_in
from services.gateway.openai_jobs.job_requests import AUTO, JobRequest

RECIPES = {"supervised": "sft", "dpo": "dpo", "reinforcement": "grpo"}
RATES = {"supervised": 1e-5, "dpo": 1e-6, "reinforcement": 1e-6}
"""Learning rates at a multiplier of 1: those of the recipes."""
MOST_TOKENS = 16_384
"""Longest row of a job, and longest prompt with its answer."""
MOST_ANSWER = 1024
SAMPLES = 8
"""Answers to a prompt at a compute multiplier of 1."""
CANDIDATES = 50
"""Candidates of a token in answers with a schema: each token carries its own."""
USUAL_STEPS = 100
"""Steps of a reinforcement job with automatic epochs."""
EVALUATIONS = 10
SAVED_SECONDS = 900.0
PARAMS = {
    "model": "model",
    "data": "training_file",
    "validation": "validation_file",
    "evaluation": "validation_file",
    "tracking": "integrations",
    "optimizer.lr": "hyperparameters.learning_rate_multiplier",
    "training.epochs": "hyperparameters.n_epochs",
    "training.rows_per_step": "hyperparameters.batch_size",
    "algorithm.prompts_per_step": "hyperparameters.batch_size",
    "algorithm.samples_per_prompt": "hyperparameters.compute_multiplier",
    "sampling.json_schema": "method.reinforcement.response_format",
    "objective.beta": "hyperparameters.beta",
}
REWARD = "rewards.0."
GRADER = f"{REWARD}params.grader"


@dataclass(frozen=True)
class JobFacts:
    """A job's model and datasets, once they have been read."""

    path: str
    """`model.path` of the run."""
    positions: int | None
    """Longest sequence of the model; None: its config does not say."""
    dataset: str
    rows: int
    validation: str | None


@dataclass(frozen=True)
class JobPlan:
    """A job as a run."""

    config: dict[str, Any]
    used: dict[str, Any]
    """The hyperparameters, with numbers for `auto`."""


def planned(request: JobRequest, facts: JobFacts, seed: int) -> JobPlan:
    """Return a job's config, and the hyperparameters that it uses."""
    method = request.method.type
    used = request.method.hyperparameters.model_dump(exclude_none=True)

    def use(name: str, automatic: Callable[[], Any]) -> Any:
        if used[name] == AUTO:
            used[name] = automatic()
        return used[name]

    is_sampled = method == "reinforcement"
    most = 32 if is_sampled else min(32, math.ceil(facts.rows / 64))
    batch = min(use("batch_size", lambda: max(1, min(most, facts.rows))), facts.rows)
    a_step = facts.rows / batch
    usual = max(1, min(50, math.ceil(USUAL_STEPS / a_step))) if is_sampled else 3
    epochs = use("n_epochs", lambda: 1 if method == "dpo" else usual)
    steps = max(1, math.ceil(a_step * epochs))
    rate = RATES[method] * use("learning_rate_multiplier", lambda: 1.0)
    length = min(facts.positions or MOST_TOKENS, MOST_TOKENS)
    config: dict[str, Any] = {
        "model": {"path": facts.path},
        "data": {"dataset": facts.dataset},
        "optimizer": {"lr": rate},
        "training": {
            "epochs": float(epochs),
            "seed": seed,
            "checkpoint_every": max(1, math.ceil(a_step)),
            "checkpoint_seconds": SAVED_SECONDS,
            "keep_checkpoints": 3,
        },
        "tracking": _tracking(request),
    }
    every = max(1, steps // EVALUATIONS)
    if is_sampled:
        config["schedule"] = {"warmup_steps": min(5, steps // EVALUATIONS)}
        config["training"]["max_steps"] = None
        _sampled(config, request, facts, length, batch, use, every)
        return JobPlan(config, used)
    config["data"] |= {"max_seq_len": length, "overlong": "crop"}
    config["training"]["rows_per_step"] = batch
    warmup = 10 if method == "supervised" else 150
    config["schedule"] = {"warmup_steps": min(warmup, steps // EVALUATIONS)}
    held_out: dict[str, Any] = {"share": 0.0}
    if facts.validation is not None:
        held_out = {"datasets": [facts.validation], "every": every}
    config["validation"] = held_out
    if method == "dpo":
        config["objective"] = {"beta": use("beta", lambda: 0.1)}
    return JobPlan(config, used)


def _sampled(
    config: dict[str, Any],
    request: JobRequest,
    facts: JobFacts,
    length: int,
    batch: int,
    use: Callable[[str, Callable[[], Any]], Any],
    every: int,
) -> None:
    """Add what only a reinforcement job has."""
    assert request.method.reinforcement is not None
    grader = request.method.reinforcement.grader
    multiplier = use("compute_multiplier", lambda: 1.0)
    config["rewards"] = [{"verifier": "grader", "params": {"grader": grader}}]
    config["sampling"] = {"max_tokens": max(1, min(MOST_ANSWER, length // 2))}
    if (schema := request.method.reinforcement.json_schema) is not None:
        config["sampling"] |= {"json_schema": schema, "top_k": CANDIDATES}
    config["rollout"] = {"vllm": {"max_model_len": length}}
    config["algorithm"] = {
        "prompts_per_step": batch,
        "samples_per_prompt": max(2, round(SAMPLES * multiplier)),
    }
    interval, samples = use("eval_interval", lambda: every), use("eval_samples", lambda: 1)
    if facts.validation is not None:
        config["evaluation"] = {
            "dataset": facts.validation,
            "every": interval,
            "samples": samples,
            "temperature": 0.0 if samples == 1 else 1.0,
        }


def _tracking(request: JobRequest) -> dict[str, Any]:
    for each in request.integrations or ():
        chosen = each.wandb.model_dump(exclude={"name"}, exclude_none=True)
        return {"wandb": chosen}
    return {}


def run_name(request: JobRequest, file: str) -> str:
    """Return the name of a job's run: its suffix, or its file's name."""
    for each in request.integrations or ():
        if each.wandb.name:
            return each.wandb.name[:100]
    return (request.suffix or file.rpartition(".")[0] or file)[:100]


def refused(request: JobRequest, problems: list[tuple[str, str]], detail: str) -> FieldError:
    """Return the refusal of a job whose run has `problems`, by keys of its config. `param` is the
    field of the first problem."""
    if not problems:
        return FieldError("", detail)
    named = [(_param(key, request), text) for key, text in problems[:5]]
    message = "; ".join(
        f"{text} ({key})" if param is None else text
        for (param, text), (key, _) in zip(named, problems, strict=False)
    )
    return FieldError(named[0][0] or "", message)


def _param(key: str, request: JobRequest) -> str | None:
    method, reinforcement = request.method.type, request.method.reinforcement
    if reinforcement is not None and key.startswith(GRADER):
        place = place_in(reinforcement.grader, key.removeprefix(REWARD))
        return f"method.reinforcement.{place}"
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        if param := PARAMS.get(".".join(parts[:end])):
            is_number = param.startswith("hyperparameters.")
            return f"method.{method}.{param}" if is_number else param
    return None
