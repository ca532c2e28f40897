"""How long a worker waits for scores, with a small server that answers on a signal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from rollout.rewards.client import RewardClient
from services.contracts.scores import ScoreItem, ScoreResponse, ScoreResult, ScoreStatus

RESULT = ScoreResult(id="0", status=ScoreStatus.CORRECT, reward=1.0)
ITEM = ScoreItem(id="0", verifier="math", completion="1", answer="1")


@dataclass
class Server:
    """Answers `/healthz` while `alive`, and a scoring request once `scored`."""

    alive: bool = True
    scored: asyncio.Event = field(default_factory=asyncio.Event)
    looks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """One for each request to `/healthz`."""
    scorings: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._answer(head, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        body = b"{}"
        if head.startswith(b"GET /healthz"):
            self.looks.release()
            if not self.alive:
                await asyncio.Event().wait()
        else:
            (length,) = [
                int(line.partition(b":")[2])
                for line in head.lower().splitlines()
                if line.startswith(b"content-length:")
            ]
            await reader.readexactly(length)
            self.scorings += 1
            await self.scored.wait()
            body = ScoreResponse(results=[RESULT]).model_dump_json().encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


@asynccontextmanager
async def served(look_limit: float) -> AsyncIterator[tuple[Server, RewardClient]]:
    """The server, and a client that checks its health ten times a second."""
    made = Server()
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    client = RewardClient(
        f"http://{host}:{port}", longest_wait=0.01, look_seconds=0.1, look_limit=look_limit
    )
    yield made, client
    await client.close()
    listening.close()


async def test_a_slow_reward_service_is_waited_for() -> None:
    async with served(look_limit=60) as (made, client):
        scoring = asyncio.create_task(client.score([ITEM]))

        for _ in range(3):
            await made.looks.acquire()
        made.scored.set()

        assert await scoring == [RESULT]
    assert made.scorings == 1


async def test_a_hanging_reward_service_is_asked_again() -> None:
    async with served(look_limit=0.1) as (made, client):
        made.alive = False
        scoring = asyncio.create_task(client.score([ITEM]))

        for _ in range(2):
            await made.looks.acquire()
        made.scored.set()

        assert await scoring == [RESULT]
    assert made.scorings >= 2
