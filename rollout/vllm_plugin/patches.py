"""Changes to vLLM's own code, only in processes that a rollout worker owns.

Each replaces one function by name. A vLLM without that function works unchanged.
"""

import os
import time
from typing import Any

ENOUGH_CORES = 8
"""With this many cores a process may spin."""
WAIT_SECONDS = 50e-6


def wait_politely() -> bool:
    """On few cores: sleep while waiting for a message. Returns whether there was code to replace.

    vLLM's engine and its worker process pass each step through shared memory and spin on it
    (`sched_yield` in a loop). On two cores that takes half a core from the API server, the learner
    and the worker loop, and the kernel sometimes lets those wait for more than a second. Measured
    with 1.1 M parameters on two cores: 213 µs of CPU time a token with spinning, 148 µs with sleeps
    of 50 µs, at the same or higher throughput.
    """
    if (os.cpu_count() or 1) >= ENOUGH_CORES:
        return False
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() or not hasattr(shm_broadcast, "sched_yield"):
        return False
    shm_broadcast.sched_yield = _wait
    return True


def _wait() -> None:
    time.sleep(WAIT_SECONDS)


def pause_at_once() -> bool:
    """Make vLLM's API server answer a pause with `keep` as soon as the engine stands still. Returns
    whether there was code to replace.

    vLLM waits 20 ms more, for outputs on their way, and says itself that they are not needed. Here
    they arrive after the pause, with the version that sampled them.
    """
    from vllm.v1.engine.async_llm import AsyncLLM

    original = getattr(AsyncLLM, "pause_generation", None)
    if original is None or getattr(original, "at_once", False):
        return original is not None

    async def pause_generation(self: Any, *, mode: Any = "abort", clear_cache: bool = True) -> None:
        if mode == "keep" and not clear_cache:
            await self.engine_core.pause_scheduler_async(mode=mode, clear_cache=False)
        else:
            await original(self, mode=mode, clear_cache=clear_cache)

    pause_generation.at_once = True  # type: ignore[attr-defined]
    AsyncLLM.pause_generation = pause_generation
    return True


def empty_prefix_cache_at_updates() -> bool:
    """Make the engine core empty its prefix cache when its weights change, even while requests in
    flight keep their blocks. Returns whether there was code to replace; without it only the salts
    of requests separate versions.

    vLLM can empty the cache only if nothing is in flight, or it drops the keys and values of
    requests in flight. A request that was sent before an update and starts after it has the old
    salt, and would find the old version's prompt. So when the paused engine gets its new version,
    every block loses its hash. Requests keep their blocks, and no later request finds them.
    """
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.engine.core import EngineCore

    original = getattr(EngineCore, "set_weight_version", None)
    if original is None or not hasattr(BlockPool, "evict_blocks"):
        return False
    if getattr(original, "empties_cache", False):
        return True

    def set_weight_version(self: Any, weight_version: str) -> None:
        original(self, weight_version)
        pool = self.scheduler.kv_cache_manager.block_pool
        # Only blocks with a hash: there may be 100,000 others, and generation waits.
        named = {block.block_id for block in pool.blocks if block.block_hash is not None}
        pool.evict_blocks(named | set(pool.cached_block_hashes_by_block))

    set_weight_version.empties_cache = True  # type: ignore[attr-defined]
    EngineCore.set_weight_version = set_weight_version
    return True
