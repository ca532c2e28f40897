"""The memory that a rollout worker needs, and what to change if it does not fit."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.contracts.config import RLConfig
from services.contracts.config.model import lora_of
from services.contracts.devices import LearnerDevices
from services.estimate.answer import ProcessNeed
from services.estimate.inputs import PROMPT, Model, Worker, available, smallest
from services.estimate.model_shape import ModelShape

ALONE, SHARED = 0.9, 0.4
"""vLLM's share of a GPU if the config names none: alone, and with the learner on the same GPU."""
ASLEEP = 2 << 30
"""Bytes that a vLLM keeps while it sleeps: CUDA's own, graphs, and what a pass over prompts takes.
"""
LOGITS = 8
"""Bytes per sequence and token of the vocabulary: logits in float32, and their softmax."""
PATCH = 128 << 20
"""Bytes of tensors that vLLM patches together (`CHUNK` in `rollout.vllm_plugin.weight_patch`),
unless one tensor is larger. Their positions, and which of their values change, take as much again.
"""
CPU_RUNTIME, CPU_CACHE = 2 << 30, 2 << 30
"""On CPUs: what a worker and its vLLM take besides weights, and their cache if
HEADRACE_VLLM_KV_CACHE_GIB names no other size."""
LARGE, MANY, FEW = 70 << 30, 1024, 256
"""vLLM runs MANY sequences at once on GPUs of LARGE memory or more, FEW on others (0.32)."""


