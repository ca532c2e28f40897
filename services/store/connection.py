"""A Redis client for any kind of URL, that reconnects by itself.

A connection that is lost, or cannot be made, is retried a few times with backoff and jitter. Then
the call raises, and its caller retries later. A command that was sent and not answered in time may
have run, so it is not sent again here. A script that Redis has forgotten (restart, failover) is
loaded again by the next call.
"""

import asyncio
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import ClusterNode, ClusterPipeline
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import (
    ClusterDownError,
    ConnectionError,
    CrossSlotTransactionError,
    RedisClusterException,
    ResponseError,
)

from services.contracts.redis import redis_address
from services.store.errors import RedisFull

SILENCE_SECONDS = 10.0
"""A Redis that has not answered for this long counts as away: its host may be gone. Longer than any
blocking read here."""
CONNECT_SECONDS = 2.0
CONNECTIONS = 64
"""Maximum connections of one process to one server."""
TRIES = 3
"""Retries of a call after the first attempt."""
BACKOFF = ExponentialWithJitterBackoff(base=0.05, cap=0.5)


def connect(url: str) -> tuple[Any, Any]:
    """Return a client, and its Sentinels, which must be closed too (or None). Nothing is connected
    yet. Raises ValueError for an invalid URL."""
    address = redis_address.parse(url)
    # Without a `protocol`, replies have the forms of RESP2 in all versions of redis-py.
    options: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "socket_timeout": SILENCE_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
    }
    secured: dict[str, Any] = {"ssl": True, **address.tls_options} if address.tls else {}
    if address.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        # `_ClusterClient` retries with pauses, which redis-py does not do here.
        retry = Retry(BACKOFF, 0)
        return _ClusterClient(startup_nodes=nodes, retry=retry, **options, **secured), None
    options |= {
        "db": address.db,
        "retry": Retry(BACKOFF, TRIES, supported_errors=(ConnectionError,)),
    }
    if address.kind == "socket":
        return _patient(Redis(unix_socket_path=address.path, **options)), None
    if address.kind == "server":
        ((host, port),) = address.hosts
        return _patient(Redis(host=host, port=port, **options, **secured)), None
    to_sentinels = {
        "username": address.sentinel_username,
        "password": address.sentinel_password,
        "socket_timeout": CONNECT_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
        **secured,
    }
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        list(address.hosts), sentinel_kwargs=to_sentinels
    )
    return sentinels.master_for(address.service, _ServerClient, **options, **secured), sentinels


def _patient(redis: Redis) -> Redis:
    """Return a client like `redis` whose calls wait for a connection when all are in use."""
    pool = redis.connection_pool
    return _ServerClient.from_pool(
        BlockingConnectionPool(
            max_connections=CONNECTIONS,
            timeout=SILENCE_SECONDS,
            connection_class=pool.connection_class,
            **pool.connection_kwargs,
        )
    )


class _ServerClient(Redis):
    """A client of one server, whose lack of memory raises `RedisFull`."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except ResponseError as error:
            raise _as_full(error) from error

    def pipeline(
        self, transaction: bool = True, shard_hint: str | None = None
    ) -> "_ServerPipeline":
        pool, callbacks = self.connection_pool, self.response_callbacks
        return _ServerPipeline(pool, callbacks, transaction, shard_hint)


class _ServerPipeline(Pipeline):
    """Reads of one moment. A full Redis refuses a transaction even of reads: then they are made one
    by one."""

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands = list(self.command_stack)
        try:
            return list(await super().execute(raise_on_error))
        except ResponseError as error:
            if not isinstance(_as_full(error), RedisFull):
                raise
            self.command_stack, self.is_transaction = commands, False
            return list(await super().execute(raise_on_error))


class _Pipeline(ClusterPipeline):
    """One transaction on one slot, with the errors of a single server."""

    async def execute(
        self, raise_on_error: bool = True, allow_redirections: bool = True
    ) -> list[Any]:
        try:
            return list(await super().execute(raise_on_error, allow_redirections))
        except (ClusterDownError, RedisClusterException) as error:
            raise _as_away(error) from error


class _ClusterClient(RedisCluster):
    """A client of a cluster. A cluster that is away raises `ConnectionError`, like a single
    server."""

    def pipeline(self, transaction: Any | None = None, shard_hint: Any | None = None) -> _Pipeline:
        return _Pipeline(self, transaction)  # type: ignore[abstract]

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        for failures in range(1, TRIES + 2):
            try:
                return await super().execute_command(*args, **kwargs)
            except ResponseError as error:
                raise _as_full(error) from error
            except (ConnectionError, ClusterDownError, RedisClusterException) as error:
                if failures > TRIES or not isinstance(_as_away(error), ConnectionError):
                    raise _as_away(error) from error
                await asyncio.sleep(BACKOFF.compute(failures))
        raise AssertionError


def _as_full(error: ResponseError) -> Exception:
    """Return RedisFull if Redis refused a write for lack of memory, otherwise `error`. Redis 6
    wraps its message into one about the script."""
    return RedisFull() if "command not allowed when used memory" in str(error) else error


def _as_away(error: Exception) -> Exception:
    """Return `error` as ConnectionError, unless the call itself was wrong."""
    wrong = isinstance(error, CrossSlotTransactionError) or "same key slot" in str(error)
    if wrong or isinstance(error, ConnectionError):
        return error
    return ConnectionError(f"the Redis cluster cannot be used: {error}")
