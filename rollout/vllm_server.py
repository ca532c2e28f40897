"""One stock vLLM server as a child on loopback: start it, wait for it, end it with all it started.

The child and what it starts die with this process, however that ends (see
`services.process` and `weight_transfer.register`). A start that fails raises `VLLMFailed` with
the last lines of the server's log: that text is what a user sees as the run's failure.
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from rollout.adapter_slot import AdapterSlot, slot_for
from rollout.last_words import telling_lines
from rollout.policy import PolicyClient
from rollout.vllm_options import HOST, command_line, environment
from services.contracts.config.vllm import VLLM
from services.gpus import Device
from services.logs import get_logger
from services.process import die_with

log = get_logger(__name__)

TERM_SECONDS = 10.0


class VLLMFailed(RuntimeError):
    """The server did not start, or died. The text holds the last lines of its log."""


class VLLMServer:
    """One start of a server. Not reusable: after `stop` make a new one."""

    def __init__(
        self,
        model: Path,
        options: VLLM,
        dtype: str,
        device: Device,
        log_file: Path,
        kv_cache_gib: int = 1,
        command: str | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`more`: as in `vllm_options.command_line`."""
        self.model = model
        self.options = options
        self.log_file = log_file
        self._dtype = dtype
        self._device: Device = device
        self._kv_cache_gib = kv_cache_gib
        self._command = command
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None
        self._slot: AdapterSlot | None = None
        self.url = ""

    @property
    def alive(self) -> bool:
        """Whether the child runs. Does not reap it: its process group stays ours to kill."""
        return self._process is not None and _exit_status(self._process.pid) is None

    @property
    def pid(self) -> int:
        """The child's process id, which is also its process group. Raises VLLMFailed before a
        start and after `stop`."""
        if self._process is None:
            raise VLLMFailed("vLLM was not started")
        return self._process.pid

    async def start(self) -> PolicyClient:
        """Start, wait until it serves, and return a client ready to load weights.

        Raises VLLMFailed when it dies or does not serve within `options.startup_seconds`, and
        ValueError for options that cannot be passed on. Nothing is left running then.
        """
        port = free_port()
        self._slot = slot_for(self.model)
        arguments = command_line(
            self.model,
            self.options,
            self._dtype,
            port,
            self._device,
            self._command,
            self._more,
            self._slot,
        )
        self.url = f"http://{HOST}:{port}"
        started = time.monotonic()
        with _open_log(self.log_file) as output:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - returns after fork and exec
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(os.environ, self._device, self._kv_cache_gib),
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
        log.info("starting vLLM", pid=self._process.pid, url=self.url, log=str(self.log_file))
        client = PolicyClient(self.url)
        try:
            async with asyncio.timeout(self.options.startup_seconds):
                await self._wait_until_healthy(client)
                await client.prepare(self._slot)
        except BaseException as error:
            await client.close()
            await self.stop()
            if isinstance(error, TimeoutError):
                raise VLLMFailed(
                    f"vLLM did not start within rollout.vllm.startup_seconds = "
                    f"{self.options.startup_seconds:g}. {self.last_words()}"
                ) from error
            if isinstance(error, ConnectionError | RuntimeError) and not isinstance(
                error, VLLMFailed
            ):
                raise VLLMFailed(
                    f"vLLM started but failed its first calls: {error}. {self.last_words()}"
                ) from error
            raise
        log.info("vLLM serves", url=self.url, seconds=round(time.monotonic() - started, 1))
        return client

    async def _wait_until_healthy(self, client: PolicyClient) -> None:
        while not await client.healthy():
            self.check()
            await asyncio.sleep(0.2)

    def check(self) -> None:
        """Raise VLLMFailed if the child has ended."""
        status = _exit_status(self.pid)
        if status is not None:
            raise VLLMFailed(f"vLLM ended with {status}. {self.last_words()}")

    def last_words(self) -> str:
        """The end of the server's log, as one text with a heading."""
        return f"The last lines of its log ({self.log_file}):\n{tail(self.log_file)}"

    async def stop(self) -> None:
        """End the child and everything it started. Safe to call twice."""
        process, self._process = self._process, None
        if self._slot is not None:
            self._slot.remove()
        if process is None:
            return
        # The group is signalled before the leader is reaped: until then nobody else can get
        # its number.
        _signal_group(process.pid, signal.SIGTERM)
        await asyncio.to_thread(_ends, process.pid, TERM_SECONDS)
        _signal_group(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        log.info("vLLM stopped", pid=process.pid, status=process.returncode)


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def tail(path: Path) -> str:
    """What the end of a log says (see `last_words`)."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (1 << 18)))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(telling_lines(text)) or "(nothing)"


def _exit_status(pid: int) -> str | None:
    """How the child ended, in words, or None while it runs. Leaves it a zombie."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "an unknown status"
    if result is None:
        return None
    if result.si_code == os.CLD_EXITED:
        return f"exit code {result.si_status}"
    return f"signal {signal.Signals(result.si_status).name}"


def _ends(pid: int, within: float) -> None:
    """Return when the child `pid` has ended, or after `within` seconds. Does not reap it."""
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(within * 1000)
    finally:
        os.close(pidfd)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def _open_log(path: Path) -> IO[bytes]:
    """A fresh log file; the previous start's is kept beside it as `.1`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(path.with_suffix(path.suffix + ".1"))
    return path.open("wb")
