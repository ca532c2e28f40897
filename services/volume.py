"""The data volume, also for hosts that do not mount it.

Names are relative paths (`runs/ID/weights/v000007-9f3a1c.safetensors`). A process with the volume
opens the file. One without fetches it once from the gateway, checks it, and caches it under the
same relative path. Files on the volume never change after their rename, so a cached file stays
valid while its checksum is right.
"""

import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import anyio.to_thread
import httpx
import xxhash
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from services.contracts.redis_address import redacted
from services.runtime.api_key import authorization
from services.runtime.file_lock import file_lock
from services.runtime.logs import get_logger

log = get_logger(__name__)

CHUNK = 1 << 22


class GatewayAway(ConnectionError):
    """The gateway cannot send a file now; trying again later may help."""


class KeyRefused(GatewayAway):
    """The gateway wants an API key, or another one: asking again helps when somebody has set it."""


class DamagedFile(ValueError):
    """A file's size or checksum is not what its manifest says."""


class Volume:
    """Files by relative name under `root`, with the gateway as the source of missing ones."""

    def __init__(
        self, root: Path, gateway_url: str | None = None, api_key: str | None = None
    ) -> None:
        self.root = root.absolute()
        self.gateway_url = gateway_url.rstrip("/") if gateway_url else None
        self._headers = authorization(api_key)

    def path(self, name: str) -> Path:
        """Where `name` lies. Raises ValueError for names that leave the volume."""
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise ValueError(f"{name!r} is not a path inside the data volume")
        return self.root / relative

    async def fetch(self, name: str, size: int | None = None, xxh3: str | None = None) -> Path:
        """The path of a whole file, downloaded where it is not here, checked where its size or
        checksum is given. One process of a host downloads a file; others wait for it.

        A damaged file is downloaded again: on a host without the volume it is a copy, and the
        gateway's may be right. On a host that has the volume that changes nothing, since the same
        file comes.

        Raises FileNotFoundError where neither has it, DamagedFile where it does not have that size
        or checksum, GatewayAway where the gateway does not answer: after a few tries, but
        KeyRefused at once.
        """
        path = self.path(name)
        try:
            return await self._here(path, size, xxh3)
        except FileNotFoundError:
            if self.gateway_url is None:
                raise FileNotFoundError(f"{name} is not on the data volume {self.root}") from None
        except DamagedFile:
            if self.gateway_url is None:
                raise
        async with file_lock(path.with_name(f".{path.name}.lock")):
            damaged: DamagedFile | None = None
            try:
                # Another process may have fetched it meanwhile.
                return await self._here(path, size, xxh3)
            except FileNotFoundError:
                pass
            except DamagedFile as error:
                damaged = error
                log.warning("a damaged file is fetched again", file=name, reason=str(error))
            try:
                await self._download(name, path, size, xxh3)
            except (GatewayAway, FileNotFoundError):
                if damaged is not None:
                    raise damaged from None
                raise
            return path

    async def _here(self, path: Path, size: int | None, xxh3: str | None) -> Path:
        """`path`, checked. Raises FileNotFoundError, DamagedFile."""
        if not path.exists():
            raise FileNotFoundError(path)
        await anyio.to_thread.run_sync(check_file, path, size, xxh3)
        return path

    async def _download(self, name: str, path: Path, size: int | None, xxh3: str | None) -> None:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(GatewayAway) & retry_if_not_exception_type(KeyRefused),
            stop=stop_after_attempt(6),
            wait=wait_random_exponential(multiplier=0.2, max=10),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt, written_beside(path) as beside:
                await self._stream_to(name, beside)
                await anyio.to_thread.run_sync(check_file, beside, size, xxh3, name)

    async def _stream_to(self, name: str, path: Path) -> None:
        url = f"{self.gateway_url}/v1/files/{name}"
        # Never the URL as it is, which httpx's own messages quote: it may hold a password.
        shown = redacted(self.gateway_url or "")
        try:
            async with (
                httpx.AsyncClient(timeout=60, headers=self._headers) as client,
                client.stream("GET", url) as response,
            ):
                if response.status_code == httpx.codes.NOT_FOUND:
                    raise FileNotFoundError(f"{name} does not exist at the gateway {shown}")
                if response.status_code == httpx.codes.UNAUTHORIZED:
                    raise KeyRefused(
                        f"the gateway {shown} wants an API key, or another one: set "
                        "HEADRACE_API_KEY on this host"
                    )
                if response.is_error:
                    status = f"{response.status_code} {response.reason_phrase}"
                    raise GatewayAway(f"the gateway {shown} answers {status} for {name}")
                chunks: AsyncIterator[bytes] = response.aiter_bytes(CHUNK)
                with path.open("wb") as file:
                    async for chunk in chunks:
                        file.write(chunk)
        except httpx.TransportError as error:
            what = type(error).__name__
            raise GatewayAway(f"the gateway {shown} does not give {name}: {what}") from None


def checksum(path: Path) -> str:
    """xxh3 (64 bit, hex) of a file, read in 4 MiB pieces."""
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def check_file(path: Path, size: int | None, xxh3: str | None, name: str = "") -> None:
    """Raise DamagedFile unless `path`, called `name` where it has not got it yet, has this size
    and checksum (None: not checked)."""
    name = name or path.name
    if size is not None and (found := path.stat().st_size) != size:
        raise DamagedFile(f"{name} has {found} bytes, its manifest says {size}")
    if xxh3 is not None and (digest := checksum(path)) != xxh3:
        raise DamagedFile(f"{name} has checksum {digest}, its manifest says {xxh3}")


def opened_by_umask(path: Path) -> None:
    """Give a file the mode of a new one of this process. mkstemp and safetensors make files for
    their own user alone, which is right in the data folder, and wrong for an exported model."""
    # The call `umask` can only read it by setting it.
    found = re.search(r"^Umask:\s*([0-7]+)$", Path("/proc/self/status").read_text(), re.M)
    path.chmod(0o666 & ~(int(found[1], 8) if found else 0o077))


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder that becomes `path` if the block succeeds.

    The file and its folder are fsynced, so after the rename the whole file exists, even after a
    power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    beside = Path(temporary)
    try:
        yield beside
        fsync(beside)
        opened_by_umask(beside)
        beside.rename(path)
        fsync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def fsync(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
