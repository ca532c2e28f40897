"""How the service, the nursery and the workers talk: msgpack messages, never pickle.

Worker sockets are streams of frames (4-byte little-endian length, then one msgpack value). The
nursery's control socket is SOCK_SEQPACKET: there one message is one packet, and may carry a socket.
"""

import socket
from enum import StrEnum
from typing import Any

import msgspec

from reward.verifiers.base import Item, Verdict

HEADER = 4
MAX_CONTROL = 4096
_INT64 = range(-(2**63), 2**63)
_ITEMS = msgspec.msgpack.Decoder(Item)


class Step(StrEnum):
    """What a worker is to do with an item."""

    SCORE = "score"
    REFERENCE = "reference"
    """Check the reference answer alone, to find out whether it is to blame."""


class Job(msgspec.Struct, array_like=True, frozen=True):
    """One item on its way to a worker."""

    ticket: int
    step: Step
    item: msgspec.Raw
    """An `Item`, packed once by `pack_item`, however often it is sent."""


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """A worker's verdict on the job of that ticket, and the seconds that it took."""

    ticket: int
    verdict: Verdict
    seconds: float


class Spawn(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To the nursery: fork a worker on the socket that comes with this message."""

    worker: int


class Reap(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """To the nursery: that worker is dead or dying; collect its exit status."""

    worker: int
    pid: int


class Warm(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From the nursery: all verifiers are imported, workers can be forked."""


class Spawned(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From the nursery: the worker's process id, or why it could not be forked (pid 0)."""

    worker: int
    pid: int
    problem: str = ""


class Reaped(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """From the nursery: how the worker ended, as waitpid(2) has it."""

    worker: int
    status: int


Order = Spawn | Reap
Report = Warm | Spawned | Reaped


def pack_item(item: Item) -> msgspec.Raw:
    """`item` as a worker's jobs carry it. Raises ValueError for text that is no Unicode (half of a
    surrogate pair). Integers over 64 bits, for which msgpack has no place, travel as text."""
    try:
        return msgspec.Raw(msgspec.msgpack.encode(item))
    except OverflowError:
        portable = Item(
            item.verifier,
            _portable(item.prompt),
            item.completion,
            _portable(item.answer),
            _portable(item.params),
        )
        return msgspec.Raw(msgspec.msgpack.encode(portable))


def unpack_item(body: msgspec.Raw) -> Item:
    """The inverse of `pack_item`."""
    return _ITEMS.decode(body)


def pack(value: object) -> bytes:
    """`value` as one frame."""
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(HEADER, "little") + body


def _portable(value: Any) -> Any:
    if isinstance(value, int) and value not in _INT64:
        return str(value)
    if isinstance(value, list):
        return [_portable(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _portable(inner) for key, inner in value.items()}
    return value


class Unpacker:
    """Cuts a stream of bytes back into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies of all frames that `data` completes."""
        self._buffer += data
        bodies = []
        start = 0
        while len(self._buffer) - start >= HEADER:
            end = start + HEADER + int.from_bytes(self._buffer[start : start + HEADER], "little")
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start + HEADER : end]))
            start = end
        if start:
            del self._buffer[:start]
        return bodies


def receive(connection: socket.socket) -> bytes | None:
    """The next frame's body from a blocking socket; None when the other side has closed it."""
    header = _exactly(connection, HEADER)
    if header is None:
        return None
    return _exactly(connection, int.from_bytes(header, "little"))


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(1 << 20, size - len(parts)))
        if not part:
            return None
        parts += part
    return bytes(parts)
