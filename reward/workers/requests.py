"""Items on their way to the pool, packed for a worker."""

from dataclasses import dataclass
from typing import Any

import msgspec

from reward.verifiers.base import Item, ItemWork, Verifier, VerifierParams
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
