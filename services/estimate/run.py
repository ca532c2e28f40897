"""What a run needs on the GPUs of its pool, whether it fits, and what to change where not."""

from collections.abc import Sequence

from services.contracts.config import RLConfig
from services.contracts.config.objective.terms import NoKL, RecomputeProximal
from services.contracts.devices import LearnerDevices
from services.estimate import sampling, training
from services.estimate.answer import Estimate, GPUNeed, HostNeed, StepTime
from services.estimate.devices import bandwidth, peak_flops
from services.estimate.host import checkpoint_bytes, host_advice, host_need, published_bytes
from services.estimate.inputs import PROMPT, Config, Model, Worker, gigabytes, smallest
from services.estimate.learner import (
    TIGHT,
    copied,
    learner_advice,
    learner_budget,
    learner_need,
    pass_of,
)
from services.estimate.rollout import rollout_advice, rollout_need, server_of
from services.estimate.training import FLOAT32, Pass

CERTAIN = 1.1
"""Estimates are within a tenth: a run that needs so much more than there is cannot fit."""
UTILISATION = 0.4
"""Share of a GPU's peak that training is taken to use."""
PAYLOAD_FILE = 4 << 20
"""Bytes above which a group does not lie in Redis, unless workers were told another number
(HEADRACE_PAYLOAD_FILE_BYTES)."""
MASKED = 90
"""Bytes of a token's sampling mask with `sampling.top_k` of 50, at most (docs/architecture.md)."""
PUBLISHED = 3
"""Versions on disk: the newest, the one that workers load, and the one before."""


def estimate_run(
    config: Config,
    model: Model,
    learner: LearnerDevices | None,
    workers: Sequence[Worker],
) -> Estimate:
    """The estimate for a checked config. `learner`, `workers`: of the run's pool; None, or none,
    where nothing is known."""
    notes: list[str] = []
    if learner is None:
        notes.append("no learner of this pool has said what it computes on: one GPU is assumed")
    elif not learner.gpus:
        notes.append("the learner computes on CPUs: whether its host has the memory is not checked")
    on_gpu = [worker for worker in workers if worker.gpus]
    budget = learner_budget(config, learner, on_gpu)
    how = pass_of(config, model, learner, budget)
    need = learner_need(config, model, learner, budget)
    rollout = None
    if isinstance(config, RLConfig):
        rollout = rollout_need(config, model, learner, on_gpu)
        if not workers:
            notes.append("no rollout worker of this pool has said what it samples on")
        elif not on_gpu:
            notes.append(
                "the workers sample on CPUs: whether their hosts have the memory is not checked"
            )
    host = None if learner and not learner.gpus else host_need(config, model, learner, how)
    advice: list[str] = []
    if need.fits is False and learner and budget:
        advice += list(learner_advice(config, model, learner, budget))
    if rollout is not None and rollout.fits is False and isinstance(config, RLConfig):
        advice += list(rollout_advice(config, model, learner, on_gpu, rollout))
    if host is not None and host.fits is False:
        advice += list(host_advice(config, host))
    notes += [
        f"{gigabytes(one.needed)} of {gigabytes(one.memory)} is tight: estimates are within 10 %"
        for one in (need, rollout, host)
        if one and one.fits and one.memory and one.needed > TIGHT * one.memory
    ]
    in_files = payload_files(config, model)
    if in_files:
        notes.append(
            f"of the disk, {gigabytes(in_files)} are for finished groups that are too large for "
            "Redis, of completions of all their tokens; HEADRACE_PAYLOADS_URL puts them into a "
            "bucket, and a lower training.checkpoint_every needs less"
        )
    fits = [one.fits for one in (need, rollout) if one is not None]
    if host is not None and host.fits is False:
        fits.append(False)
    return Estimate(
        learner=need,
        rollout=rollout,
        host=host,
        step=step_time(config, model, learner, on_gpu, how, notes),
        disk=disk(config, model) + in_files,
        fits=False if False in fits else None if None in fits else True,
        advice=advice,
        notes=notes,
    )


def cannot_fit(need: GPUNeed | HostNeed) -> bool:
    """Whether a part needs so much more than there is that no error of the estimate explains it."""
    return need.memory is not None and need.needed > CERTAIN * need.memory


def step_time(
    config: Config,
    model: Model,
    learner: LearnerDevices | None,
    workers: Sequence[Worker],
    how: Pass,
    notes: list[str],
) -> StepTime:
    """Of a step of completions of `max_tokens`, trained as `how` says. Adds to `notes` what was
    assumed."""
    if not isinstance(config, RLConfig):
        return StepTime(training=None, sampling=None)
    algorithm = config.algorithm
    length = config.max_tokens + PROMPT
    groups = algorithm.prompts_per_step
    trained = groups * algorithm.samples_per_prompt * length
    flops = training.pass_flops(model.shape, trained, length)
    passes: float = (3 + how.checkpointing) * algorithm.epochs_per_batch + len(copied(config))
    passes += isinstance(algorithm.proximal, RecomputeProximal)
    passes += not isinstance(algorithm.kl, NoKL) and config.model.lora is not None
    if algorithm.critic:
        passes += 3 * algorithm.epochs_per_batch + 1
    if algorithm.loads_teacher:
        passes += (model.teacher or model.shape).parameters / model.shape.parameters
    speed = peak_flops(smallest(learner.gpus).name) if learner and learner.gpus else None
    seconds = None
    if learner and speed:
        seconds = flops * passes / (learner.ranks * speed * UTILISATION)
    rates = []
    for worker in workers:
        fast = bandwidth(smallest(worker.gpus).name)
        server = server_of(config, model, learner, worker)
        if fast and sampling.cache(model.shape, server) > 0:
            rates.append(sampling.tokens_a_second(model.shape, server, fast, length))
    sampled = groups * algorithm.samples_generated * config.max_tokens
    if seconds is not None or rates:
        notes.append(
            f"times are for completions of all {config.max_tokens:,} tokens and prompts "
            f"of {PROMPT}, with {UTILISATION:.0%} of the learner's peak"
        )
    return StepTime(training=seconds, sampling=sampled / sum(rates) if rates else None)


def payload_files(config: Config, model: Model) -> int:
    """Bytes of finished groups outside of Redis: those that the next checkpoint contains, and those
    of the one that is on its way."""
    if not isinstance(config, RLConfig):
        return 0
    shape, algorithm = model.shape, config.algorithm
    routed = 0
    if config.algorithm.router.replay:
        routed = shape.layers * shape.experts_used * (1 if shape.experts <= 256 else 2)
    taught = FLOAT32 if algorithm.teacher and algorithm.teacher.endpoint else 0
    masked = MASKED if config.sampling.top_k else 0
    token = (2 if shape.vocabulary <= 1 << 16 else 4) + FLOAT32 + routed + taught + masked
    samples = algorithm.samples_per_prompt
    group = samples * config.max_tokens * token + PROMPT * routed
    if group <= PAYLOAD_FILE:
        return 0
    every = config.training.checkpoint_every
    steps = min(every, config.training.max_steps or every)
    return 2 * steps * algorithm.prompts_per_step * group


def disk(config: Config, model: Model) -> int:
    """Bytes of a run's checkpoints and published versions. While a checkpoint is written, there is
    one more than are kept."""
    checkpoint = checkpoint_bytes(config, model)
    if not isinstance(config, RLConfig):
        # The one of the lowest loss is kept, too.
        return (config.training.keep_checkpoints + 2) * checkpoint
    published = PUBLISHED * published_bytes(config, model)
    return (config.training.keep_checkpoints + 1) * checkpoint + published
