"""A client for whatever the URL names, that comes back by itself.

One rule for all of them: a connection that is lost, or cannot be had, is tried again after a
growing pause with jitter, a few times; then the caller is told, who waits and asks again. What was
sent and not answered in time may have been done, and is not sent again here. A script that Redis
has forgotten (a restart, a failover) is loaded again by the call that finds it gone.
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

from services.contracts import redis_address
from services.store.errors import RedisFull

SILENCE_SECONDS = 10.0
"""A Redis that has not answered for this long counts as away (its host may have gone without a
word). Longer than any blocking read here."""
CONNECT_SECONDS = 2.0
CONNECTIONS = 64
"""Connections of one process to one server, at most."""
TRIES = 3
"""How often a call is tried again after the first time."""
BACKOFF = ExponentialWithJitterBackoff(base=0.05, cap=0.5)


def connect(url: str) -> tuple[Any, Any]:
    """A client, and what has to be closed beside it (or None). Nothing is connected yet. Raises
    ValueError for a URL that makes no sense."""
    address = redis_address.parse(url)
    # Without a `protocol` replies have the forms of RESP2, in all versions of redis-py.
    given: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "socket_timeout": SILENCE_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
    }
    secured: dict[str, Any] = {"ssl": True, **address.tls_options} if address.tls else {}
    if address.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        # Tried again by `_Cluster` itself, with pauses, which redis-py does not make here.
        retry = Retry(BACKOFF, 0)
        return _Cluster(startup_nodes=nodes, retry=retry, **given, **secured), None
    given |= {"db": address.db, "retry": Retry(BACKOFF, TRIES, supported_errors=(ConnectionError,))}
    if address.kind == "socket":
        return _patient(Redis(unix_socket_path=address.path, **given)), None
    if address.kind == "server":
        ((host, port),) = address.hosts
        return _patient(Redis(host=host, port=port, **given, **secured)), None
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
    return sentinels.master_for(address.service, _Server, **given, **secured), sentinels


def _patient(redis: Redis) -> Redis:
    """`redis`, but a call waits for a connection where all are in use."""
    pool = redis.connection_pool
    return _Server.from_pool(
        BlockingConnectionPool(
            max_connections=CONNECTIONS,
            timeout=SILENCE_SECONDS,
            connection_class=pool.connection_class,
            **pool.connection_kwargs,
        )
    )


class _Server(Redis):
    """One server, whose lack of memory is `RedisFull`."""

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
    """Reads of one moment. A full Redis takes no transaction, not even of reads: then they are made
    one after another."""

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
    """One transaction on one slot; errors as those of a single server."""

    async def execute(
        self, raise_on_error: bool = True, allow_redirections: bool = True
    ) -> list[Any]:
        try:
            return list(await super().execute(raise_on_error, allow_redirections))
        except (ClusterDownError, RedisClusterException) as error:
            raise _as_away(error) from error


class _Cluster(RedisCluster):
    """A cluster that is away is `ConnectionError`, like a single server that is."""

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
    """`error`, or RedisFull: Redis 6 puts its words into those about the script."""
    return RedisFull() if "command not allowed when used memory" in str(error) else error


def _as_away(error: Exception) -> Exception:
    """`error` as ConnectionError, unless it says that the call itself was wrong."""
    wrong = isinstance(error, CrossSlotTransactionError) or "same key slot" in str(error)
    if wrong or isinstance(error, ConnectionError):
        return error
    return ConnectionError(f"the Redis cluster cannot be used: {error}")
