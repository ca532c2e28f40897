"""Serves files to other hosts: weights, models and datasets that this host has or is fetching.

`python -m rollout.file_server` runs it. A worker starts it as a child, on the address in its
heartbeat, so that neither waits for the other's event loop. It runs without a worker if the workers
are in containers whose ports other hosts cannot reach. Other hosts download through
`services.volume`. Exit codes: 0 after a signal, 1 if it cannot listen, 2 for invalid settings.
"""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
import uvloop
from redis.exceptions import RedisError
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.death_signal import die_with
from rollout.settings import RolloutSettings
from services.contracts.weights import part_bytes
from services.http import (
    Bandwidth,
    KeyRequired,
    OpenFile,
    Problem,
    SingleHeaders,
    byte_range,
    server_config,
)
from services.http.served_files import open_served
from services.models import open_below
from services.runtime import logs
from services.runtime.api_key import key_for, key_for_peers
from services.runtime.children import signal_child
from services.runtime.process import die_with_parent, keep_files_private
from services.settings import EXIT_SETTINGS, from_command_line
from services.store import Store
from services.volume import FETCHING, Peers, partial_path, parts_path

log = logs.get_logger(__name__)

PREFIX = "/v1/files/"
LISTENER = "HEADRACE_PEER_LISTENER"
"""The variable that gives a child the descriptor of its listening socket."""
PATIENCE_SECONDS, LOOK_SECONDS = 1.0, 0.01
"""Seconds that a request waits for parts that are still being fetched, and between two checks."""
TAKE_OVER_SECONDS = 5.0
"""Seconds between two tries to listen while another worker of this host does."""
NEVER = (errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT)
"""Errors that end the tries to listen: the address is another machine's, or not for this user."""
WAY_OUT = (
    "workers show each other a key that they derive from the API key: give all hosts the same "
    "HEADRACE_API_KEY"
)


def other_hosts(settings: RolloutSettings, store: Store) -> Peers:
    """Return the hosts that serve files to this one, by the heartbeats of the pool's workers."""

    async def listed() -> Sequence[tuple[str, Sequence[str]]]:
        try:
            workers = await store.workers.list(settings.pool)
        except (RedisError, OSError):
            return ()
        return [(worker.peer_url, worker.files) for worker in workers if worker.peer_url]

    return Peers(settings.peer_url or "", listed, key_for_peers(key_for(settings)))


class FileServer:
    """The ASGI application with one route, the same as the gateway's. It serves the finished parts
    of a file that is still being fetched."""

    def __init__(self, root: Path, bandwidth: Bandwidth) -> None:
        self._root, self._bandwidth = root, bandwidth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._answer(scope)
        except Problem as problem:
            response = problem.response(scope["path"])
        await response(scope, receive, send)

    async def _answer(self, scope: Scope) -> Response:
        if scope["path"] == "/healthz":
            return Response()
        if scope["method"] not in ("GET", "HEAD") or not scope["path"].startswith(PREFIX):
            raise Problem(HTTPStatus.NOT_FOUND, f"only GET {PREFIX}… is answered here")
        name = scope["path"].removeprefix(PREFIX)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return OpenFile(open_served(self._root, name), self._bandwidth)
            except Problem as missing:
                if missing.status != HTTPStatus.NOT_FOUND:
                    raise
                part = self._part(self._root / name, Headers(scope=scope).get("range", ""))
                if isinstance(part, OpenFile):
                    return part
                if time.monotonic() > deadline:
                    if part is None:
                        raise
                    headers = {FETCHING: "1", "Retry-After": "1"}
                    return Response(status_code=503, headers=headers)
            await asyncio.sleep(LOOK_SECONDS)

    def _part(self, path: Path, wanted: str) -> OpenFile | bool | None:
        """Open an unfinished file whose requested bytes are here and checked. Return False if they
        are still to come, and None if the file is not being fetched."""
        top, *names = path.relative_to(self._root).parts
        try:
            parts = parts_path(path).read_bytes()
            hidden = [*names[:-1], partial_path(path).name]
            file = os.fdopen(open_below(self._root / top, hidden), "rb")
        except OSError:
            return None
        size = os.fstat(file.fileno()).st_size
        length, (start, stop) = part_bytes(size), byte_range(wanted, size) or (0, 0)
        first, behind = start // length, (stop - 1) // length + 1
        if start < stop and parts[first:behind] == b"\1" * (behind - first):
            return OpenFile(file, self._bandwidth, (start, stop))
        file.close()
        return False


