"""The connection to a gateway: requests with their retries, pages, streams and downloads. `make client` makes this file (deploy/client_code.py)."""
# ruff: noqa: E501

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any, TypeVar

import httpx

from headrace import login
from headrace.archive import Unpacking
from headrace.errors import Unreachable
from headrace.request import EventStream, Request, fields_of
from headrace.rows import Progress

T = TypeVar("T")
CONNECT, QUIET = 10.0, 45.0
"""Seconds for a connection, and without a ping until a stream counts as broken (pings come every
15)."""


class Connection:
    """A gateway, and the key for it."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 600.0,
        retries: int = 5,
    ) -> None:
        """`timeout`: seconds that the gateway may take to answer. `retries`: how often a request
        is sent again after a broken connection, 429, 502, 503 or 504."""
        self.url = login.address(url)
        key = api_key or login.api_key(self.url)
        self._retries = retries
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout, connect=CONNECT),
            # A proxy of the environment has no business between a machine and itself.
            trust_env=not login.is_local(self.url),
            # Reading the certificates takes 80 ms: skip it for plain http.
            verify=self.url.startswith("https:"),
        )

    def send(self, request: Request[T]) -> T:
        """Send a request of `headrace.operations` and return its answer. Raises HeadraceError."""
        if request.answer is EventStream:
            raise TypeError(f"{request.template} does not end: use run.events()")
        headers = request.headers()
        for attempt in count(1):
            response = None
            try:
                with ExitStack() as opened:
                    arguments = request.arguments(opened)
                    response = self._http.request(headers=headers, **arguments)
            except httpx.TransportError as error:
                broken = error
            except httpx.InvalidURL as error:
                raise Unreachable(f"{self.url!r} is not an address: {error}") from None
            pause = request.pause(attempt, response)
            # A request that was never sent may be sent again, whatever it is.
            if response is None and isinstance(broken, httpx.ConnectError | httpx.ConnectTimeout):
                pause = pause or 0.5
            if pause is None or attempt > self._retries:
                break
            time.sleep(pause)
        if response is None:
            raise Unreachable(
                f"no answer from {self.url} after {attempt} attempts: "
                f"{str(broken) or type(broken).__name__}"
            ) from broken
        return request.parsed(response)

    def pages(self, operation: Callable[..., Request[Any]], **given: Any) -> Iterator[Any]:
        """Yield the pages of an operation that lists things, e.g. `operations.workers_list`."""
        while True:
            page = self.send(operation(**given))
            yield page
            if page.next is None:
                return
            given["cursor"] = page.next

    def stream(self, request: Request[EventStream]) -> Iterator[str]:
        """Yield the data of each event of a stream, until it ends. Raises HeadraceError."""
        timeout = httpx.Timeout(CONNECT, read=QUIET)
        with ExitStack() as opened:
            arguments = request.arguments(opened)
        try:
            with self._http.stream(
                headers=request.headers(), timeout=timeout, **arguments
            ) as response:
                if response.is_error:
                    response.read()
                    request.parsed(response)
                lines: list[str] = []
                for line in response.iter_lines():
                    if line:
                        lines.append(line)
                        continue
                    fields, lines = fields_of(lines), []
                    if "data" in fields:
                        yield fields["data"]
        except httpx.TransportError as error:
            raise Unreachable(f"lost the connection to {self.url}: {error}") from error

    def unpack(
        self, request: Request[bytes], unpacking: Unpacking, progress: Progress | None
    ) -> None:
        """Send a request whose answer is a tar archive, and unpack it while it arrives."""
        with ExitStack() as opened:
            arguments = request.arguments(opened)
        try:
            with self._http.stream(**arguments) as response:
                if response.is_error:
                    response.read()
                    request.parsed(response)
                arrived, whole = 0, int(response.headers.get("Content-Length", 0))
                for piece in response.iter_bytes():
                    unpacking.write(piece)
                    arrived += len(piece)
                    if progress is not None:
                        progress(arrived, whole)
        except httpx.TransportError as error:
            raise Unreachable(f"lost the connection to {self.url}: {error}") from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
