"""The store: one connection pool to Redis, and the parts that make calls over it."""

import re
from typing import Any

from redis.exceptions import ResponseError

from services.contracts.redis.redis_version import lua_flaw
from services.contracts.schema import require_schema
from services.store.access.api_keys import ApiKeys
from services.store.access.idempotency_keys import IdempotencyKeys
from services.store.access.page_sessions import PageSessions
from services.store.agents.calls import AgentCalls
from services.store.agents.live import LiveSessions
from services.store.agents.policy_calls import PolicyCalls
from services.store.agents.responses import KeptResponses
from services.store.agents.sessions import AgentSessions
from services.store.connection import connect
from services.store.datasets import Datasets
from services.store.insight import Insight
from services.store.keys import SCHEMA
from services.store.runs.chains import Chains
from services.store.runs.changed_runs import RunChanges
from services.store.runs.edits import RunEdits
from services.store.runs.events import Events
from services.store.runs.judged import JudgedAnswers
from services.store.runs.ledger import Ledger
from services.store.runs.pools import Pools
from services.store.runs.recovery import Recovery
from services.store.runs.runs import Runs
from services.store.scripts import Scripts
from services.store.server.dumps import Dumps
from services.store.server.durability import check_durability
from services.store.work.evaluations import StoredEvaluations
from services.store.work.model_demands import ModelDemands
from services.store.work.process_logs import ProcessLogs
from services.store.work.tasks import Tasks
from services.store.work.trajectories import Trajectories
from services.store.work.weights import Weights
from services.store.work.workers import Workers

STATE_SCHEMA = 1
"""Increased when keys, records or scripts change so that another version would misread them."""


class Store:
    """All parts of the store. Every call raises redis.exceptions.RedisError if Redis is away for
    longer than a few retries with backoff and jitter."""

    def __init__(self, redis: Any, sentinels: Any = None) -> None:
        """`sentinels` are connections that are closed together with `redis`."""
        self._redis = redis
        self._sentinels = sentinels
        scripts = Scripts(redis)
        self.agent_calls = AgentCalls(redis, scripts)
        self.agent_sessions = AgentSessions(redis, scripts)
        self.api_keys = ApiKeys(redis, scripts)
        self.chains = Chains(redis, scripts)
        self.datasets = Datasets(redis, scripts)
        self.events = Events(redis, scripts)
        self.evaluations = StoredEvaluations(redis, scripts)
        self.kept_responses = KeptResponses(redis, scripts)
        self.live_sessions = LiveSessions(redis, scripts)
        self.idempotency_keys = IdempotencyKeys(redis, scripts)
        self.model_demands = ModelDemands(redis, scripts)
        self.judged = JudgedAnswers(redis, scripts)
        self.ledger = Ledger(redis, scripts)
        self.run_changes = RunChanges(redis, scripts)
        self.run_edits = RunEdits(redis, scripts)
        self.runs = Runs(redis, scripts, self.datasets)
        self.recovery = Recovery(redis, scripts)
        self.policy_calls = PolicyCalls(redis, scripts)
        self.process_logs = ProcessLogs(redis, scripts)
        self.pools = Pools(redis, scripts, self.runs)
        self.tasks = Tasks(redis, scripts, self.runs.fail)
        self.page_sessions = PageSessions(redis, scripts)
        self.trajectories = Trajectories(redis, scripts)
        self.dumps = Dumps(redis, scripts, self.runs)
        self.weights = Weights(redis, scripts)
        self.workers = Workers(redis, scripts)
        self.insight = Insight(redis, self.runs, self.workers, self.live_sessions)

    @classmethod
    def from_url(cls, url: str) -> "Store":
        """Return a store that connects on its first call. Raises ValueError for an invalid URL."""
        return cls(*connect(url))

    async def ping(self) -> None:
        """Raise RedisError unless Redis answers."""
        await self._redis.ping()

    async def check_durability(self) -> None:
        """Raise UnsafeRedis unless Redis keeps what it acknowledges."""
        await check_durability(self._redis)

    async def lua_flaw(self) -> str | None:
        """Return a known flaw of this Redis' Lua engine for the operator. Return None if it is
        fixed, or if Redis does not tell its version."""
        try:
            info = await self._redis.info("server")
        except ResponseError:
            return None
        server = "Valkey" if "valkey_version" in info else "Redis"
        version = str(info.get(f"{server.lower()}_version", ""))
        numbers = re.fullmatch(r"(\d+)\.(\d+)\.(\d+).*", version)
        if numbers is None:
            return None
        return lua_flaw(server, (int(numbers[1]), int(numbers[2]), int(numbers[3])))

    async def check_schema(self) -> None:
        """Raise SchemaMismatch unless Redis holds state of this schema. An empty Redis, and state
        from before schemas had numbers (schema 1), get this schema's number."""
        schema = await self._redis.get(SCHEMA)
        if schema is None:
            # Read first: a Redis without memory takes no write.
            await self._redis.setnx(SCHEMA, STATE_SCHEMA)
            schema = await self._redis.get(SCHEMA)
        require_schema("the state in Redis", int(schema), STATE_SCHEMA)

    async def close(self) -> None:
        await self._redis.aclose()
        if self._sentinels is not None:
            await self._sentinels.aclose()
