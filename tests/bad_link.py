"""A network that delays, cuts and stalls: a TCP proxy in front of a server. (Linux' netem needs a
kernel module that few machines of tests have.)"""

import asyncio
import random
import threading
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

DELAY = 0.02
"""Seconds that each piece of a stream is late."""
CUT, STALL = 0.004, 0.002
"""Shares of the pieces at which a connection is cut, and stands still."""
STALL_SECONDS = 8.0


class BadLink:
    """Passes connections on to the server of a Redis URL. `url` leads through it."""

    def __init__(self, redis_url: str, seed: int) -> None:
        parts = urlsplit(redis_url)
        self._to = parts
        self._chance = random.Random(seed)
        self.cuts = self.stalls = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        serving = asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result()
        port = self._server.sockets[0].getsockname()[1]
        database = parse_qs(parts.query).get("db", [parts.path.strip("/") or "0"])[0]
        user, at, _ = parts.netloc.rpartition("@")
        self.url = f"redis://{user}{at}127.0.0.1:{port}/{database if database.isdigit() else 0}"

    def close(self) -> None:
        """Cut everything."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._to.scheme == "unix":
            there = await asyncio.open_unix_connection(self._to.path)
        else:
            there = await asyncio.open_connection(self._to.hostname, self._to.port)
        sides = (self._stream(reader, there[1]), self._stream(there[0], writer))
        await asyncio.wait(
            [asyncio.create_task(side) for side in sides], return_when="FIRST_COMPLETED"
        )
        for end in (writer, there[1]):
            end.transport.abort()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, until it is cut: after half a piece, so that a command is half sent, or is
        carried out and its reply is lost."""
        with suppress(OSError):
            while piece := await reader.read(1 << 16):
                await asyncio.sleep(DELAY)
                happens = self._chance.random()
                if happens < CUT:
                    self.cuts += 1
                    writer.write(piece[: len(piece) // 2])
                    await writer.drain()
                    return
                if happens < CUT + STALL:
                    self.stalls += 1
                    await asyncio.sleep(STALL_SECONDS)
                writer.write(piece)
                await writer.drain()
