"""The worker's loop for calls of the policy as an endpoint.

It answers up to AT_ONCE calls at once, and stops calls whose client has gone. While no call comes,
Redis is asked once every WAIT_SECONDS.
"""

import asyncio
from http import HTTPStatus

from redis.exceptions import RedisError
from structlog.contextvars import bind_contextvars

from rollout.policy.answering import Answering, Say
from rollout.work.run_context import RunContext
from services.contracts.policy_calls import Failure, Piece, PolicyCall
from services.runtime.logs import get_logger
from services.runtime.panics import panics_as
from services.runtime.tasks import end
from services.store import Store

log = get_logger(__name__)

AT_ONCE = 256
"""More calls than gateways let through: a gateway hears nothing of a call that waits here."""
WAIT_SECONDS = 5.0
"""Seconds that one read of Redis waits for the next call."""
GATHER_SECONDS = 0.05
"""Seconds between two writes of one answer."""
ALIVE_SECONDS = 2.0
"""Seconds without text after which the gateway hears that the worker is still working."""
LEAVES = "the worker that was answering stops: ask again, and another one answers"


class PolicyCallLoop:
    def __init__(self, context: RunContext, store: Store) -> None:
        self._context, self._store = context, store
        self._answering = Answering(context)
        self._open: set[asyncio.Task[None]] = set()
        self.answered = 0
        """Answers since this worker took up the run."""
        self.tokens = 0
        """Tokens sampled for these answers."""

    def __len__(self) -> int:
        return len(self._open)

    async def run(self) -> None:
        """Answer calls until cancelled. Open calls then end with a reason."""
        try:
            while True:
                try:
                    await self._next()
                except (RedisError, OSError):
                    await asyncio.sleep(1)
                except ValueError as error:
                    log.warning("a call of the policy cannot be read", error=str(error))
        finally:
            await end(self._open)

    async def _next(self) -> None:
        if len(self._open) >= AT_ONCE:
            await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)
            return
        calls, run = self._store.policy_calls, self._context.run
        taken = await calls.take(run, self._context.worker, WAIT_SECONDS)
        if taken is not None:
            task = asyncio.create_task(self._answer(*taken), name="policy call")
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _answer(self, id: str, asked: PolicyCall) -> None:
        bind_contextvars(policy_call=id)
        has_piece = asyncio.Event()
        pieces: list[Piece] = []

        def say(piece: Piece) -> None:
            pieces.append(piece)
            has_piece.set()

        sampling = asyncio.create_task(self._sample(asked, say), name="policy answer")
        try:
            last = False
            while not last:
                try:
                    async with asyncio.timeout(ALIVE_SECONDS):
                        await has_piece.wait()
                except TimeoutError:
                    pass
                has_piece.clear()
                piece = together(pieces)
                pieces.clear()
                last = piece.last
                if not await self._store.policy_calls.say(self._context.run, id, piece):
                    return
                if piece.finish_reason is not None:
                    self.answered += 1
                    self.tokens += piece.sampled_tokens
                await asyncio.sleep(0 if last else GATHER_SECONDS)
        except (RedisError, OSError) as error:
            log.warning("an answer is lost", error=str(error))
        except asyncio.CancelledError:
            leaves = Failure(status=HTTPStatus.SERVICE_UNAVAILABLE, message=LEAVES)
            await self._store.policy_calls.say(self._context.run, id, Piece(failure=leaves))
            raise
        finally:
            await end([sampling])

    async def _sample(self, asked: PolicyCall, say: Say) -> None:
        try:
            with panics_as(RuntimeError):
                await self._answering.answer(asked, say)
        except Exception as error:
            log.exception("a call of the policy failed")
            message = f"the answer could not be sampled: {error}"[:500]
            failure = Failure(status=HTTPStatus.INTERNAL_SERVER_ERROR, message=message)
            say(Piece(failure=failure))


def together(pieces: list[Piece]) -> Piece:
    """Join an answer's next pieces into one."""
    whole = Piece(text="".join(piece.text for piece in pieces))
    for piece in pieces:
        if piece.version is not None:
            whole.version = piece.version
        if piece.last:
            whole.message, whole.failure = piece.message, piece.failure
            whole.finish_reason = piece.finish_reason
            whole.prompt_tokens, whole.sampled_tokens = piece.prompt_tokens, piece.sampled_tokens
    return whole
