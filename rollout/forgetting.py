"""vLLM's prefix cache at a weight update: emptied, also while requests in flight keep their blocks.

vLLM can empty the cache only when nothing is in flight, or by throwing the keys and values of what
is in flight away. A salt for each version keeps versions apart for requests that are sent after an
update; one that was sent before and is begun after it would still find the prompt of the old
version. So when the engine is told its new version, which happens while it is paused, every block
loses its name: blocks in use stay with their requests, and no later request can find them.

Like `polite_waiting` this changes vLLM's own code, by name, in processes that Headrace owns.
"""

from typing import Any


def forget_at_updates() -> bool:
    """Have the engine core empty its prefix cache when its weights change. Returns whether this
    vLLM has what that takes; without it salts alone keep versions apart."""
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.engine.core import EngineCore

    told = getattr(EngineCore, "set_weight_version", None)
    if told is None or not hasattr(BlockPool, "evict_blocks"):
        return False
    if getattr(told, "forgets", False):
        return True

    def set_weight_version(self: Any, weight_version: str) -> None:
        told(self, weight_version)
        pool = self.scheduler.kv_cache_manager.block_pool
        # The others have no name. There may be a hundred thousand, and generation waits.
        named = {block.block_id for block in pool.blocks if block.block_hash is not None}
        pool.evict_blocks(named | set(pool.cached_block_hashes_by_block))

    set_weight_version.forgets = True  # type: ignore[attr-defined]
    EngineCore.set_weight_version = set_weight_version
    return True
