"""Checkpoints that calls wait for, and the workers that load them. All keys expire: whoever still
wants something asks again.

Two workers do not load one model for the same demand: a worker takes a lease on it, and renews that
while it loads and serves the model.
"""

from collections.abc import Collection
from typing import Any

import msgspec

from services.contracts.policy_calls import Failure
from services.contracts.served_models import DemandState, ModelDemand
from services.store.keys import model_key
from services.store.scripts import StorePart
from services.store.unreadable import as_text, reading

WANTED_SECONDS = 30
"""How long a demand waits for a worker."""
LEASE_SECONDS = 15
FAILED_SECONDS = 60
"""How long a failure lasts before a worker tries again."""

_demand = msgspec.msgpack.Decoder(ModelDemand)
_failure = msgspec.msgpack.Decoder(Failure)


class ModelDemands(StorePart):
    """Calls about demands of one pool. A demand is a key, and its name waits in the pool's list."""

    async def want(self, pool: str, demand: ModelDemand, living: Collection[str]) -> DemandState:
        """Ask the pool's workers for a model, unless one of the `living` workers has taken the
        demand, or a worker has failed to load it. Return the demand's state."""
        key = model_key(pool, "wanted", demand.name)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.get(model_key(pool, "lease", demand.name))
            pipe.get(model_key(pool, "failed", demand.model))
            holder, failed = await pipe.execute()
        if failed is not None:
            with reading(f"the failure of model {demand.model}"):
                return DemandState(failure=_failure.decode(failed))
        if holder is not None and as_text(holder) in living:
            return DemandState(worker=as_text(holder))
        if holder is not None:
            await self.release(pool, demand.name)
        text = msgspec.msgpack.encode(demand)
        if await self._redis.set(key, text, nx=True, ex=WANTED_SECONDS):
            names = model_key(pool, "wanted", "")
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.rpush(names, demand.name)
                pipe.expire(names, WANTED_SECONDS)
                await pipe.execute()
        return DemandState()

    # --- workers ------------------------------------------------------------------------------

    async def take(self, pool: str, worker: str) -> ModelDemand | None:
        """Return the oldest demand that no worker has, with a lease on it."""
        name: Any = await self._redis.lpop(model_key(pool, "wanted", ""))
        if name is None:
            return None
        key = model_key(pool, "wanted", as_text(name))
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.get(key)
            pipe.set(model_key(pool, "lease", as_text(name)), worker, nx=True, ex=LEASE_SECONDS)
            pipe.delete(key)
            text, leased, _ = await pipe.execute()
        if not leased:
            return None
        if text is None:
            await self.release(pool, as_text(name))
            return None
        with reading(f"the demand for model {as_text(name)}"):
            return _demand.decode(text)

    async def keep(self, pool: str, worker: str, names: Collection[str]) -> None:
        """Renew a worker's leases."""
        async with self._redis.pipeline(transaction=True) as pipe:
            for name in names:
                pipe.set(model_key(pool, "lease", name), worker, ex=LEASE_SECONDS)
            await pipe.execute()

    async def release(self, pool: str, name: str) -> None:
        """End a worker's lease."""
        await self._redis.delete(model_key(pool, "lease", name))

    async def fail(self, pool: str, demand: ModelDemand, failure: Failure) -> None:
        """End a worker's lease on a model that it could not load, and tell why."""
        async with self._redis.pipeline(transaction=True) as pipe:
            text = msgspec.msgpack.encode(failure)
            pipe.set(model_key(pool, "failed", demand.model), text, ex=FAILED_SECONDS)
            pipe.delete(model_key(pool, "lease", demand.name))
            await pipe.execute()
