"""Whether a run fits the GPUs of its pool and its learner's host, by what learner and workers have
said of them."""

from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.model import ScratchModel
from services.estimate.answer import Estimate
from services.estimate.inputs import Model, gigabytes, known_workers, of_half
from services.estimate.one_gpu import division, with_share
from services.estimate.parts import WORDS
from services.estimate.run import cannot_fit, estimate_run
from services.estimate.shape import scratch_shape, shape_of
from services.gateway.dependencies import Dependencies
from services.gateway.mixing import DatasetShare
from services.gateway.model_check import Models, Problems


class DryRun(BaseModel):
    """What a submission would be, and what it needs. Nothing is queued."""

    config: dict[str, Any] = Field(description="The run's config, defaults filled in.")
    max_steps: int | None = Field(description="Batches that it trains.")
    warnings: list[str] = Field(description="As of a run.")
    from_datasets: dict[str, str] = Field(description="As of a run: what a dataset has set.")
    estimate: Estimate | None = Field(
        description="Null where the gateway cannot tell: the model's folder is not here, or its "
        "config.json names no widths."
    )
    mixture: list[DatasetShare] = Field(
        description="Of a mixture of prompts: what an epoch takes of each dataset. Empty: there is "
        "one dataset, or the run is supervised."
    )
    refusals: list[str] = Field(
        description="Why the submission would be refused: it cannot fit. Empty: it would be queued."
    )


class Fitted(NamedTuple):
    """A config as it fits the GPUs of a pool."""

    config: RLConfig | SFTConfig
    """With another share of its GPU for vLLM, if that fits and the usual one does not; perhaps in
    turns with the learner."""
    warnings: list[str]
    estimate: Estimate | None
    """None where the model is not here."""


async def fitted(
    deps: Dependencies, pool: str, config: RLConfig | SFTConfig, models: Models
) -> Fitted:
    """The config for the GPUs of its pool, and what the run needs of them."""
    model = described(config, models)
    if model is None:
        return Fitted(config, [], None)
    learner = await deps.store.pools.devices(pool)
    workers = known_workers(await deps.store.workers.list(pool))
    divided = division(config, model, learner, workers) if isinstance(config, RLConfig) else None
    warnings = [divided.words] if divided else []
    if divided and divided.share is not None and isinstance(config, RLConfig):
        config = with_share(config, divided.share, divided.sleeps)
    return Fitted(config, warnings, estimate_run(config, model, learner, workers))


def described(config: RLConfig | SFTConfig, models: Models) -> Model | None:
    """The model of a run; None where it is not here."""
    if isinstance(config.model, ScratchModel):
        return Model(scratch_shape(config.model), half=True)
    if models.policy is None:
        return None
    shape = shape_of(models.policy.config, models.policy.tensors)
    if shape is None:
        return None
    critic = None
    if models.critic is not None:
        critic = shape_of(models.critic.config, models.critic.tensors)
    teacher = None
    if models.teacher is not None:
        teacher = shape_of(models.teacher.config, models.teacher.tensors)
    return Model(shape, of_half(models.policy.config), critic, teacher)


def refusals(estimate: Estimate | None) -> Problems:
    """A problem for each part of a run that cannot fit, even if the estimate is off by a tenth."""
    if estimate is None:
        return []
    parts = (
        ("training", "a rank of the learner", estimate.learner),
        ("rollout.vllm", "vLLM", estimate.rollout),
    )
    advice = "; ".join(estimate.advice)
    problems = [
        (
            key,
            f"{what} needs {gigabytes(need.needed)} ({need.how}), and has "
            f"{gigabytes(need.memory)} of {need.gpu}; {advice}",
        )
        for key, what, need in parts
        if need and need.memory and cannot_fit(need)
    ]
    host = estimate.host
    if host and cannot_fit(host):
        uses = ", ".join(f"{WORDS[name]} {gigabytes(value)}" for name, value in host.parts.items())
        problems.append(
            ("training", f"the learner's host has too little memory ({uses}); {advice}"),
        )
    return problems
