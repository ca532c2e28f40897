"""The inputs of an estimate: a config, its model, and the machines of a pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.contracts.config import RLConfig, SFTConfig
from services.contracts.devices import GPUDevice, LearnerDevices
from services.contracts.records import WorkerRecord
from services.estimate.model_shape import ModelShape

PROMPT = 256
"""Tokens that a prompt is taken to have: the config does not say."""

Config = RLConfig | SFTConfig


@dataclass(frozen=True)
class Worker:
    """The GPUs of one rollout worker; none: it samples on CPUs."""

    gpus: tuple[GPUDevice, ...]
    share: float | None = None
    """vLLM's share of each GPU if the config names none; None: the usual share."""
    host: str = ""
    free: int | None = None
    """Free bytes of its host's memory. None: it has not said it yet."""
    used: int = 0
    """Bytes that the worker itself has."""
    total: int | None = None
    """Bytes of its host's memory; None: as above."""


@dataclass(frozen=True)
class Model:
    shape: ModelShape
    half: bool
    """Whether its own type is a half one."""
    critic: ModelShape | None = None
    """The critic, if it starts from another model."""
    teacher: ModelShape | None = None
    """The teacher."""
    reference: ModelShape | None = None
    """The reference, if it is another model than the run starts from."""


def known_workers(records: Sequence[WorkerRecord]) -> list[Worker]:
    """Those that have said what they compute on."""
    return [_known(record) for record in records if record.devices or record.gpus == 0]


def _known(record: WorkerRecord) -> Worker:
    load = record.host_load
    return Worker(
        tuple(record.devices),
        record.gpu_share,
        record.host,
        load.free_memory if load else None,
        load.memory if load else 0,
        load.total_memory if load else None,
    )


def available(name: str, learner: LearnerDevices | None, workers: Sequence[Worker]) -> int | None:
    """Bytes of the host `name` that the next run may take: those that are free, and those that
    learner and workers have now and release. None: no process there has reported them."""
    host = learner.host if learner and learner.host and learner.host.name == name else None
    there = [worker for worker in workers if worker.host == name]
    reported = [worker.free for worker in there if worker.free is not None]
    free = min([*reported, *([host.free] if host else [])], default=None)
    if free is None:
        return None
    return free + sum(worker.used for worker in there) + (host.used if host else 0)


def of_half(config: Mapping[str, Any]) -> bool:
    """Whether a config.json names a half type for the weights."""
    text = config.get("text_config")
    sections = [config, text if isinstance(text, Mapping) else {}]
    names = [section.get(key) for section in sections for key in ("dtype", "torch_dtype")]
    return any(name in ("bfloat16", "float16") for name in names)


def smallest(gpus: Sequence[GPUDevice]) -> GPUDevice:
    return min(gpus, key=lambda gpu: gpu.memory)


def gigabytes(count: float) -> str:
    return f"{count / 1e9:,.0f} GB" if count >= 1e10 else f"{count / 1e9:,.1f} GB"
