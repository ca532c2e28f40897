"""Part `loopback` of `bench.push`: workers of some hosts fetch versions from the gateway and from
each other, by real HTTP servers and heartbeats in a real Redis. Bytes are counted."""

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from bench.fleet.control_plane import durable_redis
from bench.simulated.versions import Bits, step, weights, write_delta, write_full
from rollout.file_server import FileServer, other_hosts, serve
from rollout.settings import RolloutSettings
from services.contracts.records import WorkerRecord
from services.contracts.weights import WeightFile
from services.http import Bandwidth
from services.runtime.api_key import key_for_peers
from services.runtime.tasks import end
from services.store import Store
from services.volume import Volume, weight_file
from services.weights import DeltaReader, WholeVersion

HOSTS, WORKERS = 8, 56
KEY = "hr-bench"


class Host:
    """A host, or the gateway, with a folder and a real server of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = ""
        self.sent = 0
        self._files = FileServer(root, Bandwidth(None))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, counted."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 300:
                self.sent += int(Headers(raw=message["headers"])["content-length"])
            await send(message)

        await self._files(scope, receive, counted)

    async def listen(self, stack: AsyncExitStack, key: str) -> None:
        """Serve to those who show `key` until `stack` ends."""
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.url = "http://{}:{}".format(*listener.getsockname())
        serving = asyncio.create_task(serve(self, key, listener))
        stack.push_async_callback(end, [serving])


async def loopback(count: int, versions: int, share: float, folder: Path) -> dict[str, Any]:
    """Publish some versions; all workers of all hosts fetch each, and one host comes last."""
    sent: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        url = stack.enter_context(durable_redis(_made(folder / "redis")))
        store = Store.from_url(url)
        stack.push_async_callback(store.close)
        gateway = Host(folder / "gateway")
        await gateway.listen(stack, KEY)
        hosts = [Host(folder / f"host-{n}") for n in range(HOSTS)]
        workers: list[tuple[Host, Volume]] = []
        for host in hosts:
            await host.listen(stack, key_for_peers(KEY) or "")
            settings = RolloutSettings(
                redis_url=SecretStr(url), data=host.root, peer_url=host.url, api_key=SecretStr(KEY)
            )
            for _ in range(WORKERS // HOSTS):
                peers = other_hosts(settings, store)
                workers.append((host, Volume(host.root, gateway.url, KEY, peers)))
        now = weights(count, 0)
        files = [_published(gateway, 0, lambda path: write_full(path, now))]
        for version in range(versions + 1):
            if version:
                before, now = now, step(now, share, version)
                files.append(
                    _published(gateway, version, lambda p: write_delta(p, before, now, version))  # noqa: B023
                )
            await _announce(store, hosts, files)
            await asyncio.gather(*(volume.fetch(files[-1]) for _, volume in workers))
            kind = "delta" if version else "full"
            sent[f"{kind}_bytes"] += files[-1].bytes
            sent[f"{kind}_gateway"] += gateway.sent
            sent[f"{kind}_hosts"] += sum(host.sent for host in hosts)
            sent[f"{kind}_busiest_host"] += max(host.sent for host in hosts)
            for host in (gateway, *hosts):
                host.sent = 0
        for host in hosts:
            _require_equal(host.root, files, now)
        settings = RolloutSettings(data=folder / "late", api_key=SecretStr(KEY))
        joiner = Volume(folder / "late", gateway.url, KEY, other_hosts(settings, store))
        for file in files:
            await joiner.fetch(file)
        _require_equal(folder / "late", files, now)
        sent["late_bytes"] = sum(file.bytes for file in files)
        sent["late_gateway"] = gateway.sent
    return dict(sent)


def _published(gateway: Host, version: int, write: Callable[[Path], Any]) -> WeightFile:
    name = f"runs/bench/weights/v{version:06d}-aa.safetensors"
    path = gateway.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path)
    return weight_file(path, name)


async def _announce(store: Store, hosts: Sequence[Host], files: Sequence[WeightFile]) -> None:
    for host in hosts:
        record = WorkerRecord(
            id=host.root.name,
            pool="default",
            host=host.root.name,
            pid=os.getpid(),
            state="updating",
            peer_url=host.url,
            files=[file.name for file in files],
        )
        await store.workers.heartbeat(record)


def _require_equal(root: Path, files: Sequence[WeightFile], wanted: Mapping[str, Bits]) -> None:
    """Raise RuntimeError unless the files in `root` lead to exactly these weights."""
    anchor, *deltas = (root / file.name for file in files)
    with ExitStack() as stack:
        whole = WholeVersion(anchor, [stack.enter_context(DeltaReader(path)) for path in deltas])
        for name, bits in wanted.items():
            if not np.array_equal(whole.tensor(name).reshape(-1), bits):
                raise RuntimeError(f"{name} differs in {root}")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
