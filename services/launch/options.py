"""The options of `headrace up`, its ports, and its error."""

import errno
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ALL_PARTS = frozenset({"redis", "gateway", "reward", "rollout", "learner"})


class LaunchError(Exception):
    """`headrace up` cannot start, or cannot go on. The message is for the user, as it stands."""


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """One installation on one machine. A port of 0 means any free one."""

    data: Path = Path("headrace-data")
    host: str = "127.0.0.1"
    """Where the gateway listens."""
    port: int = 8000
    reward_port: int = 8002
    redis_port: int | None = None
    """For workers on other hosts: Redis listens here with a password, and the reward service on
    `host`. None: Redis has a Unix socket only, and the reward service stays on loopback."""
    redis_url: str | None = None
    """A Redis that runs already: it is used, and neither started nor stopped."""
    allow_unsafe_redis: bool = False
    """Take `redis_url` even if it may lose acknowledged work."""
    rollouts: int = 1
    serving: int = 0
    """Workers that only answer calls of finished runs."""
    ranks: int = 1
    pool: str = "default"
    parts: frozenset[str] = ALL_PARTS
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to every child's environment, over this process's own."""
    grace: float = 20.0
    """Seconds each stage of an orderly stop may take before SIGKILL."""
    start_tries: int = 5
    """Deaths in a row of a part that was never ready, before everything stops."""

    def __post_init__(self) -> None:
        _require_known(self.parts)
        counts = (("rollouts", self.rollouts, 0), ("serving", self.serving, 0))
        for name, value, least in (*counts, ("ranks", self.ranks, 1)):
            if value < least:
                raise LaunchError(f"--{name} {value}: at least {least} is needed")

    def runs(self, part: str) -> bool:
        """Whether `part` is started here."""
        if part == "redis" and self.redis_url is not None:
            return False
        return part in self.parts and (part != "rollout" or self.engines > 0)

    @property
    def engines(self) -> int:
        """The workers that are started here, each with a vLLM of its own."""
        return self.rollouts + self.serving


def parts_named(text: str) -> frozenset[str]:
    """Parse names of parts like `gateway, reward`. Raises LaunchError for an unknown name."""
    parts = frozenset(name for part in text.split(",") if (name := part.strip()))
    _require_known(parts)
    return parts


def _require_known(parts: frozenset[str]) -> None:
    if unknown := parts - ALL_PARTS:
        raise LaunchError(
            f"unknown part {', '.join(sorted(unknown))}: the parts are "
            f"{', '.join(sorted(ALL_PARTS))}"
        )


def cannot_listen(host: str, port: int) -> OSError | None:
    """Return the error if no server can listen on the port now, else None. A port in TIME_WAIT is
    free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            # Two sockets with SO_REUSEADDR may both bind; only one of them may listen.
            probe.listen(1)
        except OSError as error:
            return error
    return None


def free_ports(host: str, count: int) -> list[int]:
    """Return `count` different free ports. All of them are bound at once, so no port comes
    twice."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = [socket.socket(family, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for held_socket in held:
            held_socket.bind((host, 0))
        return [int(held_socket.getsockname()[1]) for held_socket in held]
    finally:
        for held_socket in held:
            held_socket.close()


def require_port(host: str, port: int, flag: str, taken: Iterable[int] = ()) -> None:
    """Raise LaunchError unless `port` is free and not among the ports `taken` by other parts."""
    if not 0 < port < 65536:
        raise LaunchError(
            f"{flag} {port}: a port is a number from 1 to 65535, or 0 for any free one"
        )
    if port in taken:
        raise LaunchError(f"{flag} {port}: another part of this installation uses that port")
    error = cannot_listen(host, port)
    if error is None:
        return
    if error.errno == errno.EADDRINUSE:
        raise LaunchError(
            f"port {port} on {host} is in use: stop what listens there (`ss -ltnp` names it), "
            f"or choose another port with {flag}"
        )
    raise LaunchError(
        f"nothing can listen on port {port} of {host}: {error.strerror or error}; choose another "
        f"host with --host, or another port with {flag}"
    )
