"""Whether a run fits the memory of its pool and the data volume, by what learner and workers have
said of theirs."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import anyio.to_thread
from pydantic import BaseModel, Field

from headrace.wording import ESTIMATED
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.model import ScratchModel
from services.contracts.preview import Rendering
from services.estimate.answer import Estimate, ProcessNeed
from services.estimate.fit import cannot_fit, estimate_run
from services.estimate.inputs import Model, gigabytes, known_workers, of_half
from services.estimate.model_shape import scratch_shape, shape_of
from services.estimate.one_gpu import division, with_share
from services.gateway.dependencies import Dependencies
from services.gateway.submission.mixture_shares import DatasetShare
from services.gateway.submission.model_check import Models, Problems
from services.volume import DATA_RESERVE


class DryRun(BaseModel):
    """The resolved submission and its needs. Nothing is queued."""

    config: dict[str, Any] = Field(description="The run's config, defaults filled in.")
    max_steps: int | None = Field(description="Batches that it trains.")
    warnings: list[str] = Field(description="As of a run.")
    from_datasets: dict[str, str] = Field(description="As of a run: what a dataset has set.")
    preview: Rendering | None = Field(
        description="As of a run: its first row as the model reads it."
    )
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
    free = await anyio.to_thread.run_sync(_free_for_runs, deps.volume.root)
    estimate = estimate_run(config, model, learner, workers, free)
    return Fitted(config, warnings + _too_little(estimate), estimate)


def _free_for_runs(root: Path) -> int | None:
    try:
        return max(0, shutil.disk_usage(root).free - DATA_RESERVE)
    except OSError:
        return None


def _too_little(estimate: Estimate) -> list[str]:
    """A warning for each part that needs more than is free, but not more than there could be. A
    full disk only pauses a run, so it refuses none."""
    sentences = [
        f"{reason}. It is not refused: the estimate may be off, and other work may end until then"
        for _, reason in _shortages(estimate, certain=False)
    ]
    disk = estimate.disk
    if disk.fits is False and disk.memory is not None:
        uses = ", ".join(
            f"{ESTIMATED[name]} {gigabytes(value)}" for name, value in disk.parts.items()
        )
        sentences.append(
            f"the run keeps {gigabytes(disk.needed)} on the data volume ({uses}), of which "
            f"{gigabytes(disk.memory)} are free: it is paused while the disk is full; "
            + "; ".join(disk.advice)
        )
    return sentences


def _shortages(estimate: Estimate, certain: bool) -> Problems:
    """(key, sentence) for each part that needs more than it has. `certain`: those that cannot fit
    whatever else ends, or only the others."""
    named: tuple[tuple[str, str, ProcessNeed | None], ...] = (
        ("training", _learner(estimate.learner), estimate.learner),
        ("rollout.vllm", "vLLM", estimate.rollout),
    )  # fmt: skip
    shortages = [
        (
            key,
            f"{what} needs {gigabytes(need.needed)} ({need.how}), and {_has(need, certain)}; "
            + "; ".join(need.advice),
        )
        for key, what, need in named
        if need and need.fits is False and cannot_fit(need) == certain
    ]
    host = estimate.host
    if host and host.fits is False and cannot_fit(host) == certain:
        uses = ", ".join(
            f"{ESTIMATED[name]} {gigabytes(value)}" for name, value in host.parts.items()
        )
        advice = "; ".join(host.advice)
        shortages.append(
            ("training", f"the learner's host has too little memory ({uses}); {advice}")
        )
    return shortages


def _learner(need: ProcessNeed) -> str:
    if not need.on_cpu:
        return "a rank of the learner"
    beside = need.parts.get("workers")
    return (
        f"the learner (with {gigabytes(beside)} for workers on its host)"
        if beside
        else "the learner"
    )


def _has(need: ProcessNeed, certain: bool) -> str:
    memory = need.most if certain else need.memory
    assert memory is not None
    if not need.on_cpu:
        return f"has {gigabytes(memory)} of {need.gpu}"
    return f"its host has {gigabytes(memory)} of memory {'in all' if certain else 'free for it'}"


def described(config: RLConfig | SFTConfig, models: Models) -> Model | None:
    """Return the model of a run; None if its files are not on this host."""
    if isinstance(config.model, ScratchModel):
        return Model(scratch_shape(config.model), half=True)
    if models.policy is None:
        return None
    shape = shape_of(models.policy.config, models.policy.tensors)
    if shape is None:
        return None
    others = [
        shape_of(folder.config, folder.tensors) if folder is not None else None
        for folder in (models.critic, models.teacher, models.reference)
    ]
    return Model(shape, of_half(models.policy.config), *others)


def refusals(estimate: Estimate | None) -> Problems:
    """A problem for each part of a run that cannot fit, even if the estimate is off by a tenth."""
    if estimate is None:
        return []
    return _shortages(estimate, certain=True)


def _uses(parts: dict[str, int]) -> str:
    """List what bytes are for, in words."""
    return ", ".join(f"{ESTIMATED[name]} {gigabytes(value)}" for name, value in parts.items())
