"""Check a Redis that the user named before anything is started on it."""

import anyio
from redis.exceptions import RedisError

from services.contracts.schema import SchemaMismatch
from services.launch.options import LaunchError, UpOptions
from services.settings import Settings
from services.store import Store, UnsafeRedis
from services.store.at_start import cannot_use, require_durable

PROLONGED_WITHIN = 3.0
"""Seconds after which a living learner has prolonged its lock for certain; it does so every 2."""
LOOK_EVERY = 0.1


async def check_external_redis(options: UpOptions, url: str) -> None:
    """Raise LaunchError if the Redis at `url` cannot be used. It must answer, and it must keep
    acknowledged writes unless the options waive that. If a learner is to be started, the pool must
    not have one."""
    settings = Settings(
        redis_url=url,
        allow_unsafe_redis=options.allow_unsafe_redis,
    )
    store = Store.from_url(url)
    try:
        await require_durable(store, settings)
        if options.runs("learner") and await _learner_lives(store, options.pool):
            raise LaunchError(
                f"pool {options.pool!r} already has a learner on this Redis: stop that one, leave "
                "it out here with --without learner, or name another pool with --pool"
            )
    except (UnsafeRedis, SchemaMismatch, RedisError, OSError) as error:
        raise LaunchError(
            f"{cannot_use(settings, error)}; without one, headrace up starts its own"
        ) from None
    finally:
        await store.close()


async def _learner_lives(store: Store, pool: str) -> bool:
    """Whether a learner prolongs the pool's lock. The lock of a killed learner only lapses."""
    before = await store.pools.lock_seconds(pool)
    with anyio.move_on_after(PROLONGED_WITHIN):
        while before > 0:
            await anyio.sleep(LOOK_EVERY)
            remaining = await store.pools.lock_seconds(pool)
            if remaining > before:
                return True
            before = remaining
    return False
