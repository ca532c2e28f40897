"""Checks at the start of every process that its installation's Redis can be trusted.

Nothing is silent: a Redis that may lose acknowledged work is refused, or logged if the user has
accepted the risk. A Redis with the state of another version of Headrace is refused.
"""

from services.contracts.redis.redis_address import parse
from services.contracts.schema import SchemaMismatch
from services.runtime.logs import get_logger
from services.settings import Settings, redacted
from services.store import LostWrites, Store, UnsafeRedis

log = get_logger(__name__)


async def require_durable(store: Store, settings: Settings) -> None:
    """Raise UnsafeRedis unless `store`'s Redis keeps what it acknowledges, or the settings accept
    the risk. Raises SchemaMismatch if another version has written there, and RedisError or OSError
    if Redis does not answer."""
    await store.ping()
    try:
        await store.check_durability()
    except UnsafeRedis as error:
        if not settings.allow_unsafe_redis:
            raise
        log.warning("Redis may lose acknowledged work, as was accepted", reason=str(error))
    await store.check_schema()
    if parse(settings.redis_url.get_secret_value()).kind == "sentinel":
        log.warning(
            "Redis replicates after it acknowledges: a failover may lose the last moments' writes"
        )


def cannot_use(settings: Settings, error: Exception) -> str:
    """Return the message of a process that does not start without its Redis."""
    url = redacted(settings.redis_url.get_secret_value())
    if isinstance(error, LostWrites):
        return str(error).replace("Redis", f"Redis at {url}", 1)
    if isinstance(error, UnsafeRedis | SchemaMismatch):
        return f"cannot use Redis at {url}: {error}"
    reason = str(error).rstrip(".")
    return (
        f"cannot use Redis at {url}: {reason}. Start it, or name another with --redis-url "
        "(HEADRACE_REDIS_URL)"
    )
