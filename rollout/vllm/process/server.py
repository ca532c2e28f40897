"""One vLLM server as a child process on a Unix socket: starts it, waits for it, ends its process
tree.

The child and its descendants die with this process, however it ends (`services.runtime.process`,
`vllm_plugin.register`). A start that fails raises `VLLMFailed` with the cause from the server's
log, which the user sees as the run's failure.
"""

import asyncio
import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
import zlib
from pathlib import Path
from typing import IO

from headrace.death_signal import die_with
from rollout.aio import finish
from rollout.vllm.client.policy_client import PolicyClient
from rollout.vllm.process.log_follower import follow
from rollout.vllm.process.logs import explained
from rollout.vllm.process.options import ServerConfig, command_line, environment
from rollout.vllm_plugin.lora_slot import AdapterSlot, slot_for
from services.runtime.logs import get_logger
from services.runtime.process import started_at

log = get_logger(__name__)

TERM_SECONDS = 10.0
FOLDER_PREFIX = "headrace-vllm-"
SOCKET_BYTES = 107
"""Longest path of a Unix socket (unix(7): 108 with the final zero)."""
LONGEST_NAME = "x" * 36
"""As long as the longest socket name in a server's folder: vLLM's are UUIDs."""
SHORT_PATH = Path("/tmp")


class VLLMFailed(RuntimeError):
    """The server did not start, died, or has to be restarted."""

    def __init__(self, problem: str, named_cause: bool = False) -> None:
        """`named_cause`: whether the text includes the end of the server's log."""
        super().__init__(problem)
        self.named_cause = named_cause


