"""The worker's loop for calls of the policy as an endpoint.

It answers up to AT_ONCE calls at once, and stops calls whose client has gone. While no call comes,
Redis is asked once every WAIT_SECONDS.
"""

import asyncio
import contextlib
from http import HTTPStatus

import msgspec
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
    def __init__(self, context: RunContext, store: Store, queue: str | None = None) -> None:
        """`queue`: the name of the queue of calls; default: the worker's, for the run that it works
        on."""
        self._context, self._store = context, store
        self._queue = queue or context.worker
        self._answering = Answering(context)
        self._open: set[asyncio.Task[None]] = set()
        self.answered = 0
        """Answers since this worker took up the run."""
        self.tokens = 0
        """Tokens sampled for these answers."""

    def __len__(self) -> int:
        return len(self._open)

    async def until_idle(self, seconds: float) -> None:
        """Return when no call is open, at the latest after `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._open:
                    await asyncio.wait(self._open)

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
        taken = await calls.take(run, self._queue, WAIT_SECONDS)
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
                joined = by_choice(pieces) or [Piece()]
                pieces.clear()
                for piece in joined:
                    if not await self._store.policy_calls.say(self._context.run, id, piece):
                        return
                    last = piece.last
                    self.tokens += piece.sampled_tokens
                self.answered += last and joined[-1].failure is None
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


def by_choice(pieces: list[Piece]) -> list[Piece]:
    """Join the next pieces of each choice into one, in the order in which they end."""
    joined: dict[int, Piece] = {}
    for piece in pieces:
        whole = joined.pop(piece.choice, None) or Piece(choice=piece.choice)
        joined[piece.choice] = msgspec.structs.replace(
            piece,
            text=whole.text + piece.text,
            scores=[*whole.scores, *piece.scores],
            version=whole.version if piece.version is None else piece.version,
        )
    return list(joined.values())
