"""Sessions that applications have opened: leases ready ones and completes each as a group of one.
Expired sessions are ended or discarded.

A session is ready until the script that takes its group closes it. So a session that a worker
completed before it died is not completed twice, and any other is leased again, as another attempt.

A session that cannot be read back is dropped. A session that is refused, by a teacher for example,
is tried again after all others. It is dropped after TRIES refusals, but only if another session was
taken since its first refusal: until then the run may be at fault, and sessions cannot be played
again.
"""

import asyncio
import time

from redis.exceptions import RedisError
from structlog.contextvars import bind_contextvars

from rollout.aio import retry
from rollout.rewards.combine import earned_score
from rollout.sessions.session_completions import completion, shared_prompt, unplayed
from rollout.vllm.client.connection import VLLMUnavailable
from rollout.work.dropped_tasks import TRIES
from rollout.work.failure_limit import MAX_ROWS, RunCannotWork
from rollout.work.group import Sampled
from rollout.work.hand_in import HandIn
from rollout.work.run_work import RunWork
from services.contracts.sessions import session_of
from services.contracts.weights import WeightManifest
from services.runtime.logs import get_logger
from services.runtime.panics import panics_as
from services.store.agents.live import LiveSession
from services.store.work.tasks import Lease
from services.volume import GatewayAway

log = get_logger(__name__)

AT_ONCE = 32
"""Sessions that are completed at once."""
SWEEP_SECONDS = 1.0
PAUSE_SECONDS, LONGEST_PAUSE = 1.0, 60.0
"""Seconds without leases after a session was refused. They double each time, until a session is
taken."""


class _Untrainable(ValueError):
    """The stored session can never become a group."""


class LiveSessionTasks:
    """Leases and completes the live sessions of one run (`data.source: sessions`)."""

    def __init__(self, work: RunWork) -> None:
        self._work, self._context, self._store = work, work.context, work.store
        self._leases, self._tasks, self._rows = work.leases, work.tasks, work.rows
        self._run_events, self._limit = work.run_events, work.limit
        self._hand_in = HandIn(work.leases, work.run_events)
        self._swept = self._pause_until = 0.0
        self._pause = PAUSE_SECONDS

    async def take(self, live: WeightManifest) -> str:
        """Lease sessions that are ready. Return the store's refusal, or `full` if AT_ONCE are being
        worked on. Raises RedisError."""
        run, now = self._context.run, time.monotonic()
        if now - self._swept >= SWEEP_SECONDS:
            await self._store.live_sessions.sweep(run)
            self._swept = now
        if now < self._pause_until:
            return "unready"
        count = AT_ONCE - len(self._leases)
        if count <= 0:
            return "full"
        granted = await self._store.tasks.lease(
            run,
            worker=self._context.worker,
            lineage=live.lineage,
            version=live.version,
            count=count,
            ttl=self._context.config.rollout.lease_seconds,
            reserve_bytes=self._work.reserve,
        )
        for lease in granted.leases:
            work = asyncio.create_task(self._train(lease, live), name=f"session {lease.attempt}")
            self._leases.hold(lease, work)
            # A live session has nothing in vLLM.
            self._leases.generated(lease.attempt)
        return granted.refusal

    async def _train(self, lease: Lease, live: WeightManifest) -> None:
        bind_contextvars(task=lease.task, attempt=lease.attempt)
        row = self._rows.of(lease.position)
        try:
            with panics_as(RuntimeError):
                ready = await self._sampled(session_of(lease.attempt))
                if ready is None:
                    # If another worker completed the session, this attempt is no longer held.
                    # Otherwise the session would be leased again at once, again and again.
                    log.info("the session is closed")
                    await self._leases.drop(lease.attempt, "refused", "a session: it is closed")
                    return
                session, sampled = ready
                await self._hand_in(lease, live, session.opened_at, row, sampled)
            self._limit.group_finished()
            self._pause = PAUSE_SECONDS
        except (VLLMUnavailable, RedisError, GatewayAway):
            self._tasks.pause()
            await self._leases.release([lease.attempt])
        except RunCannotWork as error:
            await self._tasks.failed(lease.attempt, row, error)
        except _Untrainable as error:
            await self._drop(lease.attempt, error)
        except Exception as error:
            await self._refused(lease.attempt, error)
        finally:
            self._leases.ended(lease.attempt)

    async def _refused(self, attempt: str, error: Exception) -> None:
        """Try the session again later, unless it has used up its tries."""
        run, id, live = self._context.run, session_of(attempt), self._store.live_sessions
        tries, other_taken = await retry("a session", lambda: live.refused(run, attempt))
        if not tries:
            # The lease has lapsed: the session is another worker's.
            await self._leases.release([attempt])
            return
        if tries >= TRIES and other_taken:
            await self._drop(attempt, error)
            return
        if self._limit.worked:
            # The teacher may have changed since: count failures again until a session is taken.
            self._limit.start()
        self._pause_leases()
        await self._leases.release([attempt])
        log.warning("a session is refused, and handed in again later", error=str(error))
        self._limit.row_failed(id, MAX_ROWS, f"no session can be handed in, e.g. {error}")
        await self._run_events.once("session waits", f"a session waits to be handed in: {error}")

    def _pause_leases(self) -> None:
        now = time.monotonic()
        # Sessions that were leased together are refused together, and count once.
        if now >= self._pause_until:
            self._pause_until = now + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    async def _drop(self, attempt: str, error: Exception) -> None:
        log.warning("a session cannot be trained", error=str(error))
        if await self._leases.drop(attempt, "refused", f"a session: {error}"[:500]):
            await self._run_events.once("session", f"a session is not trained: {error}")

    async def _sampled(self, id: str) -> tuple[LiveSession, Sampled] | None:
        """Return a session as a group of one; None if it is closed. Raises _Untrainable."""
        session = await self._store.live_sessions.find(self._context.run, id)
        if session is None:
            raise _Untrainable("Redis no longer has its turns: it keeps them for a week")
        try:
            played = await self._store.agent_sessions.played(self._context.run, id, 1)
            if played is None:
                return None
            prompt, now = shared_prompt(played), time.time()
            made = [completion(played[0], prompt, self._context.config.sampling.cuts)]
        except (RedisError, OSError):
            raise
        except Exception as error:
            raise _Untrainable(str(error)) from error
        scores = [earned_score(ended.reward) if ended.reward else unplayed() for ended in played]
        key, name = session.prompt_key, session.name
        return session, Sampled(prompt, made, scores, now, now, key, name)
