"""vLLM plugin: registers the weight-transfer engine `safetensors` in vLLM's processes.

vLLM finds `register` through the entry-point group `vllm.general_plugins`.
"""

import gc
import os

from rollout.vllm_plugin.patches import empty_prefix_cache_at_updates, wait_politely
from services.runtime.process import die_with_parent

NAME = "safetensors"
OWNED = "HEADRACE_VLLM_OWNED"
"""Set in the environment of a vLLM server that must not outlive the process that started it."""


def register() -> None:
    """Make the engine known to vLLM. vLLM calls it in each of its processes, perhaps repeatedly.

    In a server that a worker owns, each process dies with its parent, so that killing the worker
    ends all of vLLM.
    """
    # `serve` has switched it off for the imports.
    gc.enable()
    if os.environ.get(OWNED):
        die_with_parent()
        wait_politely()
        empty_prefix_cache_at_updates()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if NAME not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            NAME, "rollout.vllm_plugin.weight_engine", "SafetensorsEngine"
        )
