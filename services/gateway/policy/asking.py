"""One call of the policy: its place among the open calls, its worker, and its answer."""

import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from http import HTTPStatus

from services.contracts.policy_calls import Piece, PolicyCall
from services.contracts.records import RunRecord
from services.contracts.served_models import ModelDemand, queue_of
from services.gateway.openai.answers import problem_of
from services.gateway.openai.errors import SessionProblem
from services.gateway.policy.finished_models import model_worker
from services.gateway.policy.limits import OpenCalls
from services.gateway.policy.served_models import worker_for
from services.store import Store
from services.store.agents.policy_calls import KEEP_SECONDS

READ_SECONDS = 1.0
"""Seconds of one read of Redis for the next piece. Then the client's connection is checked."""
SILENT_SECONDS = 15.0
"""Seconds of silence before a worker counts as gone. A worker reports every 2 s."""
ANSWER_SECONDS = 600.0
"""Seconds for a whole answer."""


class Asking:
    """A call, from its admission to the end of its answer."""

    def __init__(self, store: Store, open_calls: OpenCalls, id: str) -> None:
        self._store, self._open, self._id = store, open_calls, id
        self.model = ""
        """The run and the version that began the answer, once its first piece is there."""

    async def pieces(
        self,
        run: RunRecord,
        call: PolicyCall,
        gone: Callable[[], Awaitable[bool]],
        demand: ModelDemand | None = None,
    ) -> AsyncGenerator[Piece, None]:
        """Yield the answer as it comes, up to its last piece, or until the client is `gone`.
        `demand`: the checkpoint that answers; None: a version that is being trained. Raises
        SessionProblem before the first piece, or if the worker falls silent."""
        calls, of_worker = self._store.policy_calls, self._open.of_worker
        if demand is None:
            workers = await self._store.workers.list(run.pool)
            worker = worker_for(call.version, run, workers, of_worker)
            queue = worker.id
        else:
            worker = await model_worker(self._store, run, demand, of_worker)
            queue = queue_of(worker.id, demand.step)
            call.version = demand.step
        with self._open.slot(worker.id):
            try:
                await calls.ask(run.id, queue, self._id, call)
                after, heard, kept = "0", time.monotonic(), time.monotonic()
                end = heard + ANSWER_SECONDS
                while True:
                    after, arrived = await calls.pieces(run.id, self._id, after, READ_SECONDS)
                    now = time.monotonic()
                    heard = now if arrived else heard
                    for piece in arrived:
                        if piece.version is not None:
                            self.model = f"{run.id}@{piece.version}"
                        yield piece
                        if piece.last:
                            return
                    if now - heard > SILENT_SECONDS or now > end:
                        raise _silent(worker.id, now > end)
                    if await gone():
                        return
                    if now - kept > KEEP_SECONDS:
                        kept = now
                        await calls.keep(run.id, self._id)
            finally:
                # This task may be cancelled here, so the call runs in a task of its own.
                self._open.later(calls.forget(run.id, self._id))


async def count_tokens(
    store: Store,
    open_calls: OpenCalls,
    run: RunRecord,
    call: PolicyCall,
    demand: ModelDemand | None = None,
) -> int:
    """Return the number of tokens of a call's prompt, by a worker's tokenizer. Raises
    SessionProblem."""

    async def gone() -> bool:
        return False

    asking = Asking(store, open_calls, secrets.token_hex(12))
    async with aclosing(asking.pieces(run, call, gone, demand)) as pieces:
        async for piece in pieces:
            if piece.failure is not None:
                raise problem_of(piece.failure)
            if piece.last:
                return piece.prompt_tokens
    raise AssertionError("an answer has a last piece")


def _silent(worker: str, too_long: bool) -> SessionProblem:
    why = (
        f"is still not done after {ANSWER_SECONDS:g} s: ask for fewer max_tokens"
        if too_long
        else f"has not been heard of for {SILENT_SECONDS:g} s: try again, and another one answers"
    )
    return SessionProblem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"worker {worker}, which was to answer, {why}",
        code="worker_silent",
        headers={"Retry-After": "1"},
    )
