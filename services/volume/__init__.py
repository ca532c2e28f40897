"""The data volume, also for hosts that do not mount it.

Names are relative paths (`runs/ID/weights/v000007-9f3a1c.safetensors`). A process with the volume
opens the file. A process without it fetches the file once from the gateway or from other hosts,
checks it, and caches it under the same relative path. Files on the volume never change after their
rename, so a cached file stays valid while its checksum is right.
"""

from contextlib import AbstractAsyncContextManager
from pathlib import Path, PurePosixPath

from services.contracts.weights import WeightFile
from services.runtime.api_key import authorization
from services.runtime.file_lock import file_lock
from services.runtime.logs import get_logger
from services.volume.download import (
    GatewayAway,
    KeyRefused,
    Peers,
    download_parts,
    download_whole,
)
from services.volume.files import (
    DATA_RESERVE,
    REDIS_RESERVE,
    DamagedFile,
    check_file,
    checked,
    checksum,
    fsync,
    opened_by_umask,
    weight_file,
    written_beside,
)
from services.volume.partial import partial_path, parts_path
from services.volume.transfer import FETCHING, FileSource

log = get_logger(__name__)


class Volume:
    """Files by relative name under `root`. Missing files come from the gateway and from `peers`."""

    def __init__(
        self,
        root: Path,
        gateway_url: str | None = None,
        api_key: str | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.root = root.absolute()
        self.gateway_url = gateway_url.rstrip("/") if gateway_url else None
        self.headers = authorization(api_key)
        """Headers of requests to the gateway."""
        self._peers = peers

    def path(self, name: str) -> Path:
        """Return the path of `name`. Raises ValueError for a name that leaves the volume."""
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise ValueError(f"{name!r} is not a path inside the data volume")
        return self.root / relative

    def dataset_lock(self) -> AbstractAsyncContextManager[None]:
        """Return a lock that all gateways of the volume share. Hold it while a dataset's record and
        its files change together."""
        return file_lock(self.path("datasets/.lock"))

    def has_run(self, run: str) -> bool:
        """Return whether this host has the data volume with this run. The gateway writes each run's
        record there, and serves it to no host."""
        return self.path(f"runs/{run}/record.json").exists()

    async def fetch(self, file: WeightFile | str) -> Path:
        """Return the path of a whole file, downloaded if it is missing here. The file is checked if
        size and checksum are given. One process of a host downloads a file; others wait for it.

        A damaged file is downloaded again: on a host without the volume it is a copy, and the
        gateway's file may be right. On a host with the volume the same file comes again.

        Raises FileNotFoundError if neither side has the file, DamagedFile for another size or
        checksum, GatewayAway after a few failed retries, and KeyRefused at once.
        """
        name = file if isinstance(file, str) else file.name
        path = self.path(name)
        try:
            return await self._here(path, file)
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
                return await self._here(path, file)
            except FileNotFoundError:
                pass
            except DamagedFile as error:
                damaged = error
                log.warning("a damaged file is fetched again", file=name, reason=str(error))
            try:
                gateway = FileSource(self.gateway_url, self.headers)
                if isinstance(file, str) or len(file.parts) < 2:
                    await download_whole(path, file, gateway)
                else:
                    await download_parts(path, file, gateway, self._peers)
            except (GatewayAway, FileNotFoundError):
                if damaged is not None:
                    raise damaged from None
                raise
            return path

    async def _here(self, path: Path, file: WeightFile | str) -> Path:
        """Return `path`, checked. Raises FileNotFoundError, DamagedFile."""
        if not path.exists():
            raise FileNotFoundError(path)
        if not isinstance(file, str):
            await checked(path, file.bytes, file.xxh3)
        return path
