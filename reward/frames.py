"""Frames on a stream socket: 4 bytes of little-endian length, then one msgpack value; no pickle."""

import socket

import msgspec

HEADER = 4


def pack(value: object) -> bytes:
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(HEADER, "little") + body


class Unpacker:
    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies of all frames that `data` completes."""
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
    """Return the body of the next frame of a blocking socket. Return None if the peer has closed
    it."""
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
