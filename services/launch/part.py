"""One process of an installation: how it is started, when it is ready, and where its output
goes."""

import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import httpx

from headrace.terminal import one_line

State = Literal[
    "waiting", "starting", "running", "ready", "restarting", "stopping", "stopped", "failed"
]
"""`running`: of a part that has no readiness check."""

NotReady = Callable[[], Awaitable[str | None]]
"""Why a part cannot serve yet, in words that follow its name; None once it can."""


class Loading(str):
    """The reason why a part is not ready yet although its start makes progress. The part's deadline
    begins again."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A process that the supervisor keeps running under `name`.

    Stages start in order (0 must be ready before the rest starts) and stop in reverse.
    """

    name: str
    argv: tuple[str, ...]
    stage: int
    environment: Mapping[str, str] = field(default_factory=dict)
    not_ready: NotReady | None = None
    """None: ready as soon as it runs."""
    ready_within: float = 120.0
    """Seconds until it must be ready, from its start or from its last word that it is `Loading`."""
    held_back: Callable[[], str | None] | None = None
    """Why it is of no use to start it now, in words that follow its name; None once it is. Asked
    before each start."""
    is_final: Callable[[str], bool] | None = None
    """Whether its last lines, given as a text, say that no further start can succeed."""
    cores: tuple[int, ...] = ()
    """The cores that it computes on; () if the cores are not divided."""


@dataclass(frozen=True)
class Status:
    """The current state of a part. `detail` is for people; `pid` is None while no process runs."""

    name: str
    state: State = "waiting"
    pid: int | None = None
    restarts: int = 0
    detail: str = ""


class LogFile:
    """The output of one part over all its starts. Processes append to it, and it is cut before it
    grows without end.

    Rotation copies and truncates the file, because the writer keeps its descriptor. The descriptor
    was opened for appending, so the writer continues at the new end. Output between copy and
    truncation is lost.
    """

    def __init__(self, path: Path, limit: int = 64 << 20) -> None:
        """`limit`: above this many bytes, the content is moved to `<name>.1`."""
        self.path = path
        self.limit = limit
        self._mark = 0

    def open(self, argv: tuple[str, ...]) -> int:
        """Write a heading line. Return a descriptor to which a new process appends."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.rotate()
        descriptor = os.open(
            self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        # A part starts even if the disk is full.
        with contextlib.suppress(OSError):
            os.write(descriptor, f"--- {now} {' '.join(argv)}\n".encode())
        self._mark = os.fstat(descriptor).st_size
        return descriptor

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of the current process, indented, of at most 16 KiB."""
        kept = self._lines()[-lines:]
        return "\n".join(f"    {line}" for line in kept) or "    (it wrote nothing)"

    def error(self) -> str:
        """Return the last error of the current process: lines that begin with `error: ` (left out
        here), and the indented lines below each. Return '' if other lines follow the error."""
        error: list[str] = []
        for line in self._lines():
            if line.startswith("error: "):
                error.append(line.removeprefix("error: "))
            elif error and line.startswith("  "):
                error.append(line)
            else:
                error = []
        return "\n".join(error)

    def _lines(self) -> list[str]:
        """Return the last 16 KiB of the current process, without empty lines."""
        try:
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                file.seek(max(self._mark if self._mark <= size else 0, size - (16 << 10)))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        return [line for line in text.splitlines() if line.strip()]

    def rotate(self) -> None:
        """Move the content to `<name>.1` if it exceeds the limit."""
        try:
            if self.path.stat().st_size <= self.limit:
                return
        except FileNotFoundError:
            return
        with (
            self.path.open("r+b") as file,
            self.path.with_name(self.path.name + ".1").open("wb") as old,
        ):
            while block := file.read(1 << 20):
                old.write(block)
            file.truncate(0)


def http_not_ready(url: str) -> NotReady:
    """Return why an HTTP server is not ready: the status and body of `url`. Return None for status
    200. A JSON body with the `status` `loading` is Loading."""

    async def check() -> str | None:
        # trust_env=False: a proxy from the environment has no business between local processes.
        # verify=False: plain http, and building a TLS context would cost more than the request.
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=2) as client:
            try:
                response = await client.get(url)
            except httpx.HTTPError as error:
                return f"does not answer yet ({type(error).__name__})"
        if response.status_code == 200:
            return None
        try:
            body = response.json()
        except ValueError:
            body = None
        if isinstance(body, dict) and body.get("status") == "loading":
            return Loading(f"is loading: {one_line(str(body.get('detail')))[:200]}")
        return f"is not ready: {response.status_code} {response.text[:200]}".rstrip()

    return check
