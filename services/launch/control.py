"""What a running `headrace up` can be asked from another process on its machine.

A Unix socket in the kernel's abstract namespace, named by the instance (`up.json` has it): no
file that could be left behind, no path that could be too long. Only the same user, or root, is
answered. One line of JSON asks; lines of {"say"} follow, and one of {"done"} or {"error"}. What
was begun is finished even if whoever asked goes away.
"""

import asyncio
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.launch.folder import holder_of
from services.launch.options import LaunchError
from services.logs import get_logger

log = get_logger(__name__)

Say = Callable[[str], None]
Answer = Callable[[dict[str, Any], Say], Awaitable[dict[str, Any]]]

LONGEST_LINE = 1 << 16
ENDED = "`headrace up` ended before it answered"


def _address(instance: str) -> str:
    return f"\0headrace-up-{instance}"


@asynccontextmanager
async def control(instance: str, answer: Answer) -> AsyncIterator[None]:
    """Have `answer` answer what is asked of `instance`, one request at a time, as long as the
    context lasts. What is still being done at its end is cancelled."""
    busy = asyncio.Lock()
    asked: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        asked.add(task)
        try:
            if _ours(writer):
                await _serve(reader, writer, busy, answer)
        finally:
            asked.discard(task)
            writer.close()

    server = await asyncio.start_unix_server(connected, path=_address(instance), limit=LONGEST_LINE)
    try:
        yield
    finally:
        server.close()
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


def _ours(writer: asyncio.StreamWriter) -> bool:
    """Whether the other end runs as this user, or as root."""
    peer = writer.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    _, user, _ = struct.unpack("3i", peer)
    return user in (0, os.getuid())


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, busy: asyncio.Lock, answer: Answer
) -> None:
    def tell(said: dict[str, Any]) -> None:
        if not writer.is_closing():
            writer.write(json.dumps(said).encode() + b"\n")

    try:
        request = json.loads(await reader.readline())
        if busy.locked():
            raise LaunchError("another request to this `headrace up` is being carried out: wait")
        async with busy:
            tell({"done": await answer(request, lambda text: tell({"say": text}))})
    except LaunchError as error:
        tell({"error": str(error)})
    except ValueError as error:
        tell({"error": f"this request cannot be read: {error}"})
    except asyncio.CancelledError:
        tell({"error": "`headrace up` was stopped meanwhile"})
        raise
    except Exception as error:
        log.exception("a request to headrace up failed")
        tell({"error": f"it failed: {error!r}"})
    finally:
        try:
            await writer.drain()
        except ConnectionError:
            log.info("whoever asked has gone")


def ask(data: Path, request: dict[str, Any], say: Say) -> dict[str, Any]:
    """Ask the `headrace up` that holds the folder `data`; `say` is told how it goes on. Blocks
    until it is done. Raises LaunchError where none runs there, or it refuses or fails."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        try:
            instance = json.loads((data / "up.json").read_text())["instance"]
            link.connect(_address(instance))
        except (OSError, ValueError, KeyError):
            raise LaunchError(_nobody_answers(data)) from None
        try:
            link.sendall(json.dumps(request).encode() + b"\n")
            with link.makefile("rb") as lines:
                for line in lines:
                    said = json.loads(line)
                    if "done" in said:
                        done: dict[str, Any] = said["done"]
                        return done
                    if "error" in said:
                        raise LaunchError(said["error"])
                    say(said["say"])
        except ConnectionError:
            raise LaunchError(ENDED) from None
    raise LaunchError(ENDED)


def _nobody_answers(data: Path) -> str:
    """Why, and what to do: requests are answered from when everything is ready until the stop."""
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
