"""The messages between the service, the fork server and the workers, as msgpack and never as
pickle.

Worker sockets carry frames (`reward.frames`). The fork server's control socket is SOCK_SEQPACKET:
one message is one packet, and may carry a socket.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from reward.verifiers.base import Item, ItemWork, Verdict, Verifier, VerifierParams

MAX_CONTROL = 4096
MAX_FAILED = 8
"""The maximum number of unusable verifiers that are named: their reasons must fit into MAX_CONTROL.
"""
_INT64 = range(-(2**63), 2**63)
_ITEMS = msgspec.msgpack.Decoder(Item)


class WorkerJob(msgspec.Struct, array_like=True, frozen=True):
    ticket: int
    work: ItemWork
    item: msgspec.Raw
    """An `Item`, packed once by `pack_item` for all attempts to send it."""


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """A worker's verdict on the job of that ticket, and its duration in seconds."""

    ticket: int
    verdict: Verdict
    seconds: float


class SpawnWorker(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To the fork server: fork a worker on the socket that comes with this message."""

    worker: int


class Reap(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To the fork server: that worker is dead or dying; collect its exit status."""

    worker: int
    pid: int


class Warm(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From the fork server: verifiers are imported, workers can be forked."""

    failed: dict[str, str] = {}
    """Unusable verifiers, and the reasons."""


class Spawned(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From the fork server: the worker's process id, or why the fork failed (pid 0)."""

    worker: int
    pid: int
    problem: str = ""


class Reaped(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From the fork server: how the worker ended, as waitpid(2) has it."""

    worker: int
    status: int


Order = SpawnWorker | Reap
Report = Warm | Spawned | Reaped


def pack_item(item: Item) -> msgspec.Raw:
    """Pack `item` for the jobs of a worker.

    Raises ValueError for text that is invalid Unicode (half of a surrogate pair). Integers over 64
    bits, for which msgpack has no type, travel as text.
    """
    try:
        return msgspec.Raw(msgspec.msgpack.encode(item))
    except OverflowError:
        portable = msgspec.structs.replace(
            item,
            prompt=_portable(item.prompt),
            answer=_portable(item.answer),
            params=_portable(item.params),
            columns=_portable(item.columns),
        )
        return msgspec.Raw(msgspec.msgpack.encode(portable))


def unpack_item(body: msgspec.Raw) -> Item:
    return _ITEMS.decode(body)


def _portable(value: Any) -> Any:
    if isinstance(value, int) and value not in _INT64:
        return str(value)
    if isinstance(value, list):
        return [_portable(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _portable(inner) for key, inner in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class Request:
    """One item, packed for its worker: to score it, or to check its reference alone."""

    verifier: str
    item: msgspec.Raw
    timeout: float
    on_timeout: float | None
    slow: bool
    work: ItemWork = ItemWork.SCORE


def check_for(item: Item, seconds: float) -> Request:
    """Return the check of `item`'s reference, with a deadline in seconds. Its verdict is an `error`
    if the reference cannot be used. Raises ValueError as `request_for` does."""
    return Request(item.verifier, pack_item(item), seconds, None, False, ItemWork.REFERENCE)


def request_for(item: Item, params: VerifierParams, verifier: Verifier[Any]) -> Request:
    """Return `item` as the pool takes it. Raises ValueError if it cannot be sent (see
    `pack_item`)."""
    deadline = verifier.deadline(params)
    return Request(item.verifier, pack_item(item), deadline, params.on_timeout, verifier.slow)
