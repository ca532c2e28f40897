"""One connection pool to Redis, and the store's nouns over it."""

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ConnectionError, ResponseError

from services.store.datasets import Datasets
from services.store.evaluations import Evaluations
from services.store.events import Events
from services.store.ledger import Ledger
from services.store.prompts import Prompts
from services.store.runs import Runs
from services.store.scripts import Scripts
from services.store.trajectories import Trajectories
from services.store.weights import Weights
from services.store.workers import Workers

SILENCE_SECONDS = 10.0
"""A Redis that has not answered for this long counts as away (its host may have gone without a
word). Longer than any blocking read here."""
SAFE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}


class UnsafeRedis(RuntimeError):
    """This Redis may lose or evict what it has acknowledged."""


class Store:
    """All calls raise redis.exceptions.RedisError where Redis is away for longer than a short
    retry with backoff and jitter."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        scripts = Scripts(redis)
        self.datasets = Datasets(redis, scripts)
        self.events = Events(redis)
        self.evaluations = Evaluations(redis, scripts, self.datasets)
        self.ledger = Ledger(redis)
        self.prompts = Prompts(scripts)
        self.runs = Runs(redis, scripts, self.datasets)
        self.trajectories = Trajectories(redis, scripts)
        self.weights = Weights(redis, scripts)
        self.workers = Workers(redis)

    @classmethod
    def from_url(cls, url: str) -> "Store":
        """A store that connects on its first call."""
        # What was sent and not answered in time may have been done: only a lost connection, or
        # one that never came to be, is worth another try here.
        backoff = ExponentialWithJitterBackoff(base=0.05, cap=0.5)
        retry = Retry(backoff, 3, supported_errors=(ConnectionError,))
        return cls(
            Redis.from_url(
                url, retry=retry, socket_connect_timeout=2, socket_timeout=SILENCE_SECONDS
            )
        )

    async def ping(self) -> None:
        """Raise RedisError unless Redis answers."""
        await self._redis.ping()

    async def check_durability(self) -> None:
        """Raise UnsafeRedis unless acknowledged writes survive a power cut and nothing is evicted.

        A managed Redis that hides its configuration is taken at its word.
        """
        for name, wanted in SAFE.items():
            try:
                found = await self._redis.config_get(name)
            except ResponseError:
                return
            value = next(iter(found.values()), b"")
            text = value.decode() if isinstance(value, bytes) else str(value)
            if text != wanted:
                raise UnsafeRedis(
                    f"Redis has {name} {text or 'unset'}, which may lose acknowledged work: set it "
                    f"to {wanted}, or set HEADRACE_ALLOW_UNSAFE_REDIS=true to accept the loss"
                )

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()
