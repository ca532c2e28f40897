"""More or fewer rollout workers of a running installation.

The one that joined last leaves first: SIGTERM, upon which it hands its leases back. One that
joins counts as there when its vLLM serves the newest weights of the pool's active run, or, where
there is none, when it has been heard of. Nothing else is started again or moved.
"""

import asyncio
import socket
from typing import Any

from redis.exceptions import RedisError

from services.contracts.records import RunRecord, WorkerRecord
from services.launch.control import Say
from services.launch.options import LaunchError, UpOptions
from services.launch.plan import Plan
from services.launch.supervisor import Supervisor
from services.logs import get_logger
from services.store import Store

log = get_logger(__name__)

MOST = 256
"""Workers on one machine: beyond that it is a slip of the finger."""
LOOK_EVERY = 0.2
HEARD_WITHIN = 60.0
"""Seconds until a worker that has no vLLM to start must have been heard of."""


def number_of_workers(request: dict[str, Any], plan: Plan, options: UpOptions) -> int:
    """How many workers `request` asks for. Raises LaunchError where it cannot be granted."""
    wanted = request.get("scale", {}).get("rollout")
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not 0 <= wanted <= MOST:
        raise LaunchError(
            f"rollout={wanted}: the number of workers on this machine is from 0 to {MOST}"
        )
    if plan.crew is None:
        raise LaunchError(
            "this `headrace up` was started without rollout workers (--only, --without): start "
            "one by itself with `python -m rollout`"
        )
    plan.crew.refuse(wanted)
    return wanted


class Scaling:
    """The number of rollout workers of one `headrace up`."""

    def __init__(self, options: UpOptions, plan: Plan, supervisor: Supervisor) -> None:
        self._options = options
        self._plan = plan
        self._supervisor = supervisor

    async def answer(self, request: dict[str, Any], say: Say) -> dict[str, Any]:
        """Carry out {"scale": {"rollout": N}}; returns once the workers have joined or left."""
        wanted = number_of_workers(request, self._plan, self._options)
        now = self._indices()
        leaving = [f"rollout-{index}" for index in sorted(now)[wanted:]]
        free = (index for index in range(MOST) if index not in now)
        joining = [next(free) for _ in range(wanted - len(now))]
        if leaving:
            say(f"{', '.join(leaving)}: told to leave, leases are handed back")
            await asyncio.gather(*(self._supervisor.remove(name) for name in leaving))
        names = [self._start(index, wanted) for index in joining]
        if names:
            say(f"{', '.join(names)}: starting")
            await self._joined(names, say)
        return {"rollout": len(self._indices()), "joined": names, "left": leaving}

    def _indices(self) -> set[int]:
        names = (name.partition("rollout-") for name in self._supervisor.parts)
        return {int(index) for _, found, index in names if found}

    def _start(self, index: int, engines: int) -> str:
        assert self._plan.crew is not None
        parts = self._supervisor.parts
        running = [parts[f"rollout-{one}"] for one in sorted(self._indices())]
        part = self._plan.crew.joining(index, running, engines)
        self._supervisor.add(part)
        return part.name

    async def _joined(self, names: list[str], say: Say) -> None:
        """Wait until all of them work. Raises LaunchError where one cannot, or takes too long."""
        clock = asyncio.get_running_loop().time
        began, store = clock(), Store.from_url(self._plan.redis_url)
        waiting = list(names)
        try:
            while waiting:
                try:
                    run = await self._sampled(store)
                    heard = await store.workers.list(self._options.pool)
                except (RedisError, OSError) as error:
                    log.warning("scaling waits for Redis", error=str(error))
                    run, heard = None, []
                for name in list(waiting):
                    if self._there(name, heard, run):
                        waiting.remove(name)
                        say(f"{name}: joined")
                if waiting and clock() - began > _patience(run):
                    raise LaunchError(
                        f"{', '.join(waiting)} did not join within {_patience(run):.0f} s and "
                        f"goes on trying: `headrace logs {waiting[0]}` says why"
                    )
                await asyncio.sleep(LOOK_EVERY)
        finally:
            await store.close()

    async def _sampled(self, store: Store) -> RunRecord | None:
        """The pool's active run, once there are weights to serve."""
        run = await store.runs.active(self._options.pool)
        if run is None or run.kind != "rl" or run.state.final or run.cancel_requested:
            return None
        return run if await store.weights.newest(run.id) is not None else None

    def _there(self, name: str, heard: list[WorkerRecord], run: RunRecord | None) -> bool:
        pid, host = self._supervisor.pids.get(name), socket.gethostname()
        mine = next((one for one in heard if (one.host, one.pid) == (host, pid)), None)
        if mine is None:
            return False
        if mine.state == "unhealthy":
            raise LaunchError(
                f"{name} is there and cannot work, and goes on trying: {mine.error or 'no reason'}"
            )
        return run is None or mine.version is not None


def _patience(run: RunRecord | None) -> float:
    """Seconds that a worker may take until it is there."""
    if run is None:
        return HEARD_WITHIN
    return HEARD_WITHIN + float(run.config["rollout"]["vllm"]["startup_seconds"])
