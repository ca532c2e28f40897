"""Large payloads in a bucket: a store with the interface of S3.

Objects have the names of the files on a data volume, below the URL's folder. An object is always
whole, because each is sent as one request. `obstore` retries temporary failures.
"""

import os
from collections.abc import Awaitable, Collection
from datetime import timedelta
from typing import TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, S3Store

from services.payloads.places import PlaceAway

T = TypeVar("T")

REQUEST_SECONDS = 300
"""Timeout of one request: enough for 206 MB at 6 Mbit/s."""
RETRY_SECONDS = 30
"""Seconds for which a failing request is retried."""


def bucket(url: str) -> ObjectStore:
    """Open the folder of a bucket. Credentials, region and endpoint are in AWS' variables."""
    return S3Store.from_url(
        url,
        client_options={
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=5),
            # With options of ours obstore does not read this variable.
            "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true",
        },
        # The default limit of 10 retries ends after 4 seconds.
        retry_config={"max_retries": 1000, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
    )


class Objects:
    """The `PayloadPlace` of a bucket."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def write(self, name: str, data: bytes | memoryview) -> None:
        """Write an object, durable when this returns. Raises PlaceAway."""
        # The parts of an unfinished upload would stay, and cost money.
        try:
            await _asked(obstore.put_async(self._store, name, data, use_multipart=False))
        except FileNotFoundError as error:
            raise _away(error) from error

    async def read(self, name: str) -> bytes:
        """Return an object's bytes. Raises FileNotFoundError, PlaceAway."""
        response = await _asked(obstore.get_async(self._store, name))
        return bytes(await _asked(response.bytes_async()))

    async def runs(self) -> list[str]:
        listed = await _asked(obstore.list_with_delimiter_async(self._store, "runs"))
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in listed["common_prefixes"]]

    async def names(self, run: str) -> list[str]:
        listed = obstore.list(self._store, f"runs/{run}/payloads", chunk_size=1000)
        return [entry["path"] for entry in await _asked(listed.collect_async())]

    async def delete(self, names: Collection[str]) -> None:
        """Delete objects. Raises PlaceAway."""
        await _asked(obstore.delete_async(self._store, list(names)))

    def free_bytes(self) -> None:
        """Return None: a bucket is unbounded."""


async def _asked(request: Awaitable[T]) -> T:
    """Return the result of a request. Raises FileNotFoundError, and PlaceAway for any other
    failure."""
    try:
        return await request
    except FileNotFoundError as error:
        # If the bucket is missing, the object may still exist elsewhere.
        if "NoSuchBucket" in str(error):
            raise _away(error) from error
        raise
    except (BaseError, OSError, ValueError) as error:
        raise _away(error) from error


def _away(error: Exception) -> PlaceAway:
    # The first line says what failed; obstore adds the whole request.
    brief = str(error).strip().split("\n")[0][:300]
    if "NoSuchBucket" in str(error):
        brief = f"HEADRACE_PAYLOADS_URL names a bucket that does not exist ({brief})"
    return PlaceAway(f"the store of payloads does not answer rightly: {brief}")
