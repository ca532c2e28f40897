"""Evaluation: answers held-out rows with one exact policy version while training continues.

A worker that has a seat in an evaluation pins vLLM to the evaluated version until it has no row
left (`WeightFollower.pin`). It continues to train meanwhile, with that version and under admission,
on the share of vLLM that evaluation leaves. Other workers follow new versions. A worker that
already serves a newer version (another worker died, or the evaluation had to wait) finishes its
groups first. A worker that only evaluates keeps its seat from one evaluation to the next.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from redis.exceptions import RedisError
from structlog.contextvars import bind_contextvars

from rollout.aio import retry
from rollout.text.answer_text import text_of
from rollout.tools import ToolsAway
from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.weights.weight_follower import CannotPin
from rollout.work.capacity import share_of
from rollout.work.group import SampleRequest, sample_and_score
from rollout.work.long_prompts import cut_event
from rollout.work.run_work import RunWork
from rollout.work.task_rows import Rows, RowsAway
from services.contracts.config.rewards import named
from services.contracts.evaluation import AnsweredRow, AnsweredSample, EvaluationRequest
from services.contracts.rows.dataset import Row
from services.contracts.rows.rendering import compose, plain_text
from services.contracts.schema import SchemaMismatch
from services.runtime.logs import get_logger
from services.runtime.panics import panics_as
from services.runtime.tasks import end
from services.store.work.evaluations import EvaluationLeases
from services.volume import DamagedFile, GatewayAway

log = get_logger(__name__)

POLL_SECONDS = 0.25
"""Seconds until a worker without rows asks again."""
BACKOFF_SECONDS = 5.0
"""Seconds to wait after a failure that the evaluation did not cause."""
DAMAGED_TRIES = 2
"""Tries to load a damaged version before its evaluation fails."""
AWAY = (VLLMUnavailable, ToolsAway, RedisError, GatewayAway, RowsAway)


class Evaluator:
    def __init__(self, work: RunWork, rows_of: Callable[[str], Rows]) -> None:
        """`rows_of` returns a dataset's rows."""
        self._work, self._context, self._store = work, work.context, work.store
        self._rows_of = rows_of
        self._ttl = work.context.config.rollout.lease_seconds
        self._datasets: dict[str, Rows] = {}
        self._damaged: Counter[str] = Counter()
        """For each evaluation: tries to load its version that met a damaged file."""
        self._held: dict[str, bool] = {}
        """By attempt: whether the row is still in vLLM."""
        self._seated = False
        self._requests: dict[str, EvaluationRequest] = {}
        self.samples = 0
        """Completions of the rows in vLLM."""
        self.clearing = False
        """Whether training leases no more groups until vLLM has gone back to an older version."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def generating(self) -> int:
        return sum(self._held.values())

    async def run(self) -> None:
        """Answer rows whenever an evaluation is open. Never returns."""
        while True:
            pause = POLL_SECONDS
            try:
                if await self._turn():
                    pause = 0.0
            except AWAY as error:
                log.warning("evaluation waits", error=str(error))
                pause = BACKOFF_SECONDS
                if isinstance(error, RowsAway):
                    waits = f"an evaluation waits: {error}"
                    await self._work.run_events.once("rows of an evaluation away", waits)
            except CannotPin as error:
                pause = BACKOFF_SECONDS
                await self._work.run_events.once(f"pin {error}", f"an evaluation waits: {error}")
            await asyncio.sleep(pause)

    async def renew(self, moving: bool) -> None:
        """Renew the seat and the held rows, as `Leases.renew` does. Raises RedisError."""
        keep = [a for a, generating in self._held.items() if moving or not generating]
        if self._seated:
            run, worker = self._context.run, self._context.worker
            await self._store.evaluations.renew(run, worker, keep, self._ttl)

    async def release_all(self) -> None:
        """Release all rows without answers, and the seat. Raises RedisError."""
        await self._release(leaves=True)

    async def _release(self, leaves: bool) -> None:
        seated = self._seated or self._context.evaluation_only
        attempts, seat = list(self._held), self._context.worker if leaves and seated else ""
        self._held.clear()
        self._seated, self.samples = False, 0
        if attempts or seat:
            await self._store.evaluations.release(self._context.run, attempts, seat)

    @property
    def _ready(self) -> bool:
        return not (self._work.closing or self._work.tasks.paused)

    def _row_limit(self, samples: int) -> int:
        """Return how many rows with `samples` completions may be in vLLM."""
        context, share = self._context, self._context.evaluation_share
        used = self._work.leases.generating * context.config.algorithm.samples_generated
        return share_of(context.completions, used, 1.0 if share is None else share, samples)

    # --- one version ----------------------------------------------------------------------------

    async def _turn(self) -> bool:
        """Answer rows of the open evaluation, if this worker has a seat. Return whether there were
        any. Raises AWAY and CannotPin."""
        if not (self._context.follower.healthy and self._ready):
            return False
        leased = await self._lease(1)
        if not leased.id:
            return False
        request = self._requests[leased.id]
        try:
            await self._serve(request)
            await self._answer_rows(request.version, leased)
        finally:
            self._context.follower.unpin()
            self.clearing = False
            with contextlib.suppress(RedisError):
                await self._release(leaves=not self._context.evaluation_only)
            self._work.wake.set()
        return True

    async def _serve(self, request: EvaluationRequest) -> None:
        """Pin vLLM to the request's version. Raises CannotPin. Fails an evaluation whose version no
        worker can load any more."""
        follower = self._context.follower
        try:
            manifest = request.weights
            if not await follower.pin(manifest, back=False):
                self.clearing = True
                while self._work.leases.generating:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_SECONDS / 5)
                await follower.pin(manifest, back=True)
            await follower.until_pinned()
            self.clearing = False
            self._work.wake.set()
        except (FileNotFoundError, SchemaMismatch, DamagedFile) as error:
            if isinstance(error, DamagedFile):
                self._damaged[request.id] += 1
                # A host without the data volume fetches its copy again at each try.
                if self._damaged[request.id] < DAMAGED_TRIES:
                    raise CannotPin(str(error)) from error
            reason = f"version {request.version} cannot be loaded any more: {error}"
            run, worker = self._context.run, self._context.worker
            await self._store.evaluations.fail(run, request.id, worker, reason)
            raise CannotPin(reason) from error

    async def _answer_rows(self, version: str, leased: EvaluationLeases) -> None:
        """Answer rows of the open evaluation, and of the next ones if they have the same
        version."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                tasks |= self._begin(leased)
                if not tasks and not leased.rows:
                    return
                done, tasks = await asyncio.wait(
                    tasks, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                request = self._requests[leased.id] if leased.id else None
                samples = request.set.samples if request else 1
                # Rows that are being scored need no place in vLLM, but their number is limited too.
                limit = self._row_limit(samples)
                count = min(limit - self.generating, 2 * limit - len(self))
                leased = await self._lease(count) if self._ready else EvaluationLeases()
                if leased.id and self._requests[leased.id].version != version:
                    # The next evaluation has another version: finish all rows of this one first.
                    leased = EvaluationLeases()
        finally:
            await end(tasks)

    async def _lease(self, count: int) -> EvaluationLeases:
        live = self._context.follower.live
        if live is None:
            return EvaluationLeases()
        leased = await self._store.evaluations.lease(
            self._context.run,
            worker=self._context.worker,
            version=live.tag,
            busy=self._work.leases.generating > 0,
            reserved=self._context.evaluation_only,
            count=count,
            ttl=self._ttl,
            known=next(iter(self._requests), ""),
        )
        if leased.id:
            self._seated = True
        if leased.request is not None:
            self._requests = {leased.id: leased.request}
        self._held |= dict.fromkeys((attempt for attempt, _ in leased.rows), True)
        return leased

    # --- one row --------------------------------------------------------------------------------

    def _begin(self, leased: EvaluationLeases) -> set[asyncio.Task[None]]:
        if not leased.rows:
            return set()
        request = self._requests[leased.id]
        self.samples = request.set.samples * self.generating
        return {
            asyncio.create_task(self._answer(request, attempt, row)) for attempt, row in leased.rows
        }

    async def _answer(self, request: EvaluationRequest, attempt: str, row: int) -> None:
        bind_contextvars(evaluation=request.id, attempt=attempt, row=row)

        def generated() -> None:
            if attempt in self._held:
                self._held[attempt] = False
            self.samples = request.set.samples * self.generating
            self._work.wake.set()

        answered = AnsweredRow(row=row, prompt="", samples=[])
        try:
            with panics_as(RuntimeError):
                await self._sample(request, answered, generated)
        except AWAY:
            raise
        except Exception as error:
            # An evaluation must end, so a row that fails counts as wrong.
            log.warning("evaluation row failed", error=str(error))
            await self._work.run_events.once(
                f"evaluation {request.id}",
                f"evaluation row {row} of {request.set.name} cannot be answered and counts as "
                f"wrong, as does any other like it: {error}",
            )
            answered = answered.model_copy(update={"samples": [], "error": str(error)})
        if attempt not in self._held:
            # The row was released meanwhile: wrong weights may have sampled its answers.
            return
        run, evaluations = self._context.run, self._store.evaluations
        await retry(
            "an evaluation", lambda: evaluations.complete(run, request.id, attempt, answered)
        )
        self._held.pop(attempt, None)

    async def _sample(
        self, evaluation: EvaluationRequest, answered: AnsweredRow, generated: Callable[[], None]
    ) -> None:
        """Sample and score the row of `answered`, wait until the version is proven to be the served
        one, and fill `answered`. Raises what `sample_and_score` raises."""
        held_out = evaluation.set
        if held_out.dataset not in self._datasets:
            self._datasets[held_out.dataset] = self._rows_of(held_out.dataset)
        row = await self._datasets[held_out.dataset].row(answered.row)
        answered.prompt = plain_text(compose(row, held_out.prompt))
        answered.reference = row.answer
        answered.category = category_of(row, held_out.category)
        request = SampleRequest(
            answered.row,
            row,
            held_out.prompt,
            named(held_out.rewards) or self._context.config.components,
            held_out.sampling,
            held_out.samples,
        )
        sampled = await sample_and_score(self._context, request, generated)
        if sampled.prompt_cut:
            place = f"row {answered.row} of an evaluation"
            message = cut_event(place, sampled.prompt_cut, len(sampled.prompt_tokens))
            await self._work.run_events.counted("cut in an evaluation", message)
        await self._context.follower.until_proven([evaluation.version])
        answered.samples = [
            AnsweredSample(
                text=text_of(self._context.tokenizer, completion.token_ids)
                if completion.text is None
                else completion.text,
                tokens=len(completion.token_ids),
                truncated=completion.finish_reason != "stop",
                reward=score.reward,
                status=score.status,
                components=score.components,
                reasons=score.reasons,
            )
            for completion, score in zip(sampled.completions, sampled.scores, strict=True)
        ]


def category_of(row: Row, column: str | None) -> str | None:
    """Return the row's value in `column` as text. `COLUMN.KEY` is a key in a column that holds an
    object."""
    if column is None:
        return None
    value: Any = row.columns
    for key in [column] if column in row.columns else column.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None else str(value)[:100]
