"""Large payloads in a bucket: a store with the interface of S3.

Objects have the names that files of the data volume would have, below the URL's folder. An object
is there whole or not at all, because each is sent as one request. `obstore` repeats requests that
failed for a reason that may pass.
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
"""Of one request: 206 MB at 6 Mbit/s."""
RETRY_SECONDS = 30
"""How long a request is repeated that fails."""


def bucket(url: str) -> ObjectStore:
    """The folder of a bucket. Credentials, region and endpoint are in AWS' variables."""
    return S3Store.from_url(
        url,
        client_options={
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "connect_timeout": timedelta(seconds=5),
            # With options of ours obstore does not read this variable.
            "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true",
        },
        # Its own limit of 10 tries ends after 4 seconds.
        retry_config={"max_retries": 1000, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
    )


class Objects:
    """A `Place` in a bucket."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def write(self, name: str, data: bytes | memoryview) -> None:
        """Whole, and durable when this returns. Raises PlaceAway."""
        # Parts of an upload that is never finished would stay, and be paid for.
        try:
            await _asked(obstore.put_async(self._store, name, data, use_multipart=False))
        except FileNotFoundError as error:
            raise _away(error) from error

    async def read(self, name: str) -> bytes:
        """Raises FileNotFoundError, PlaceAway."""
        found = await _asked(obstore.get_async(self._store, name))
        return bytes(await _asked(found.bytes_async()))

    async def runs(self) -> list[str]:
        """Those with objects."""
        found = await _asked(obstore.list_with_delimiter_async(self._store, "runs"))
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"]]

    async def names(self, run: str) -> list[str]:
        """All objects of a run."""
        found = obstore.list(self._store, f"runs/{run}/payloads", chunk_size=1000)
        return [one["path"] for one in await _asked(found.collect_async())]

    async def delete(self, names: Collection[str]) -> None:
        """Raises PlaceAway."""
        await _asked(obstore.delete_async(self._store, list(names)))

    def room(self) -> None:
        """A bucket has no bound."""


async def _asked(request: Awaitable[T]) -> T:
    """The outcome of a request. Raises FileNotFoundError, and PlaceAway for any other failure."""
    try:
        return await request
    except FileNotFoundError as error:
        # Without the bucket nothing is known of an object.
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
