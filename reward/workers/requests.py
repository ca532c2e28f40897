"""Items on their way through the pool, packed for a worker, and the batch of one HTTP request."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from reward.verifiers.base import Item, ItemWork, Verdict, Verifier, VerifierParams
from reward.workers.actions import ItemTask
from reward.workers.protocol import pack_item


@dataclass(frozen=True, slots=True)
class Request:
    """One item, packed for its worker: to score it, or to check its reference alone."""

    verifier: str
    item: msgspec.Raw
    timeout: float
    on_timeout: float | None
    slow: bool
    step: ItemWork = ItemWork.SCORE


def check_for(item: Item, seconds: float) -> Request:
    """Return the check of `item`'s reference, with a deadline in seconds. Its verdict is an `error`
    if the reference cannot be used. Raises ValueError as `request_for` does."""
    return Request(item.verifier, pack_item(item), seconds, None, False, ItemWork.REFERENCE)


def request_for(item: Item, params: VerifierParams, verifier: Verifier[Any]) -> Request:
    """Return `item` as the pool takes it. Raises ValueError if it cannot be sent (see
    `pack_item`)."""
    deadline = verifier.deadline(params)
    return Request(item.verifier, pack_item(item), deadline, params.on_timeout, verifier.slow)


def task_of(ticket: int, request: Request) -> ItemTask:
    """Return `request` as the scheduler takes it."""
    return ItemTask(ticket, request.timeout, request.on_timeout, request.step, request.slow)


class ItemBatch:
    """The items of one HTTP request; `done` resolves when each has its verdict."""

    def __init__(self, items: Sequence[Request]) -> None:
        self.items = items
        self.verdicts: dict[int, Verdict] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, index: int, verdict: Verdict) -> None:
        """Store one verdict. The request may have been cancelled meanwhile."""
        self.verdicts[index] = verdict
        if len(self.verdicts) == len(self.items) and not self.done.done():
            self.done.set_result(None)