@dataclass(frozen=True)
class Server:
    """The vLLM server of a worker. Its GPUs divide weights and heads equally."""

    shape: ModelShape
    gpus: int
    budget: int
    """Bytes of each GPU that it may take. 0 on CPUs."""
    sequences: int
    """Most sequences that are generated at once."""
    longest: int
    """Tokens of the longest sequence that it must serve."""
    number: int
    """Bytes of a number."""
    quantised: bool
    patched: bool = False
    """Whether versions change single values in place."""

    @property
    def weights(self) -> int:
        """Bytes on each GPU."""
        return -(-served_weights(self.shape, self.number, self.quantised) // self.gpus)

    @property
    def overhead(self) -> int:
        """Bytes on each GPU besides weights and cache."""
        logits = self.sequences * self.shape.vocabulary * LOGITS // self.gpus
        return ASLEEP + logits + self.patch

    @property
    def patch(self) -> int:
        """Bytes on each GPU while a version is patched in: whole tensors as the checkpoint has
        them."""
        if not self.patched:
            return 0
        largest = max(self.shape.embedding, self.shape.hidden * self.shape.intermediate)
        return 2 * max(PATCH, self.number * largest)

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values of one token on each GPU."""
        return -(-2 * self.number * self.shape.layers * self.shape.key_value // self.gpus)


def served_weights(shape: ModelShape, number: int, quantised: bool) -> int:
    """Return the bytes of all weights in vLLM, with `number` bytes each. If `quantised`, blocks
    take 8 bits a weight, and only the embedding and the output head `number` bytes."""
    outside = shape.embedding + shape.head
    if quantised:
        return shape.parameters - outside + outside * number
    return shape.parameters * number


def served_number(config: RLConfig, model: Model) -> int:
    options = config.rollout.vllm
    dtype = config.model.dtype if options.computes_in == "auto" else options.computes_in
    return 2 if dtype == "bfloat16" or (dtype == "auto" and model.half) else 4


def vllm_share(config: RLConfig, workers: Sequence[Worker], shared: bool) -> float:
    """The share of a GPU that the vLLM servers of `workers`, all on this GPU, take together.
    `shared`: whether the learner is on it, too."""
    if config.rollout.vllm.gpu_memory_utilization is not None:
        return config.rollout.vllm.gpu_memory_utilization
    shares = [worker.share for worker in workers if worker.share is not None]
    usual = SHARED if shared else ALONE
    return sum(shares) if shares and len(shares) == len(workers) else usual


def server_of(
    config: RLConfig, model: Model, learner: LearnerDevices | None, worker: Worker
) -> Server:
    options, gpus = config.rollout.vllm, worker.gpus
    trains = {gpu.uuid for gpu in learner.gpus} if learner else set()
    shared = any(gpu.uuid in trains for gpu in gpus)
    memory = min((gpu.memory for gpu in gpus), default=0)
    longest = options.max_model_len or model.shape.positions or config.max_tokens + PROMPT
    return Server(
        model.shape,
        options.tensor_parallel_size,
        int(memory * vllm_share(config, [worker], shared)),
        options.max_num_seqs or (MANY if memory >= LARGE else FEW),
        longest,
        served_number(config, model),
        options.quantization is not None,
        patches(config, model) and bool(gpus),
    )


def patches(config: RLConfig, model: Model) -> bool:
    """Whether vLLM changes single weights of the run's model in place on a GPU
    (`rollout.vllm_plugin.weight_patch.patchable`)."""
    half = config.model.dtype == "bfloat16" or (config.model.dtype == "auto" and model.half)
    as_published = config.rollout.weights == "auto" and not config.rollout.vllm.quantization
    return half and as_published and not lora_of(config.model) and not model.shape.experts


def shared_cache(
    config: RLConfig, model: Model, learner: LearnerDevices | None, worker: Worker
) -> int | None:
    """Return the bytes of keys and values for a vLLM that computes on the learner's GPU while the
    learner trains, by the estimate: vLLM's own measurement would count what the learner allocates
    and frees meanwhile. Return None if vLLM can measure, or if its share has no room for one
    sequence of the longest length: then vLLM says what it lacks."""
    trains = {gpu.uuid for gpu in learner.gpus} if learner else set()
    if config.rollout.vllm.sleeps or not any(gpu.uuid in trains for gpu in worker.gpus):
        return None
    server = server_of(config, model, learner, worker)
    cache = server.budget - server.weights - server.overhead
    return cache if cache >= server.token_bytes * server.longest else None


def rollout_need(
    config: RLConfig, model: Model, learner: LearnerDevices | None, workers: Sequence[Worker]
) -> ProcessNeed:
    """Estimate each GPU of the worker with least memory: weights, and keys and values of one
    sequence of the longest length. vLLM does not start with less."""
    worker = min(workers, key=lambda candidate: smallest(candidate.gpus).memory, default=Worker(()))
    gpus, server = worker.gpus, server_of(config, model, learner, worker)
    least = server.token_bytes * server.longest
    fixed = server.weights + server.overhead
    cache = max(least, server.budget - fixed) if gpus else least
    return ProcessNeed(
        gpu=smallest(gpus).name if gpus else None,
        count=server.gpus,
        memory=server.budget or None,
        most=server.budget or None,
        needed=fixed + least,
        parts={"weights": server.weights, "runtime": server.overhead, "cache": cache},
        fits=None if not gpus else fixed + least <= server.budget,
        how=f"vLLM on {server.gpus} of them, a cache of {cache // server.token_bytes:,} tokens",
    )


def cpu_rollout_need(
    config: RLConfig, model: Model, learner: LearnerDevices | None, workers: Sequence[Worker]
) -> ProcessNeed:
    """Estimate a worker that samples on CPUs, in its host's memory. Several workers on one host
    share it equally."""
    server = server_of(config, model, learner, workers[0])
    cache = max(server.token_bytes * server.longest, CPU_CACHE)
    parts = {"weights": server.weights, "process": CPU_RUNTIME, "cache": cache}
    needed = sum(parts.values())
    on_host = Counter(worker.host for worker in workers)
    has = {host: available(host, learner, workers) for host in on_host}
    free = [size // on_host[host] for host, size in has.items() if size is not None]
    total = [worker.total // on_host[worker.host] for worker in workers if worker.total]
    return ProcessNeed(
        gpu=None,
        on_cpu=True,
        count=1,
        memory=min(free, default=None),
        most=min(total, default=None),
        needed=needed,
        parts=parts,
        fits=None if not free else needed <= min(free),
        how=f"vLLM on CPUs, a cache of {cache // server.token_bytes:,} tokens",
    )


def rollout_advice(config: RLConfig, need: ProcessNeed) -> Iterator[str]:
    """List changes that make a worker's part smaller."""
    longest = config.max_tokens + PROMPT
    if (
        need.parts["cache"] > need.needed // 8
        and (config.rollout.vllm.max_model_len or longest + 1) > longest
    ):
        yield (
            "set rollout.vllm.max_model_len to what a prompt and its completion need, e.g. "
            f"{longest}: vLLM keeps room for the longest sequence"
        )
    if need.on_cpu:
        yield "take workers with more memory, or a smaller model"
        return
    yield (
        "raise rollout.vllm.tensor_parallel_size (now "
        f"{config.rollout.vllm.tensor_parallel_size}), and give each worker as many GPUs "
        "(HEADRACE_GPUS_PER_WORKER); or take workers with larger GPUs, or a smaller model"
    )
