"""vLLM's own modules of a model, loaded in this process, with weights laid out as on a GPU.

On a CPU vLLM packs weights after loading (`cpu_linear`), and a packed model is never patched. Here
vLLM's layers do not pack, as on CUDA, so that the real patch loader meets the real fused
parameters. Imports vLLM, as `breakable_engine` does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from vllm.config import (
    CacheConfig,
    CompilationConfig,
    DeviceConfig,
    LoadConfig,
    ModelConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.distributed.parallel_state import (
    cleanup_dist_env_and_memory,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.model_executor.layers import linear, vocab_parallel_embedding
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype

from rollout.vllm_plugin import weight_patch
from rollout.vllm_plugin.weight_engine import SafetensorsEngine, UpdateInfo
from rollout.vllm_plugin.weight_patch import patchable

__all__ = ["UpdateInfo", "alone", "engine", "patchable", "weight_patch"]


class Engine(SafetensorsEngine):
    """The real engine on the modules of the model in `folder`. Counts whole loads."""

    def __init__(self, folder: Path) -> None:
        self._tensors = None
        self._live = ""
        self._slot = None
        self.device = torch.device("cpu")
        self.loads = 0
        self.model_config = ModelConfig(
            str(folder), dtype="bfloat16", max_model_len=64, enforce_eager=True
        )
        config = VllmConfig(
            model_config=self.model_config,
            cache_config=CacheConfig(block_size=32),
            device_config=DeviceConfig("cpu"),
            load_config=LoadConfig(load_format="dummy"),
            compilation_config=CompilationConfig(mode=0),
        )
        with set_current_vllm_config(config), set_default_torch_dtype(torch.bfloat16):
            self.model = initialize_model(config)
            get_model_loader(config.load_config).load_weights(self.model, self.model_config)

    def _load(self, path: Path, deltas: list[Path]) -> None:
        self.loads += 1
        super()._load(path, deltas)


def engine(folder: Path) -> Any:
    return Engine(folder)


@contextmanager
def alone() -> Iterator[None]:
    """A process that is vLLM's only one, whose layers take it for one with a GPU."""
    accelerator = SimpleNamespace(is_cpu=lambda: False, is_xpu=lambda: False)
    with (
        mock.patch.object(linear, "current_platform", accelerator),
        mock.patch.object(vocab_parallel_embedding, "current_platform", accelerator),
        set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))),
    ):
        init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, backend="gloo")
        initialize_model_parallel(1, 1)
        try:
            yield
        finally:
            cleanup_dist_env_and_memory()
