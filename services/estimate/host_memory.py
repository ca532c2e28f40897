"""The memory that the learner's host needs, with GPUs and without, and what to change if there is
too little.

Offloaded state is in pinned memory, one piece for each tensor. torch (2.13, its
`CachingHostAllocator`) rounds each piece up to a power of two.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from services.contracts.config import RLConfig
from services.contracts.config.model import lora_of
from services.contracts.config.objective.copies import FrozenReference
from services.contracts.config.objective.terms import NoKL
from services.contracts.devices import LearnerDevices
from services.estimate import rank_bytes
from services.estimate.answer import HostNeed, ProcessNeed
from services.estimate.inputs import Config, Model, Worker, available, gigabytes
from services.estimate.learner_memory import (
    copied,
    held,
    pass_of,
    rank_memory,
    shared_in_words,
    trained_weights,
)
from services.estimate.model_shape import ModelShape
from services.estimate.rank_bytes import BFLOAT16, FLOAT32, Pass
from services.estimate.rollout_memory import served_number, served_weights

CPU_RUNTIME = 1 << 30
"""Bytes that a rank on CPUs takes besides: Python's, torch's, and what its allocator keeps."""


def host_need(config: Config, model: Model, learner: LearnerDevices | None, how: Pass) -> HostNeed:
    """Estimate the host of rank 0, which has more to do than others. `learner` has GPUs, or is not
    known."""
    host = learner.host if learner else None
    here = host.ranks if host else how.ranks
    slices = how.ranks if how.parallel == "fsdp" else 1
    parts = {
        "moved": here * moved_bytes(config, model, how),
        "asleep": asleep_bytes(config, model),
        # Ranks with the same weights share one checkpoint; with slices each rank writes its own.
        "checkpoint": checkpoint_bytes(config, model) * (here if slices > 1 else 1) // slices,
        "newest": published_bytes(config, model) if isinstance(config, RLConfig) else 0,
    }
    needed = sum(parts.values())
    free = host.free + host.used if host else None
    return HostNeed(
        memory=free,
        needed=needed,
        parts={name: value for name, value in parts.items() if value},
        fits=None if free is None else needed <= free,
    )


def cpu_learner_need(
    config: Config,
    model: Model,
    learner: LearnerDevices,
    workers: Sequence[Worker],
    rollout: ProcessNeed | None,
) -> ProcessNeed:
    """Estimate all ranks on the host of rank 0, and the workers there, which share its memory.
    `rollout`: the need of a worker."""
    how, host = pass_of(config, model, learner, None), learner.host
    ranks = host.ranks if host else how.ranks
    memory = replace(rank_memory(config, model, how), runtime=0)
    parts = {name: ranks * value for name, value in vars(memory).items() if value}
    if config.training.max_steps == 0:
        # An evaluation alone trains nothing.
        parts = {"weights": parts["weights"]}
    else:
        parts["checkpoint"] = checkpoint_bytes(config, model)
    parts["process"] = ranks * CPU_RUNTIME
    beside = [each for each in workers if host and each.host == host.name and not each.gpus]
    # Workers count only if they fit themselves.
    if beside and rollout and rollout.on_cpu and rollout.fits:
        parts["workers"] = len(beside) * rollout.needed
    needed = sum(parts.values())
    free = available(host.name, learner, workers) if host else None
    kind = "bfloat16" if how.half else "float32"
    return ProcessNeed(
        gpu=None,
        on_cpu=True,
        count=ranks,
        memory=free,
        most=host.total if host else None,
        needed=needed,
        parts=parts,
        fits=None if free is None else needed <= free,
        how=f"{shared_in_words(how)} on CPUs, {kind}, {how.tokens:,} tokens a pass",
    )


def moved_bytes(config: Config, model: Model, how: Pass) -> int:
    """Bytes of one rank's state that are on the host while they are idle."""

    def on_gpu(config: Config) -> int:
        memory = held(config, model, how)
        return memory.weights + memory.optimizer + memory.copies + memory.published

    section = config.training.model_copy(update={"offload": []})
    moved = on_gpu(config.model_copy(update={"training": section}))
    if not (isinstance(config, RLConfig) and config.rollout.vllm.sleeps):
        moved -= on_gpu(config)
    return int(moved * rounding(model.shape, how.ranks if how.parallel == "fsdp" else 1))


def asleep_bytes(config: Config, model: Model) -> int:
    """Bytes of vLLM's weights if it sleeps on this host while the learner trains, else 0."""
    if not isinstance(config, RLConfig) or not config.rollout.vllm.sleeps:
        return 0
    quantised = config.rollout.vllm.quantization is not None
    weights = served_weights(model.shape, served_number(config, model), quantised)
    return int(weights * rounding(model.shape))


def checkpoint_bytes(config: Config, model: Model) -> int:
    """Bytes of a checkpoint. The host holds a copy until the checkpoint is written."""
    shape, trained = model.shape, trained_weights(config, model.shape)
    checkpoint = FLOAT32 * trained + rank_bytes.state_bytes(config.optimizer, shape, trained)
    if not isinstance(config, RLConfig):
        return checkpoint
    if critic := config.algorithm.critic:
        other = model.critic or shape
        checkpoint += FLOAT32 * other.parameters
        checkpoint += rank_bytes.state_bytes(critic.optimizer, other, other.parameters)
    kl = config.algorithm.kl
    moving = int("lagged" in copied(config))
    moving += not isinstance(kl, NoKL) and not isinstance(kl.reference, FrozenReference)
    return checkpoint + moving * FLOAT32 * shape.parameters


def published_bytes(config: Config, model: Model) -> int:
    """Bytes of a version. The host holds a copy of the newest version and writes files from it."""
    number = BFLOAT16 if config.model.dtype != "float32" and model.half else FLOAT32
    return number * trained_weights(config, model.shape)


def rounding(shape: ModelShape, slices: int = 1) -> float:
    """How many times its size a model takes in pinned memory. Each matrix is one piece, and a rank
    has one of its `slices`."""
    inner = shape.intermediate // max(shape.experts_used, 1)
    experts = max(shape.experts, 1)
    d, q, kv = shape.hidden, shape.query, shape.key_value
    block = [d * q, d * kv, d * kv, q * d]
    # The weights of all experts are two tensors.
    mlp = 3 * [d * inner] if not shape.experts else [2 * experts * d * inner, experts * d * inner]
    sizes = shape.layers * (block + mlp) + [shape.embedding, shape.head]
    wanted = [-(-size // slices) for size in sizes if size]
    return sum(1 << (size - 1).bit_length() for size in wanted) / sum(wanted)


def host_advice(config: Config, need: HostNeed) -> Iterator[str]:
    """List changes that make the host's part fit."""
    assert need.memory is not None
    if isinstance(config, RLConfig) and config.rollout.vllm.sleeps:
        yield "give the worker a GPU of its own: neither moves to the host then"
    if config.training.offload:
        yield "name less in training.offload, as far as the GPUs have room"
    if lora_of(config.model) is None:
        yield "train adapters (model.lora), or take an optimizer with less state (adamw_8bit)"
    yield (
        f"the learner's host has {gigabytes(need.memory)} free for the run, and needs "
        f"{gigabytes(need.needed)}: free some there, or take a larger host, or several"
    )
