"""Datasets of the hub: its files are fetched by name, and become a dataset like uploaded ones.

Only Parquet, JSON and CSV are read; code of a repository is never fetched. The commit is recorded
in the dataset's `source`.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import quote

import anyio
import anyio.to_thread
import httpx

from services.datasets import DatasetError, SourceFile
from services.datasets.hub_files import HubFile, HubReference, HubSplit, choose_split
from services.gateway.dependencies import Dependencies
from services.gateway.submission.hub_check import ENDPOINT, TRUE, UNKNOWN
from services.http import Problem
from services.payloads.places import require_space
from services.runtime.logs import get_logger

CONVERTED = "refs/convert/parquet"
"""The branch in which the hub keeps each dataset as Parquet."""
ANSWER_SECONDS = 30.0
ATTEMPTS = 5
"""Connections for one file. Each goes on after the last byte that has arrived."""

log = get_logger(__name__)


class Hub:
    """The hub, as the variables of its own library name it."""

    def __init__(
        self, http: httpx.AsyncClient, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._http = http
        self._endpoint = environment.get("HF_ENDPOINT", ENDPOINT).rstrip("/")
        token = environment.get("HF_TOKEN", "").strip()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._is_offline = environment.get("HF_HUB_OFFLINE", "").lower() in TRUE

    async def split(self, reference: HubReference) -> tuple[str, HubSplit]:
        """Return the commit, and the files of the split that is meant. Raises DatasetError, and
        Problem 424 if the hub cannot be asked."""
        if self._is_offline:
            raise DatasetError(
                f"{reference.name}: HF_HUB_OFFLINE is set for the gateway: unset it, or upload the "
                "files"
            )
        for revision in [reference.revision] if reference.revision else [CONVERTED, "main"]:
            listed = await self._listed(reference.name, revision)
            if listed is not None:
                files = [_file(each) for each in listed.get("siblings", [])]
                return str(listed["sha"]), choose_split(reference, files)
        at = f" at revision {reference.revision!r}" if reference.revision else ""
        raise DatasetError(
            f"the hub has no dataset {reference.name!r}{at}, or keeps it closed: check the "
            "spelling (org/name), or give the gateway HF_TOKEN for a closed one"
        )

    async def _listed(self, name: str, revision: str) -> dict[str, Any] | None:
        """Return what the hub says of a revision, or None if it is not there."""
        url = f"{self._endpoint}/api/datasets/{name}/revision/{quote(revision, safe='')}?blobs=true"
        try:
            response = await self._http.get(
                url, headers=self._headers, timeout=ANSWER_SECONDS, follow_redirects=True
            )
            if response.status_code in UNKNOWN:
                return None
            response.raise_for_status()
            listed: Any = response.json()
            if not isinstance(listed, dict) or not isinstance(listed.get("sha"), str):
                raise ValueError("its answer is no list of files")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise _away(name, error) from None
        return listed

    async def fetch(self, name: str, revision: str, file: HubFile, target: BinaryIO) -> None:
        """Write a file to `target`. Raises DatasetError if it differs from what the hub listed, and
        Problem 424 if the hub is away."""
        url = f"{self._endpoint}/datasets/{name}/resolve/{revision}/{quote(file.path)}"
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._append(url, target, file)
                break
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                is_refused = isinstance(error, httpx.HTTPStatusError) and (
                    error.response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR
                )
                if attempt == ATTEMPTS or is_refused:
                    raise _away(f"{name}/{file.path}", error) from None
                await anyio.sleep(min(8.0, 0.25 * 2**attempt))
        await anyio.to_thread.run_sync(_check, file, target)

    async def _append(self, url: str, target: BinaryIO, file: HubFile) -> None:
        """Write the bytes that `target` does not have yet."""
        start = target.seek(0, os.SEEK_END)
        headers = self._headers | ({"Range": f"bytes={start}-"} if start else {})
        async with self._http.stream(
            "GET", url, headers=headers, timeout=ANSWER_SECONDS, follow_redirects=True
        ) as response:
            response.raise_for_status()
            if start and response.status_code != HTTPStatus.PARTIAL_CONTENT:
                target.seek(0)
                target.truncate()
            async for piece in response.aiter_bytes(1 << 16):
                await anyio.to_thread.run_sync(target.write, piece)
                if file.size is not None and target.tell() > file.size:
                    return


async def fetch_split(
    deps: Dependencies, reference: HubReference
) -> tuple[str, list[SourceFile], list[str]]:
    """Fetch the files of a split. Return its full name, with the commit, the open files, and notes.
    The files have no name on the disk. Raises DatasetError, OSError and Problem."""
    hub = Hub(deps.http)
    revision, split = await hub.split(reference)
    size = sum(file.size or 0 for file in split.files)
    limit = deps.settings.upload_limit
    if size > limit:
        raise Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"split {split.split!r} of {reference.name} has {size:,} bytes, and an upload may have "
            f"{limit:,}: raise the gateway's HEADRACE_UPLOAD_LIMIT",
        )
    folder = deps.volume.path("datasets")
    await anyio.to_thread.run_sync(lambda: folder.mkdir(parents=True, exist_ok=True))
    await anyio.to_thread.run_sync(require_space, deps.volume.root, size)
    files: list[SourceFile] = []
    try:
        for file in split.files:
            target = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            files.append(SourceFile(target, PurePosixPath(file.path).name))
            await hub.fetch(reference.name, revision, file, target)
    except BaseException:
        for source in files:
            source.file.close()
        raise
    log.info("fetched from the hub", name=reference.name, revision=revision, bytes=size)
    return reference.at(revision, split.config, split.split), files, split.notes


def _file(listed: Mapping[str, Any]) -> HubFile:
    lfs = listed.get("lfs") or {}
    return HubFile(str(listed["rfilename"]), listed.get("size"), lfs.get("sha256"))


def _check(file: HubFile, target: BinaryIO) -> None:
    """Raise DatasetError if a file differs from what the hub listed."""
    target.flush()
    is_right = file.size is None or target.seek(0, os.SEEK_END) == file.size
    target.seek(0)
    if is_right and file.sha256 is not None:
        digest = hashlib.sha256()
        while block := target.read(1 << 20):
            digest.update(block)
        is_right = digest.hexdigest() == file.sha256
    if not is_right:
        raise DatasetError(f"{file.path} differs from the hub's file: try again")


def _away(name: str, error: Exception) -> Problem:
    kind = type(error).__name__
    if isinstance(error, httpx.HTTPStatusError):
        kind = f"it answers {error.response.status_code}"
    return Problem(
        HTTPStatus.FAILED_DEPENDENCY,
        f"the hub cannot be reached for {name} from the gateway's host ({kind}): try again, name a "
        "mirror with the gateway's HF_ENDPOINT, or upload the files",
    )
