"""Takes the calls of a run whose episodes agents lead, instead of leasing tasks.

A call is held until a deadline, which is extended while vLLM samples tokens. A turn is in Redis
before it is answered, so a worker that dies loses only turns that no client has read; another
worker plays them.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.exceptions import RedisError
from structlog.contextvars import bind_contextvars

from rollout.aio import retry
from rollout.sessions.ended_groups import EndedGroups
from rollout.sessions.live_sessions import LiveSessionTasks
from rollout.sessions.turn_sampler import Refused, TurnSampler
from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.client.resume import mixed
from rollout.work.prompt_sampler import task_seed
from rollout.work.run_work import RunWork
from rollout.work.task_rows import RowsAway
from services.contracts.config.episodes import Sessions
from services.contracts.records import WorkerRecord
from services.contracts.rows.task import TaskPosition
from services.runtime.logs import get_logger
from services.runtime.panics import panics_as
from services.runtime.tasks import end
from services.store.agents.calls import Claimed
from services.volume import GatewayAway

log = get_logger(__name__)

NEWS_SECONDS = 5.0
AT_ONCE = 2
"""Calls held for each sequence that vLLM runs at once: the next calls already wait in vLLM."""


@dataclass
class _HeldCall:
    work: asyncio.Task[None]
    generating: bool
    claimed: bool
    """False for a call that was started when its request was announced. The next claim includes
    it."""
    again: bool = False
    """Whether it was announced or claimed again meanwhile: it lapsed, or it was refused and its
    client repeats it."""


class CallSource:
    """Samples and records turns, and completes ended groups. See WorkSource."""

    def __init__(self, work: RunWork) -> None:
        self._work, self._context, self._store = work, work.context, work.store
        self._leases = work.leases
        episode = work.context.config.rollout.episode
        assert isinstance(episode, Sessions)
        self._idle = episode.idle_seconds
        self._sampler = TurnSampler(work.context)
        self._ended_groups = EndedGroups(work)
        self._calls: dict[str, _HeldCall] = {}
        self._full = False
        """Whether the last claim filled the worker, so that more calls may wait."""
        self._live = LiveSessionTasks(work) if work.context.config.data.live else None

    async def take(self) -> str:
        """Claim calls, and lease sessions of applications that are ready."""
        live, refusal = self._context.follower.live, self._refusal()
        if live is None or refusal:
            return refusal
        at_once = self._context.sequences.at_once
        held = sum(call.claimed for call in self._calls.values())
        count = max(0, AT_ONCE * at_once - held)
        run, worker = self._context.run, self._context.worker
        # The claim is also a sign of life and lists what this worker holds, so it is sent even if
        # no call fits.
        claimed = await self._store.agent_calls.claim(run, worker, count, held, at_once)
        self._full = len(claimed) == count
        for call in claimed:
            if known := self._calls.get(call.id):
                known.claimed, known.again = True, known.claimed
            else:
                self._begin(call, claimed=True)
        if self._live is not None:
            return await self._live.take(live)
        if not count:
            return "full"
        # This worker leases no task, so only this answer makes it check whether the run has ended.
        return "" if claimed else "state"

    def _refusal(self) -> str:
        """Return why no call can be started; '' if one can."""
        if self._context.follower.live is None or not self._context.follower.healthy:
            return "weights"
        return "unavailable" if self._work.tasks.paused else ""

    def _begin(self, call: Claimed, claimed: bool) -> None:
        work = asyncio.create_task(self._work_on(call), name=f"call {call.id}")
        self._calls[call.id] = _HeldCall(work, call.call.kind != "finish", claimed)

    async def _begin_asked(self, calls: list[str]) -> None:
        """Start `calls`, which this worker may take first. The next claim includes them all:
        claiming each call would cost Redis one synced write per call."""
        count = AT_ONCE * self._context.sequences.at_once - len(self._calls)
        if self._work.closing or self._refusal() or count < len(calls):
            self._work.wake.set()
            return
        for call in await self._store.agent_calls.asked(self._context.run, calls):
            if held := self._calls.get(call.id):
                held.again = True
            elif not self._work.closing:
                self._begin(call, claimed=False)

    async def _work_on(self, claimed: Claimed) -> None:
        bind_contextvars(attempt=claimed.attempt, session=claimed.index)
        calls, run = self._store.agent_calls, self._context.run
        try:
            with panics_as(RuntimeError):
                if claimed.call.kind == "finish":
                    await self._ended_groups.finish(claimed)
                else:
                    await self._turn(claimed)
        except (VLLMUnavailable, RedisError, GatewayAway, RowsAway) as error:
            await self._work.tasks.away(error)
            await retry("a call", lambda: calls.release(run, self._context.worker, [claimed.id]))
        except Exception as error:
            # The stored call cannot be answered; its lease lapses.
            log.exception("a call cannot be worked on")
            self._work.status.error = str(error)
        finally:
            held = self._calls.pop(claimed.id, None)
            if self._full:
                self._work.wake.set()
        if held and held.again:
            # A call that is not answered by now is claimed again.
            await retry("a call", lambda: calls.release(run, self._context.worker, [claimed.id]))

    async def _turn(self, claimed: Claimed) -> None:
        calls, run, worker = self._store.agent_calls, self._context.run, self._context.worker
        earlier = await self._store.agent_sessions.turns(
            run, claimed.attempt, claimed.index, claimed.call.path
        )
        if earlier is None:
            await self._fail(claimed, 409, "this session's turns are gone")
            return
        try:
            sampled = await self._sampler.sample(claimed.call, earlier, await self._seed(claimed))
        except Refused as refused:
            await self._fail(claimed, 400, str(refused), code=refused.code, param=refused.param)
            return
        except (VLLMUnavailable, RedisError):
            raise
        except Exception as error:
            log.exception("a turn failed")
            self._work.status.error = str(error)
            await self._fail(claimed, 500, f"the turn could not be sampled: {error}"[:500])
            return
        recorded = partial(calls.record_turn, run, worker, claimed, sampled)
        if await retry("a turn", recorded) is None:
            log.info("a turn came too late and is discarded")

    async def _fail(self, claimed: Claimed, status: int, message: str, **more: str | None) -> None:
        run, worker = self._context.run, self._context.worker
        failure = {"status": status, "message": message, **more}
        await retry("a turn", lambda: self._store.agent_calls.fail(run, worker, claimed, failure))

    async def _seed(self, claimed: Claimed) -> int | None:
        """Return the call's seed, if the run has one. Each request has another seed."""
        if self._context.config.sampling.seed is None:
            return None
        opened = await self._store.agent_sessions.opened(self._context.run, claimed.attempt)
        task = TaskPosition.parse(opened.task).position if opened else 0
        seed = task_seed(self._context.config.sampling.seed, task)
        return None if seed is None else mixed(seed, claimed.index, int(claimed.digest[:15], 16))

    def describe(self, record: WorkerRecord) -> None:
        """Set the worker's groups in flight, which include the calls that are being answered."""
        record.groups_in_flight = len(self._calls) + len(self._leases)
        sampled = sum(held.generating for held in self._calls.values())
        record.scoring = record.groups_in_flight - sampled

    def widen(self, unfinished: int) -> None:
        """Do nothing: calls are held for each sequence."""

    @property
    def busy(self) -> bool:
        return bool(self._calls) or len(self._leases) > 0

    async def renew(self, moving: bool) -> None:
        await self._leases.renew(moving)
        keep = [id for id, held in self._calls.items() if moving or not held.generating]
        if not keep:
            return
        run, worker = self._context.run, self._context.worker
        for id in await self._store.agent_calls.renew(run, worker, self._idle, keep):
            if held := self._calls.get(id):
                held.work.cancel()

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        return [self._listen()]

    async def _listen(self) -> None:
        """Start calls as soon as they are announced. The worker loop also polls, less often."""
        calls, run = self._store.agent_calls, self._context.run
        last_entry = "$"
        while True:
            try:
                if last_entry == "$":
                    last_entry = await calls.newest("asked", run)
                last_entry, asked = await calls.news("asked", run, last_entry, NEWS_SECONDS)
                if any(not first for _, first in asked):
                    self._work.wake.set()
                if first_here := [call for call, first in asked if first == self._context.worker]:
                    await self._begin_asked(first_here)
            except (RedisError, OSError):
                await asyncio.sleep(1)

    async def release_sampling(self) -> None:
        await self._give_up([id for id, held in self._calls.items() if held.generating])

    async def release_all(self) -> None:
        await self._leases.release_all()
        await self._give_up(list(self._calls))

    async def _give_up(self, calls: list[str]) -> None:
        held = [self._calls[id].work for id in calls if id in self._calls]
        await end(held)
        if calls:
            run, worker = self._context.run, self._context.worker
            await self._store.agent_calls.release(run, worker, calls)
