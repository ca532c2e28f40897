"""Works on leased tasks: one asyncio task for each, from the lease to its end.

Every lease ends: completed, filtered, dropped with a reason, or released. A worker that leaves
releases what it has sampled, too (`partials`).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from redis.exceptions import RedisError
from structlog.contextvars import bind_contextvars

from rollout.run_events import RunEvents
from rollout.tools import ToolsAway
from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.client.policy_client import Interrupted
from rollout.vllm.client.progress import Rate
from rollout.work.dropped_tasks import kind_of
from rollout.work.failure_limit import FailureLimit, RunCannotWork
from rollout.work.group import SampleRequest, sample_and_score
from rollout.work.hand_in import HandIn
from rollout.work.leases import Leases
from rollout.work.long_prompts import cut_event
from rollout.work.partials import Partials
from rollout.work.prompt_sampler import task_seed
from rollout.work.task_rows import RowsAway, TaskRow, TaskRows
from services.contracts.rows.curriculum import sampled as curriculum_samples
from services.contracts.weights import WeightManifest
from services.runtime.logs import get_logger
from services.runtime.panics import panics_as
from services.store.work.tasks import Lease
from services.volume import GatewayAway

log = get_logger(__name__)

PAUSE_SECONDS = 1.0
"""Seconds without new tasks after vLLM or Redis was unreachable."""


@dataclass
class WorkStatus:
    state: str = "starting"
    tokens: int = 0
    rate: Rate = field(default_factory=Rate)
    admission_wait: float = 0.0
    error: str = ""


class GroupTasks:
    def __init__(
        self,
        rows: TaskRows,
        leases: Leases,
        run_events: RunEvents,
        limit: FailureLimit,
        status: WorkStatus,
        look: Callable[[], None],
    ) -> None:
        """`look` is called when the worker should check whether it can go on."""
        self._rows = rows
        self._leases = leases
        self._run_events = run_events
        self._limit = limit
        self._status = status
        self._look = look
        self._hand_in = HandIn(leases, run_events)
        self.partials = Partials(leases, run_events)
        self._pause_until = 0.0

    @property
    def paused(self) -> bool:
        return self._limit.reason is not None or time.monotonic() < self._pause_until

    def pause(self) -> None:
        """Begin no task for PAUSE_SECONDS, and make the worker check whether it can go on."""
        self._pause_until = time.monotonic() + PAUSE_SECONDS
        self._look()

    async def away(self, error: Exception) -> None:
        """Pause because something that tasks need is unreachable. The task is not to blame."""
        self._status.error = str(error)
        self.pause()
        if isinstance(error, RowsAway):
            await self._run_events.once("rows away", f"groups wait: {error}")

    def begin(self, lease: Lease, live: WeightManifest) -> None:
        """Work on `lease`, which was granted for the version `live`."""
        work = asyncio.create_task(self._group(lease, live), name=f"task {lease.task}")
        self._leases.hold(lease, work)

    async def _group(self, lease: Lease, live: WeightManifest) -> None:
        bind_contextvars(task=lease.task, attempt=lease.attempt)
        row = self._rows.of(lease.position)
        try:
            with panics_as(RuntimeError):
                await self._sample(lease, live, row)
            self._limit.group_finished()
        except Interrupted as interrupted:
            await self.partials.leave(lease, live, row, interrupted.begun)
        except (VLLMUnavailable, ToolsAway, RedisError, GatewayAway, RowsAway) as error:
            # The worker finds out whether vLLM is dead; more requests would not help.
            await self.away(error)
            await self._leases.release([lease.attempt])
        except Exception as error:
            await self.failed(lease.attempt, row, error)
        finally:
            self._leases.ended(lease.attempt)

    async def _sample(self, lease: Lease, live: WeightManifest, row: TaskRow) -> None:
        context, leased_at = row.dataset.context, time.time()
        config, leases, tasks = context.config, self._leases, self._leases.tasks
        if config.data.filter is not None and await leases.ask(tasks.prompt_filtered, row.key):
            await leases.drop(lease.attempt, "filtered_prompt", f"{row} (data.filter)")
            return
        if (curriculum := config.data.curriculum) is not None:
            rate = await leases.ask(tasks.pass_rate, row.key)
            if not curriculum_samples(curriculum, rate, config.training.seed, lease.task):
                detail = f"{row} (data.curriculum: its pass rate is {rate:.2g})"
                await leases.end(lease.attempt, tasks.skip, detail)
                return
        request = SampleRequest(
            row.index,
            await row.dataset.rows.row(row.index),
            config.data,
            config.components,
            config.sampling,
            config.algorithm.samples_generated,
            task_seed(config.sampling.seed, lease.task),
            config.rollout.straggler_deadline,
            leases.leaving,
            await self.partials.begun(lease, row),
        )
        sampled = await sample_and_score(context, request, partial(leases.generated, lease.attempt))
        if sampled.prompt_cut:
            message = cut_event(str(row), sampled.prompt_cut, len(sampled.prompt_tokens))
            await self._run_events.counted("cut", message)
        await self._hand_in(lease, live, leased_at, row, sampled)

    async def failed(self, attempt: str, row: TaskRow, error: Exception) -> None:
        if isinstance(error, RunCannotWork):
            self._limit.run_failed(str(error))
            self._look()
            await self._leases.release([attempt])
            return
        kind = kind_of(error)
        detail = str(error)
        if not detail.startswith("dataset row"):
            detail = f"{row}: {detail}"
        if kind.drops:
            await self._leases.drop(attempt, kind.cause, detail)
        else:
            await self._leases.release([attempt], kind.cause, detail)
        reason = f"{kind.summary}, e.g. {detail}"
        log.warning("task failed", row=row.key, reason=reason)
        self._status.error = reason
        self._limit.row_failed(row.key, self._rows.count, reason)
        if self._limit.reason:
            self._look()
        if kind.event:
            await self._run_events.counted(kind.cause, f"{kind.event}: {detail}")
