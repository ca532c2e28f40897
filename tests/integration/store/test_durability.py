"""A Redis that may lose acknowledged work is refused by name."""

from pathlib import Path

import pytest

from services.launch import Stack, UpOptions
from services.store import Store, UnsafeRedis


async def test_a_redis_of_headrace_up_is_accepted(tmp_path: Path) -> None:
    with Stack(UpOptions(data=tmp_path, parts=frozenset({"redis"}), redis_port=0)) as stack:
        store = Store.from_url(stack.redis_url)
        await store.check_durability()
        await store.close()


async def test_a_redis_that_may_lose_a_second_is_refused(tmp_path: Path) -> None:
    options = UpOptions(
        data=tmp_path, parts=frozenset({"redis"}), redis_port=0, redis_fsync="everysec"
    )
    with Stack(options) as stack:
        store = Store.from_url(stack.redis_url)
        with pytest.raises(UnsafeRedis, match="appendfsync everysec"):
            await store.check_durability()
        await store.close()
