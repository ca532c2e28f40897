"""The pool of remote verifiers: scores a limited number of items at once, each with its own
deadline.

Remote verifiers wait for other services and compute nothing. A deadline therefore cancels a
coroutine instead of killing a process. A failure is an `error`, without reward.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reward.errors import brief
from reward.metrics import Metrics
from reward.verifiers.base import (
    BadReferenceError,
    Item,
    ItemParams,
    ItemWork,
    RemoteVerifier,
    Verdict,
    broken,
    checked,
)
from reward.workers.pool import PoolClosedError, QueueFullError
from services.contracts.scores import ScoreStatus
from services.runtime.logs import get_logger

log = get_logger(__name__)

RETRY_AFTER = 2
"""Seconds after which a client retries when the queue was full."""


@dataclass(frozen=True, slots=True)
class RemoteCall:
    verifier: RemoteVerifier[Any]
    item: Item
    params: ItemParams
    work: ItemWork = ItemWork.SCORE


class Calls:
    """The calls in flight and in the queue. Belongs to one event loop."""

    def __init__(
        self,
        verifiers: Iterable[RemoteVerifier[Any]],
        *,
        at_once: int,
        capacity: int,
        metrics: Metrics,
    ) -> None:
        self.capacity = capacity
        self._verifiers = list(verifiers)
        # A limit for each verifier: a slow judge does not delay a reward model.
        self._turns = {verifier.name: asyncio.Semaphore(at_once) for verifier in self._verifiers}
        self._metrics = metrics
        self._running: set[asyncio.Task[Verdict]] = set()
        self._closing = False

    @property
    def ready(self) -> bool:
        """Tell whether every verifier can be asked."""
        return all(verifier.ready for verifier in self._verifiers)

    @property
    def loading(self) -> str:
        """Describe what a verifier still loads. Return an empty string if nothing is loading."""
        return next(filter(None, (verifier.loading for verifier in self._verifiers)), "")

    @property
    def outstanding(self) -> int:
        return len(self._running)

    async def open(self) -> None:
        """Open the verifiers. Raises their errors."""
        for verifier in self._verifiers:
            await verifier.open()

    async def close(self) -> None:
        """Close the verifiers. Callers that still wait for verdicts get PoolClosedError first."""
        if self._closing:
            return
        self._closing = True
        for task in self._running:
            task.cancel()
        for verifier in self._verifiers:
            await verifier.close()

    def admit(self, count: int) -> None:
        """Raise QueueFullError or PoolClosedError unless `count` items could be taken now."""
        if self._closing:
            raise PoolClosedError("the service is ending")
        if self.outstanding + count > self.capacity:
            raise QueueFullError(count, self.outstanding, self.capacity, RETRY_AFTER)

    async def score(self, calls: Sequence[RemoteCall]) -> list[Verdict]:
        """Return the verdicts on `calls`, in their order. Raises QueueFullError,
        PoolClosedError."""
        self.admit(len(calls))
        tasks = [
            asyncio.create_task(
                _reference_verdict(call)
                if call.work is ItemWork.REFERENCE
                else self._verdict(call)
                if call.work is ItemWork.SCORE
                else self._output(call)
            )
            for call in calls
        ]
        self._running.update(tasks)
        for task in tasks:
            task.add_done_callback(self._running.discard)
        try:
            return list(await asyncio.gather(*tasks))
        except asyncio.CancelledError:
            if self._closing:
                raise PoolClosedError("the service ended before the verdict") from None
            raise

    async def _verdict(self, call: RemoteCall) -> Verdict:
        name = call.verifier.name
        async with self._turns[name]:
            began = time.perf_counter()
            try:
                async with asyncio.timeout(call.verifier.deadline(call.params)):
                    verdict = checked(name, await call.verifier.score(call.item, call.params))
            except TimeoutError:
                verdict = broken(f"no result after {call.params.timeout:g} s")
            except Exception as error:
                verdict = broken(f"verifier {name!r} broke: {brief(error)}")
            self._metrics.seconds.labels(name).observe(time.perf_counter() - began)
        self._metrics.items.labels(name, str(verdict.status)).inc()
        return verdict

    async def _output(self, call: RemoteCall) -> Verdict:
        async with self._turns[call.verifier.name]:
            try:
                output = await call.verifier.output(call.item, call.params)
            except Exception as error:
                return broken(f"the program was not run: {brief(error)}")
        return Verdict(ScoreStatus.SCORED, 0.0, output)


async def _reference_verdict(call: RemoteCall) -> Verdict:
    """Return an `error` if the reference cannot be used. An unreachable service proves nothing
    about the reference."""
    try:
        await call.verifier.check_reference(call.item, call.params)
    except BadReferenceError as error:
        return broken(str(error))
    except Exception as error:
        log.warning(
            "a reference was not checked", verifier=call.verifier.name, problem=brief(error)
        )
    return Verdict(ScoreStatus.SCORED, 0.0)
