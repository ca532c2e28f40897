"""Evaluation: rows answered by one policy version, outside admission and training.

While the worker holds rows, the follower applies no update (`Follower.hold`) and the worker leases
no tasks, so that all answers come from one version.
"""

import asyncio
from collections.abc import Callable

from redis.exceptions import RedisError
from structlog.contextvars import bind_contextvars

from rollout.aio import end, retry
from rollout.run_events import RunEvents
from rollout.vllm.client import VLLMUnavailable
from rollout.work.dataset_rows import Rows
from rollout.work.group import RunContext, sample_and_score
from services.contracts.config.rollout import Sampling
from services.contracts.config.training import Evaluation
from services.contracts.weights import WeightManifest
from services.runtime.logs import get_logger
from services.runtime.panics import panics_as
from services.store import Store
from services.volume import GatewayAway

log = get_logger(__name__)


def evaluation_sampling(sampling: Sampling, evaluation: Evaluation) -> Sampling:
    """The run's sampling options with the evaluation's."""
    # Not validated again: only evaluations may have a temperature of 0 (greedy).
    return sampling.model_copy(
        update={
            "temperature": evaluation.temperature,
            "max_tokens": evaluation.max_tokens or sampling.max_tokens,
            "ignore_eos": False,
            "seed": None,
        }
    )


class Evaluator:
    """Answers evaluation rows of one run."""

    def __init__(
        self,
        context: RunContext,
        store: Store,
        rows: Rows | None,
        slots: Callable[[], int],
        run_events: RunEvents,
    ) -> None:
        """`slots`: how many rows to hold in vLLM at once."""
        self._run_events = run_events
        self._context = context
        self._store = store
        self._rows = rows
        self._slots = slots
        self._held: dict[str, bool] = {}
        # Whether the row is still in vLLM, by attempt.

    def __len__(self) -> int:
        return len(self._held)

    @property
    def generating(self) -> int:
        """Rows in vLLM now."""
        return sum(self._held.values())

    async def evaluate(self, ttl: float, started: Callable[[], None]) -> bool:
        """Answer rows of the open evaluation until none is left; calls `started` at the first.
        Returns whether there was any. Raises RedisError, VLLMUnavailable, GatewayAway."""
        evaluation = self._context.config.evaluation
        if evaluation is None or self._rows is None:
            return False
        any_row = False
        async with self._context.follower.hold() as live:
            if live is None:
                return False
            tasks: set[asyncio.Task[None]] = set()
            try:
                while True:
                    room = self._slots() - len(tasks)
                    tasks |= await self._take(evaluation, self._rows, live, ttl, room)
                    if not tasks:
                        return any_row
                    any_row = True
                    started()
                    done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            finally:
                await end(tasks)
                await self.release_all()

    async def renew(self, ttl: float, moving: bool) -> None:
        """Renew the held rows, as `Leases.renew`. Raises RedisError."""
        keep = [a for a, generating in self._held.items() if moving or not generating]
        if keep:
            await self._store.evaluations.renew(self._context.run, keep, ttl)

    async def release_all(self) -> None:
        """Release every row without an answer. Raises RedisError."""
        attempts = list(self._held)
        self._held.clear()
        if attempts:
            await self._store.evaluations.release(self._context.run, attempts)

    async def _take(
        self, evaluation: Evaluation, rows: Rows, live: WeightManifest, ttl: float, count: int
    ) -> set[asyncio.Task[None]]:
        if count <= 0:
            return set()
        leased = await self._store.evaluations.lease(
            self._context.run,
            worker=self._context.worker,
            lineage=live.lineage,
            version=live.version,
            count=count,
            ttl=ttl,
        )
        tasks = set()
        for attempt, row in leased.rows:
            self._held[attempt] = True
            answer = self._answer(evaluation, rows, leased.id, attempt, row)
            tasks.add(asyncio.create_task(answer))
        return tasks

    async def _answer(
        self, evaluation: Evaluation, rows: Rows, id: str, attempt: str, row: int
    ) -> None:
        bind_contextvars(evaluation=id, attempt=attempt, row=row)

        def generated() -> None:
            if attempt in self._held:
                self._held[attempt] = False

        try:
            with panics_as(RuntimeError):
                sampled = await sample_and_score(
                    self._context,
                    row,
                    await rows.row(row),
                    evaluation_sampling(self._context.config.sampling, evaluation),
                    evaluation.samples,
                    None,
                    generated,
                )
            outcome = {
                "rewards": [score.reward for score in sampled.scores],
                "statuses": [score.status for score in sampled.scores],
            }
        except (VLLMUnavailable, RedisError, GatewayAway):
            raise
        except Exception as error:
            # An evaluation must end: a row that fails counts as wrong.
            log.warning("evaluation row failed", error=str(error))
            await self._run_events.once(
                f"evaluation {id}",
                f"evaluation row {row} cannot be answered and counts as wrong, as does any other "
                f"like it: {error}",
            )
            outcome = {"rewards": [], "statuses": ["error"]}
        run, evaluations = self._context.run, self._store.evaluations
        await retry("an evaluation", lambda: evaluations.complete(run, id, attempt, outcome))
        self._held.pop(attempt, None)
