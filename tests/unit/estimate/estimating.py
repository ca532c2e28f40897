"""Configs and machines of a few words, and the estimate of a run on them."""

from typing import Any

from services.contracts.config import RLConfig, parse_config
from services.contracts.devices import GPUDevice, LearnerDevices
from services.estimate.answer import Estimate
from services.estimate.fit import estimate_run
from services.estimate.inputs import Model, Worker
from services.estimate.model_shape import shape_of
from tests.unit.estimate.known import QWEN3_8B

GB = 10**9
H100, L4 = "NVIDIA H100 80GB HBM3", "NVIDIA L4"
THRIFTY = {"training": {"activation_checkpointing": True}}


def gpus(count: int, memory: int, name: str = H100, first: int = 0) -> list[GPUDevice]:
    return [GPUDevice(uuid=f"GPU-{first + i}", name=name, memory=memory) for i in range(count)]


def learner(count: int, memory: int, name: str = H100) -> LearnerDevices:
    return LearnerDevices(ranks=count, gpus=gpus(count, memory, name))


def worker(memory: int, name: str = H100, first: int = 100, count: int = 1) -> Worker:
    return Worker(tuple(gpus(count, memory, name, first)))


def estimate(
    config: dict[str, Any],
    learner: LearnerDevices | None,
    *workers: Worker,
    model: dict[str, Any] = QWEN3_8B,
) -> Estimate:
    shape = shape_of(model)
    assert shape is not None
    return estimate_run(rl_config(config), Model(shape, half=True), learner, workers)


def rl_config(config: dict[str, Any]) -> RLConfig:
    """A whole one with these sections."""
    given = {
        "model": {"path": "org/m"},
        "data": {"dataset": "d"},
        "rewards": [{"verifier": "math"}],
        "sampling": {"max_tokens": 8192},
    }
    parsed = parse_config(given | config)
    assert isinstance(parsed, RLConfig)
    return parsed
