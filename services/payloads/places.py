"""Places of large payloads: the data volume, or a store of objects (`objects.py`)."""

import contextlib
import errno
import os
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread
import httpx

from services.volume import DATA_RESERVE, GatewayAway, Volume, written_beside

T = TypeVar("T")

PIECE = 1 << 20
"""Bytes that an upload sends at a time."""
TRIES = 6
"""Attempts at a request to the gateway that fails temporarily."""
SECONDS = 60.0
"""Timeout without a byte."""

PlaceAway = GatewayAway


class PayloadPlace(Protocol):
    """Files by name (`services.contracts.groups.payload`). A file is there whole, or not at all."""

    async def write(self, name: str, data: bytes | memoryview) -> None:
        """Make a file durable. Writing it again does no harm. Raises OSError if the place is full,
        and PlaceAway."""

    async def read(self, name: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError, OSError, PlaceAway."""

    async def runs(self) -> list[str]:
        """Return all runs that have files, and possibly others."""

    async def names(self, run: str) -> list[str]:
        """Return the files of a run, including half-written files, whose names begin with a dot."""

    async def delete(self, names: Collection[str]) -> None:
        """Delete files that exist and that this host can delete."""

    def free_bytes(self) -> int | None:
        """Return the free bytes, or None for an unbounded place."""


class Files:
    """The `PayloadPlace` of the data volume. A host without the volume writes and reads through the
    gateway."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume

    async def write(self, name: str, data: bytes | memoryview) -> None:
        """Write a file on the volume with fsync, or through the gateway."""
        if self._shared(name):
            await anyio.to_thread.run_sync(write_file, self._volume.root, name, data)
        else:
            await self._tried(lambda client: _put(client, name, data))

    async def read(self, name: str) -> bytes:
        """Read a file from the volume, or from the gateway."""
        if self._shared(name):
            return await anyio.to_thread.run_sync(self._volume.path(name).read_bytes)
        return await self._tried(lambda client: _get(client, name))

    async def runs(self) -> list[str]:
        return await anyio.to_thread.run_sync(
            lambda: [path.parent.name for path in self._volume.root.glob("runs/[!.]*/payloads")]
        )

    async def names(self, run: str) -> list[str]:
        folder = f"runs/{run}/payloads"
        try:
            names = await anyio.to_thread.run_sync(os.listdir, self._volume.path(folder))
        except FileNotFoundError:
            return []
        return [f"{folder}/{name}" for name in names]

    async def delete(self, names: Collection[str]) -> None:
        """Delete files on the volume. The gateway deletes what a host without the volume has
        uploaded."""

        def unlink() -> None:
            for name in names:
                self._volume.path(name).unlink(missing_ok=True)

        await anyio.to_thread.run_sync(unlink)

    def free_bytes(self) -> int:
        """Return the free bytes of this host's disk, without the reserve for Redis."""
        return free_bytes_of(self._volume.root)

    def _shared(self, name: str) -> bool:
        """Return whether this host has the volume of a payload."""
        return self._volume.has_run(self._volume.path(name).parents[1].name)

    async def _tried(self, call: Callable[[httpx.AsyncClient], Awaitable[T]]) -> T:
        """Return the result of a request to the gateway, with retries."""
        gateway, headers = self._volume.gateway_url, self._volume.headers
        if gateway is None:
            raise PlaceAway("this host has neither the data volume nor a gateway")
        async with httpx.AsyncClient(base_url=gateway, headers=headers, timeout=SECONDS) as client:
            failures = 0
            while True:
                try:
                    return await call(client)
                except httpx.TransportError as error:
                    failures += 1
                    if failures >= TRIES:
                        raise PlaceAway(f"the gateway cannot be reached: {error!r}") from error
                await anyio.sleep(random.uniform(0, min(10.0, 0.2 * 2**failures)))


def write_file(root: Path, name: str, data: bytes | memoryview) -> None:
    """Write `data` durably as the file `name` of the volume `root`. Raises OSError."""
    require_space(root, len(data))
    with written_beside(root / name) as beside:
        beside.write_bytes(data)


def require_space(root: Path, size: int) -> None:
    """Raise OSError unless the volume has `size` free bytes besides the reserve for Redis."""
    if free_bytes_of(root) < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(root))


def free_bytes_of(root: Path) -> int:
    """Return the free bytes of the volume, without the reserve for Redis."""
    return shutil.disk_usage(root).free - DATA_RESERVE


async def _put(client: httpx.AsyncClient, name: str, data: bytes | memoryview) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), PIECE):
            yield bytes(data[start : start + PIECE])

    headers = {"content-length": str(len(data)), "content-type": "application/octet-stream"}
    response = await client.put(f"/v1/files/{name}", content=pieces(), headers=headers)
    if response.status_code == httpx.codes.INSUFFICIENT_STORAGE:
        raise OSError(errno.ENOSPC, _detail(response))
    if not response.is_success:
        raise PlaceAway(f"the gateway does not take {name}: {_detail(response)}")


async def _get(client: httpx.AsyncClient, name: str) -> bytes:
    response = await client.get(f"/v1/files/{name}")
    if response.status_code == httpx.codes.NOT_FOUND:
        raise FileNotFoundError(_detail(response))
    if not response.is_success:
        raise PlaceAway(f"the gateway does not send {name}: {_detail(response)}")
    return response.content


def _detail(response: httpx.Response) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(response.json()["detail"])
    return f"HTTP {response.status_code}"
