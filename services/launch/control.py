"""Requests from other processes of this machine to a running `headrace up`.

They use a Unix socket in the kernel's abstract namespace, named by the instance (in `up.json`): it
leaves no file behind, and its path cannot be too long. Only the same user, or root, gets answers. A
request is a line of JSON; lines of {"say"} follow, and one of {"done"} or {"error"}. A request that
has begun is finished even if the client goes away.
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.launch.data_folder import holder_of
from services.launch.options import LaunchError
from services.runtime.logs import get_logger
from services.runtime.tasks import end

log = get_logger(__name__)

Say = Callable[[str], None]
Answer = Callable[[dict[str, Any], Say], Awaitable[dict[str, Any]]]

LONGEST_LINE = 1 << 16
ENDED = "`headrace up` ended before it answered"


def _address(instance: str) -> str:
    return f"\0headrace-up-{instance}"


@asynccontextmanager
async def control(instance: str, answer: Answer) -> AsyncIterator[None]:
    """Answer requests to `instance` with `answer`, one at a time, while the context lasts. Its end
    cancels unfinished requests."""
    busy = asyncio.Lock()
    requests: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        requests.add(task)
        try:
            if _ours(writer):
                await _serve(reader, writer, busy, answer)
        finally:
            requests.discard(task)
            writer.close()

    server = await asyncio.start_unix_server(connected, path=_address(instance), limit=LONGEST_LINE)
    try:
        yield
    finally:
        server.close()
        await end(requests)


def _ours(writer: asyncio.StreamWriter) -> bool:
    """Whether the process at the other end runs as this user, or as root."""
    peer = writer.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    _, user, _ = struct.unpack("3i", peer)
    return user in (0, os.getuid())


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, busy: asyncio.Lock, answer: Answer
) -> None:
    def send(**line: Any) -> None:
        if not writer.is_closing():
            writer.write(json.dumps(line).encode() + b"\n")

    try:
        request = json.loads(await reader.readline())
        if busy.locked():
            raise LaunchError("another request to this `headrace up` is being carried out: wait")
        async with busy:
            send(done=await answer(request, lambda text: send(say=text)))
    except LaunchError as error:
        send(error=str(error))
    except asyncio.CancelledError:
        send(error="`headrace up` was stopped meanwhile")
        raise
    except Exception as error:
        log.exception("a request to headrace up failed")
        send(error=f"it failed: {error!r}")
    finally:
        with contextlib.suppress(ConnectionError):
            await writer.drain()


def ask(data: Path, request: dict[str, Any], say: Say) -> dict[str, Any]:
    """Send a request to the `headrace up` that holds the folder `data`, and wait until it is done.
    `say` is called with its progress. Raises LaunchError if none runs there, or if it refuses or
    fails."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            instance = json.loads((data / "up.json").read_text())["instance"]
            connection.connect(_address(instance))
        except (OSError, ValueError, KeyError):
            raise LaunchError(_nobody_answers(data)) from None
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    reply: dict[str, Any] = json.loads(line)
                    if "error" in reply:
                        raise LaunchError(reply["error"])
                    if "say" in reply:
                        say(reply["say"])
                    else:
                        return dict(reply["done"])
        except (ConnectionError, ValueError):
            # Nothing more comes, or half a line came.
            raise LaunchError(ENDED) from None
    raise LaunchError(ENDED)


def _nobody_answers(data: Path) -> str:
    """Explain why no `headrace up` answers, and what to do. Requests are answered while everything
    is ready."""
    if holder := holder_of(data):
        return (
            f"{holder} on the data folder {data} is still starting, or is stopping: try again when "
            "it has said `ready`, or start one again when it has ended. (A Slurm job takes no "
            "commands: name its Redis with HEADRACE_REDIS_URL)"
        )
    return (
        f"no `headrace up` runs on the data folder {data}: start one, or name its folder with "
        "--data (HEADRACE_DATA)"
    )
