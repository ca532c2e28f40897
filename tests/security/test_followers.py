"""Many followers of a run's events: one reader serves them, and nobody waits for the slowest."""

import asyncio
import socket
from pathlib import Path

import httpx

from services.gateway.event_followers import PIECE
from services.store import Store
from tests.integration.gateway.servers import GatewayProcess, RedisServer
from tests.integration.store.scene import record

FOLLOWERS = 300
"""Far more than the gateway's connections to Redis."""


async def queued(store: Store, run: str) -> None:
    await store.runs.submit(record(run, pool=run))
    await store.events.add(run, "warning", {"message": "first"})


class Follower:
    """A client on a socket of its own."""

    def __init__(self, gateway: GatewayProcess, run: str, after: str = "0") -> None:
        self.path = f"/v1/runs/{run}/events"
        self.host, self.port = "127.0.0.1", int(gateway.url.rpartition(":")[2])
        self.after = after
        self.key = gateway.headers["Authorization"]
        self.text = ""

    async def connect(self) -> "Follower":
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        head = f"GET {self.path} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {self.after}"
        head += f"\r\nAuthorization: {self.key}"
        self.writer.write(f"{head}\r\n\r\n".encode())
        return self

    async def until(self, text: str) -> str:
        """Everything that has come, as soon as `text` is in it."""
        async with asyncio.timeout(100):
            while text not in self.text:
                got = await self.reader.read(1 << 16)
                assert got, "the gateway ended the stream"
                self.text += got.decode()
        return self.text


async def test_many_followers_leave_the_api_free_and_get_every_event(
    gateway: GatewayProcess, redis_server: RedisServer
) -> None:
    store = Store.from_url(redis_server.url)
    await queued(store, "many")
    followers = [await Follower(gateway, "many").connect() for _ in range(FOLLOWERS)]
    try:
        for text in await asyncio.gather(*(follower.until("first") for follower in followers)):
            assert text.startswith("HTTP/1.1 200")
        async with httpx.AsyncClient(
            base_url=gateway.url, headers=gateway.headers, timeout=30
        ) as api:
            answers = await asyncio.gather(*(api.get("/v1/runs") for _ in range(150)))
        assert {answer.status_code for answer in answers} == {200}

        await store.events.add("many", "warning", {"message": "second"})
        await asyncio.gather(*(follower.until("second") for follower in followers))
        assert all(follower.text.count("event: warning") == 2 for follower in followers)

        await store.runs.cancel("many")
        for text in await asyncio.gather(*(follower.until("0\r\n\r\n") for follower in followers)):
            assert '"cancelled"' in text, "the last event comes before the end"
    finally:
        for follower in followers:
            follower.writer.close()
        await store.close()


async def test_a_follower_begins_after_the_event_it_names_however_long_ago(
    gateway: GatewayProcess, redis_server: RedisServer
) -> None:
    store = Store.from_url(redis_server.url)
    await queued(store, "long")
    for _ in range(PIECE // 5):
        adding = (store.events.add("long", "warning", {"message": "m"}) for _ in range(20))
        await asyncio.gather(*adding)
    events = await store.events.read("long", "0", count=5 * PIECE)
    first = await Follower(gateway, "long").connect()
    # While another is live already.
    await first.until(f'"id":"{events[-1].id}"')
    try:
        for start in (3, PIECE, len(events) - 2):
            follower = await Follower(gateway, "long", events[start].id).connect()
            text = await follower.until(f'"id":"{events[-1].id}"')
            ids = [line[4:] for line in text.splitlines() if line.startswith("id: ")]
            assert ids == [event.id for event in events[start + 1 :]]
            follower.writer.close()
    finally:
        first.writer.close()
        await store.close()


async def test_many_runs_may_be_followed_at_once(
    gateway: GatewayProcess, redis_server: RedisServer
) -> None:
    store = Store.from_url(redis_server.url)
    runs = [f"wide{n}" for n in range(120)]
    for run in runs:
        await queued(store, run)
    followers = [await Follower(gateway, run).connect() for run in runs]
    try:
        await asyncio.gather(*(follower.until("first") for follower in followers))
        async with httpx.AsyncClient(
            base_url=gateway.url, headers=gateway.headers, timeout=30
        ) as api:
            assert (await api.get("/v1/runs")).status_code == 200
        for run in runs:
            await store.runs.cancel(run)
        await asyncio.gather(*(follower.until('"cancelled"') for follower in followers))
    finally:
        for follower in followers:
            follower.writer.close()
        await store.close()


async def test_an_idle_follower_does_not_delay_the_others(
    gateway: GatewayProcess, redis_server: RedisServer, tmp_path: Path
) -> None:
    store = Store.from_url(redis_server.url)
    await queued(store, "slow")
    port = int(gateway.url.rpartition(":")[2])
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", port))
        head = "GET /v1/runs/slow/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: "
        silent.send(f"{head}{gateway.headers['Authorization']}\r\n\r\n".encode())
        quick = await Follower(gateway, "slow").connect()
        await quick.until("first")
        message = "x" * 10_000
        for n in range(500):
            await store.events.add("slow", "warning", {"message": f"{n}:{message}"})
        await quick.until("499:")
        quick.writer.close()
    await store.close()
