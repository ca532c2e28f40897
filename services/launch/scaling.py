"""Add or remove rollout workers of a running installation.

The worker that joined last leaves first: on SIGTERM it releases its leases. A new worker has joined
when its vLLM serves the newest weights of the pool's active run. Without an active run, it has
joined when its heartbeat arrives. No other process is restarted or moved.
"""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError

from headrace.wording import counted
from services.contracts.records import RunRecord, WorkerRecord
from services.launch.control import Say
from services.launch.options import LaunchError, UpOptions
from services.launch.part import Part
from services.launch.parts_supervisor import Supervisor
from services.launch.plan import SERVING, Plan
from services.runtime.host_load import free_memory, memory_of
from services.runtime.logs import get_logger
from services.store import Store

log = get_logger(__name__)

GIB = 1 << 30
MOST = 256
"""Workers on one machine: beyond that it is a slip of the finger."""
LOOK_EVERY = 0.2
HEARD_WITHIN = 60.0
"""Seconds until a worker that has no vLLM to start must have been heard of."""


def number_of_workers(request: dict[str, Any], plan: Plan) -> int:
    """Return the number of workers that `request` asks for. Raises LaunchError if it cannot be
    granted."""
    wanted = request.get("scale", {}).get("rollout")
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not 0 <= wanted <= MOST:
        raise LaunchError(
            f"rollout={wanted}: the number of workers on this machine is from 0 to {MOST}"
        )
    if plan.workers is None:
        raise LaunchError(
            "this `headrace up` was started without rollout workers (--only, --without): start "
            "one by itself with `python -m rollout`"
        )
    plan.workers.refuse(wanted)
    return wanted


def require_memory(joining: int, workers: Mapping[str, int], free: int) -> None:
    """Raise LaunchError if `joining` more workers that use as much memory as the largest of the
    `workers` (bytes, by name) need more than the `free` bytes. Without workers nothing is known."""
    if not joining or not workers:
        return
    largest = max(workers, key=lambda name: workers[name])
    needed = joining * workers[largest]
    if needed > free:
        raise LaunchError(
            f"{counted(joining, 'more worker')} would need about "
            f"{needed / GIB:.1f} GiB ({largest} uses {workers[largest] / GIB:.1f}), and "
            f"{free / GIB:.1f} GiB of memory are free here: ask for fewer, lower "
            "HEADRACE_VLLM_KV_CACHE_GIB, or start workers on another machine"
        )


def shared_cores(part: Part, running: Sequence[Part]) -> str:
    """Return a warning if the worker `part` computes on cores that other workers have, else ''."""
    others = [other.name for other in running if set(other.cores) & set(part.cores)]
    if not others:
        return ""
    cores = ", ".join(map(str, part.cores))
    return (
        f"warning: {part.name} shares core{'s' if len(part.cores) > 1 else ''} {cores} with "
        f"{', '.join(others)}: together they generate faster only if those leave them idle. "
        "`headrace up --rollouts N` divides the cores"
    )


class Scaling:
    """Adds and removes rollout workers of one `headrace up`, as `headrace scale` asks."""

    def __init__(self, options: UpOptions, plan: Plan, supervisor: Supervisor) -> None:
        self._options = options
        self._plan = plan
        self._supervisor = supervisor

    async def answer(self, request: dict[str, Any], say: Say) -> dict[str, Any]:
        """Carry out {"scale": {"rollout": N}}, and forget workers that were given up. Returns when
        the workers have joined or left. Raises LaunchError if the memory is short, or one cannot
        join."""
        wanted = number_of_workers(request, self._plan)
        # A worker that joined and was given up later no longer counts.
        for name in self._supervisor.failures.keys() & self._supervisor.parts.keys():
            await self._supervisor.remove(name)
        now = self._indices()
        leaving = [f"rollout-{index}" for index in sorted(now)[wanted:]]
        free = (index for index in range(MOST) if index not in now)
        joining = [next(free) for _ in range(wanted - len(now))]
        pids = {n: pid for n, pid in self._supervisor.pids.items() if n.startswith("rollout-")}
        used = {name: await asyncio.to_thread(memory_of, pid) for name, pid in pids.items()}
        require_memory(len(joining), used, free_memory())
        if leaving:
            say(f"{', '.join(leaving)}: told to leave, leases are released")
            await asyncio.gather(*(self._supervisor.remove(name) for name in leaving))
        names = [self._start(index, wanted, say) for index in joining]
        if names:
            say(f"{', '.join(names)}: starting")
            await self._joined(names, say)
        return {"rollout": len(self._indices()), "joined": names, "left": leaving}

    def _indices(self) -> set[int]:
        names = (name.partition("rollout-") for name in self._supervisor.parts)
        return {int(index) for _, prefix, index in names if prefix}

    def _start(self, index: int, engines: int, say: Say) -> str:
        assert self._plan.workers is not None
        parts = self._supervisor.parts
        running = [parts[f"rollout-{index}"] for index in sorted(self._indices())]
        serving = [part for name, part in sorted(parts.items()) if name.startswith(SERVING)]
        engines = max(engines, index + 1) + len(serving)
        running += serving
        part = self._plan.workers.part(index, engines, running, len(serving))
        if warning := shared_cores(part, running):
            say(warning)
        self._supervisor.add(part)
        return part.name

    async def _joined(self, names: list[str], say: Say) -> None:
        """Wait until all of them work. Raises LaunchError if one cannot, or takes too long."""
        clock = asyncio.get_running_loop().time
        began, store = clock(), Store.from_url(self._plan.redis_url)
        gpus = self._plan.workers.gpus if self._plan.workers else None
        # On one GPU they start their vLLMs one after another.
        starts_in_turn = len(names) if gpus is not None and gpus.shared else 1
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
                    if await self._there(name, heard, run):
                        waiting.remove(name)
                        say(f"{name}: joined")
                limit = patience(run, starts_in_turn)
                if waiting and clock() - began > limit:
                    raise LaunchError(
                        f"{', '.join(waiting)} did not join within {limit:.0f} s and "
                        f"goes on trying: `headrace logs {waiting[0]}` says why"
                    )
                await asyncio.sleep(LOOK_EVERY)
        finally:
            await store.close()

    async def _sampled(self, store: Store) -> RunRecord | None:
        """Return the pool's active run if it has weights to serve."""
        run = await store.runs.active(self._options.pool)
        if run is None or run.damage or run.kind != "rl" or run.state.ending:
            return None
        return run if await store.weights.newest(run.id) is not None else None

    async def _there(self, name: str, heard: list[WorkerRecord], run: RunRecord | None) -> bool:
        pid, host = self._supervisor.pids.get(name), socket.gethostname()
        mine = next((worker for worker in heard if (worker.host, worker.pid) == (host, pid)), None)
        if (failure := self._supervisor.failures.get(name)) is not None:
            await self._supervisor.remove(name)
            raise LaunchError(failure)
        if mine is None:
            return False
        if mine.state == "unhealthy":
            raise LaunchError(
                f"{name} is there and cannot work, and goes on trying: {mine.error or 'no reason'}"
            )
        return run is None or mine.version is not None


def patience(run: RunRecord | None, starts_in_turn: int) -> float:
    """Return the seconds that workers may take to join if the last one waits for all others to
    start."""
    if run is None:
        return HEARD_WITHIN
    startup = float(run.config["rollout"]["vllm"]["startup_seconds"])
    return HEARD_WITHIN + starts_in_turn * startup