class VLLMServer:
    """One start of a server. After `stop` create a new one."""

    def __init__(self, config: ServerConfig, log_file: Path, kv_cache_gib: int = 1) -> None:
        self.config = config
        self.log_file = log_file
        self._kv_cache_gib = kv_cache_gib
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._ending: asyncio.Task[None] | None = None
        self._log_follower: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether the child runs. Does not reap it, so its process group stays ours to kill."""
        return self._process is not None and _exit_status(self._process.pid) is None

    @property
    def pid(self) -> int:
        """The child's process id, which is also its process group. Raises VLLMFailed before a
        start."""
        if self._process is None:
            raise VLLMFailed("vLLM was not started")
        return self._process.pid

    @property
    def folder(self) -> Path:
        """The server's own folder, which only this user can enter. It is deleted with the server,
        and vLLM's temporary files with it. Raises VLLMFailed before a start."""
        if self._folder is None:
            raise VLLMFailed("vLLM was not started")
        return self._folder

    @property
    def socket(self) -> Path:
        """The Unix socket that the server listens on. Raises VLLMFailed before a start."""
        return self.folder / "socket"

    async def start(self) -> PolicyClient:
        """Start, wait until it serves, and return a client ready to load weights.

        Raises VLLMFailed if it dies or does not serve within `options.startup_seconds`, and
        ValueError for options that vLLM refuses or without a folder for its sockets. A failed start
        leaves no process.
        """
        started = time.monotonic()
        client: PolicyClient | None = None
        try:
            self._folder = make_server_folder()
            slot = slot_for(self.config.model, self._folder)
            self._spawn(slot)
            worker = self.log_file.stem.removeprefix("vllm-")
            followed = follow(self.log_file, f"vllm/{worker}", lambda: not self.alive)
            self._log_follower = asyncio.create_task(followed, name="log of vLLM")
            client = PolicyClient(self.socket, several=self.config.options.several_processes)
            async with asyncio.timeout(self.config.options.startup_seconds):
                while not await client.healthy():
                    self.check()
                    await asyncio.sleep(0.2)
                await client.weights.prepare(slot)
                # The frozen weights below an adapter.
                frozen = self.config.model.glob("*.safetensors")
                client.weights.bytes = sum(file.stat().st_size for file in frozen)
        except BaseException as error:
            if client is not None:
                await client.close()
            await self.stop()
            match error:
                case TimeoutError():
                    limit = (
                        f"rollout.vllm.startup_seconds = {self.config.options.startup_seconds:g}"
                    )
                    problem = f"vLLM did not start within {limit}"
                    raise self.failed(problem) from error
                case VLLMFailed():
                    raise
                case ConnectionError() | RuntimeError():
                    problem = f"vLLM started but failed its first calls: {error}"
                    raise self.failed(problem) from error
            raise
        log.info("vLLM serves", seconds=round(time.monotonic() - started, 1))
        return client

    def _spawn(self, slot: AdapterSlot | None) -> None:
        """Start the child. Raises ValueError, OSError."""
        arguments = command_line(self.config, self.socket, slot)
        device = self.config.device
        with _open_log(self.log_file) as output:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(os.environ, device, self._kv_cache_gib, self.folder),
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
        log.info("starting vLLM", pid=self._process.pid, log=str(self.log_file))

    def check(self) -> None:
        """Raise VLLMFailed if the child has ended."""
        status = _exit_status(self.pid)
        if status is not None:
            raise self.failed(f"vLLM ended with {status}")

    def failed(self, problem: str) -> VLLMFailed:
        """Return `problem` as an error, with its cause from the server's log."""
        return VLLMFailed(explained(problem, self.log_file, not self.alive), named_cause=True)

    async def stop(self) -> None:
        """End the child and its descendants, and delete the server's folder. Safe to call twice.
        Returns when they have ended, even if it is cancelled meanwhile: then their memory is
        free."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(), name="end vLLM")
        await finish(self._ending)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # The group gets its signals before the leader is reaped. Until then its number is not
            # reused.
            _signal_group(process.pid, signal.SIGTERM)
            await asyncio.to_thread(_wait_for_end, process.pid, TERM_SECONDS)
            _signal_group(process.pid, signal.SIGKILL)
            await asyncio.to_thread(process.wait)
            if self._log_follower is not None:
                await self._log_follower
            log.info("vLLM stopped", pid=process.pid, status=process.returncode)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def make_server_folder() -> Path:
    """Create a folder, which only this user can enter, for a server's sockets, temporary files and
    LoRA slot. It is in TMPDIR, or in /tmp if TMPDIR's path is too long for a socket.

    Its name has this process's id. Deletes the folders of this user's dead processes of this host
    and PID namespace. Raises ValueError if no folder can be created.
    """
    prefix = f"{FOLDER_PREFIX}{_namespace()}-"
    process = os.getpid()
    own_prefix = f"{prefix}{process}-{started_at(process)}-"
    places = dict.fromkeys((Path(tempfile.gettempdir()), SHORT_PATH))
    for folder in (folder for place in places for folder in place.glob(f"{prefix}*")):
        owner = re.fullmatch(r"(\d+)-(\d+)-\w+", folder.name.removeprefix(prefix))
        if owner and started_at(int(owner[1])) != int(owner[2]):
            with contextlib.suppress(FileNotFoundError):
                if folder.lstat().st_uid == os.getuid():
                    shutil.rmtree(folder, ignore_errors=True)
    for place in places:
        longest = place / f"{own_prefix}{'x' * 8}" / LONGEST_NAME
        if len(os.fsencode(longest)) <= SOCKET_BYTES:
            with contextlib.suppress(OSError):
                return Path(tempfile.mkdtemp(prefix=own_prefix, dir=place))
    raise ValueError(
        f"vLLM's sockets need a folder that this process can write, with a path of at most "
        f"{SOCKET_BYTES - len(os.fsencode(longest)) + len(os.fsencode(place))} bytes, and "
        f"{' and '.join(map(str, places))} are not: set TMPDIR to such a folder"
    )


def _namespace() -> str:
    """Name this boot of this host and the PID namespace, among all that may share a TMPDIR."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{zlib.crc32(f'{boot}{namespace}'.encode()):08x}"


def _exit_status(pid: int) -> str | None:
    """Return how the child ended, in words; None while it runs. Leaves it a zombie."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "an unknown status"
    if result is None:
        return None
    if result.si_code == os.CLD_EXITED:
        return f"exit code {result.si_status}"
    return f"signal {signal.Signals(result.si_status).name}"


def _wait_for_end(pid: int, within: float) -> None:
    """Return when the child has ended, or after `within` seconds. Does not reap it."""
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
    """Open a fresh log file. The log of the start before becomes `.1`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(path.with_suffix(path.suffix + ".1"))
    return path.open("wb")
