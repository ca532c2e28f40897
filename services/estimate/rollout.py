"""The memory that a rollout worker needs, and what to change if it does not fit."""

from collections import Counter
from collections.abc import Iterator, Sequence

from services.contracts.config import RLConfig
from services.contracts.devices import LearnerDevices
from services.estimate import sampling
from services.estimate.answer import ProcessNeed
from services.estimate.inputs import PROMPT, Model, Worker, available, smallest

ALONE, SHARED = 0.9, 0.4
"""vLLM's share of a GPU if the config names none: alone, and with the learner on the same GPU."""
ASLEEP = sampling.GRAPHS
"""Bytes that a vLLM keeps while it sleeps: CUDA's own, and graphs."""
CPU_RUNTIME, CPU_CACHE = 2 << 30, 2 << 30
"""On CPUs: what a worker and its vLLM take besides weights, and their cache if
HEADRACE_VLLM_KV_CACHE_GIB names no other size."""
LARGE, MANY, FEW = 70 << 30, 1024, 256
"""vLLM runs MANY sequences at once on GPUs of LARGE memory or more, FEW on others (0.32)."""


def vllm_share(config: RLConfig, workers: Sequence[Worker], shared: bool) -> float:
    """The share of a GPU that the vLLM servers of `workers`, all on this GPU, take together.
    `shared`: whether the learner is on it, too."""
    if config.rollout.vllm.gpu_memory_utilization is not None:
        return config.rollout.vllm.gpu_memory_utilization
    own = [worker.share for worker in workers if worker.share is not None]
    usual = SHARED if shared else ALONE
    return sum(own) if own and len(own) == len(workers) else usual


def server_of(
    config: RLConfig, model: Model, learner: LearnerDevices | None, worker: Worker
) -> sampling.Server:
    """The vLLM server of `worker`; without GPUs, of no budget."""
    options, gpus = config.rollout.vllm, worker.gpus
    trains = {gpu.uuid for gpu in learner.gpus} if learner else set()
    shared = any(gpu.uuid in trains for gpu in gpus)
    memory = min((gpu.memory for gpu in gpus), default=0)
    budget = int(memory * vllm_share(config, [worker], shared))
    longest = options.max_model_len or model.shape.positions
    dtype = config.model.dtype if options.computes_in == "auto" else options.computes_in
    half = dtype == "bfloat16" or (dtype == "auto" and model.half)
    wanted = config.max_tokens + PROMPT
    sequences = options.max_num_seqs or (MANY if memory >= LARGE else FEW)
    return sampling.Server(
        options.tensor_parallel_size,
        budget,
        sequences,
        longest or wanted,
        half,
        options.quantization is not None,
    )


def rollout_need(
    config: RLConfig, model: Model, learner: LearnerDevices | None, workers: Sequence[Worker]
) -> ProcessNeed:
    """Estimate each GPU of the worker with least memory: weights, and keys and values of one
    sequence of the longest length. vLLM does not start with less."""
    worker = weakest(workers)
    gpus = worker.gpus
    server, shape = server_of(config, model, learner, worker), model.shape
    least = sampling.token_bytes(shape, server) * server.longest
    parts = {
        "weights": sampling.weights(shape, server),
        "runtime": sampling.overhead(shape, server),
        "cache": max(least, sampling.cache(shape, server)) if gpus else least,
    }
    needed = parts["weights"] + parts["runtime"] + least
    share = int(parts["cache"] / max(sampling.token_bytes(shape, server), 1))
    return ProcessNeed(
        gpu=smallest(gpus).name if gpus else None,
        count=server.gpus,
        memory=server.budget or None,
        most=server.budget or None,
        needed=needed,
        parts=parts,
        fits=None if not gpus else needed <= server.budget,
        how=f"vLLM on {server.gpus} of them, a cache of {share:,} tokens",
    )


def cpu_rollout_need(
    config: RLConfig, model: Model, learner: LearnerDevices | None, workers: Sequence[Worker]
) -> ProcessNeed:
    """Estimate a worker that samples on CPUs, in its host's memory. Several workers on one host
    share it equally."""
    server, shape = server_of(config, model, learner, workers[0]), model.shape
    tokens = sampling.token_bytes(shape, server)
    parts = {
        "weights": sampling.weights(shape, server),
        "process": CPU_RUNTIME,
        "cache": max(tokens * server.longest, CPU_CACHE),
    }
    needed = sum(parts.values())
    on_host = Counter(one.host for one in workers)
    has = {host: available(host, learner, workers) for host in on_host}
    free = [size // on_host[host] for host, size in has.items() if size is not None]
    total = [one.total // on_host[one.host] for one in workers if one.total]
    return ProcessNeed(
        gpu=None,
        on_cpu=True,
        count=1,
        memory=min(free, default=None),
        most=min(total, default=None),
        needed=needed,
        parts=parts,
        fits=None if not free else needed <= min(free),
        how=f"vLLM on CPUs, a cache of {parts['cache'] // max(tokens, 1):,} tokens",
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


def weakest(workers: Sequence[Worker]) -> Worker:
    """The worker whose GPUs have least memory; without workers, one without GPUs."""
    return min(workers, key=lambda worker: smallest(worker.gpus).memory, default=Worker(()))