async def keep_serving(settings: RolloutSettings) -> None:
    """Keep a child that serves this host's files at `settings.peer_url`. Returns if the address is
    not this machine's.

    If another process listens there, it serves the same files, so try again later. An unknown name
    and a lack of memory are retried too.
    """
    if settings.peer_url is None:
        return
    api_key = key_for(settings)
    if api_key is None:
        log.warning("files are not served: this host has no API key", way_out=WAY_OUT)
        return
    host, port = _address(settings.peer_url)
    logged = ""
    while True:
        try:
            # In a thread: a name server that does not answer would block the worker.
            listener = await asyncio.to_thread(_listen, host, port)
        except OSError as error:
            never = not isinstance(error, socket.gaierror) and error.errno in NEVER
            if str(error) != logged and error.errno != errno.EADDRINUSE:
                logged = str(error)
                log.info("files are not served here", address=settings.peer_url, reason=logged)
            if never:
                return
            await asyncio.sleep(TAKE_OVER_SECONDS)
            continue
        with listener:
            try:
                await _child(settings, api_key, listener)
            except OSError as error:
                log.warning("the process that serves files cannot be started", reason=str(error))
        await asyncio.sleep(TAKE_OVER_SECONDS)


async def _child(settings: RolloutSettings, api_key: str, listener: socket.socket) -> None:
    """Serve with a child process until it ends."""
    mbit = settings.file_bandwidth_mbit
    variables = {
        "HEADRACE_DATA": str(settings.data.absolute()),
        "HEADRACE_PEER_URL": settings.peer_url or "",
        "HEADRACE_API_KEY": api_key,
        "HEADRACE_LOG_LEVEL": settings.log_level,
        "HEADRACE_LOG_FORMAT": settings.log_format,
        LISTENER: str(listener.fileno()),
    }
    if mbit is not None:
        variables["HEADRACE_FILE_BANDWIDTH_MBIT"] = str(mbit)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rollout.file_server"),
        env=os.environ | variables,
        stdin=asyncio.subprocess.DEVNULL,
        pass_fds=(listener.fileno(),),
        preexec_fn=die_with(os.getpid()),
    )
    try:
        code = await process.wait()
        log.warning("the process that serves files has ended, and is started again", code=code)
    finally:
        signal_child(process, signal.SIGTERM)
        await process.wait()


async def serve(files: ASGIApp, key: str, listener: socket.socket) -> None:
    """Serve requests that have `key`, until cancelled."""
    config = server_config(
        SingleHeaders(KeyRequired(files, key, WAY_OUT)),
        access_log=False,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = _SignalFreeServer(config)
    try:
        await server.serve(sockets=[listener])
    finally:
        server.should_exit = server.force_exit = True


class _SignalFreeServer(uvicorn.Server):
    """uvicorn without its signal handlers: this process has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


def _listen(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def main() -> int:
    """Serve on the socket of the worker that started this process. Without one, serve on all
    addresses, on the port of `--peer-url`. Returns the exit code."""
    settings = from_command_line(RolloutSettings)
    logs.configure("peers", settings.log_level, settings.log_format)
    if settings.peer_url is None:
        sys.stderr.write("error: --peer-url (HEADRACE_PEER_URL): is needed here\n")
        return EXIT_SETTINGS
    key = key_for_peers(key_for(settings))
    if key is None:
        sys.stderr.write(f"error: there is no API key: {WAY_OUT}\n")
        return EXIT_SETTINGS
    inherited = os.environ.pop(LISTENER, None)
    try:
        if inherited is not None:
            listener = socket.socket(fileno=int(inherited))
        else:
            listener = _listen("0.0.0.0", _address(settings.peer_url)[1])
    except OSError as error:
        sys.stderr.write(f"error: cannot listen at {settings.peer_url}: {error.strerror}\n")
        return 1
    with listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_told(settings, key, listener))


async def _until_told(settings: RolloutSettings, key: str, listener: socket.socket) -> int:
    files = FileServer(settings.data.absolute(), Bandwidth(settings.file_bandwidth_mbit))
    serving = asyncio.create_task(serve(files, key, listener))
    log.info("files are served to other hosts", address=settings.peer_url)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    return 0


if __name__ == "__main__":
    die_with_parent()
    keep_files_private()
    sys.exit(main())
