"""Turn the options into the parts to start: ports, addresses, cores, GPUs and command lines."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from services.launch import redis
from services.launch.cores import CorePlan, Cores, bound_to, place_here
from services.launch.gpus import GPUPlan, UpGPUSettings, gpus_here, plan_gpus
from services.launch.options import (
    LaunchError,
    UpOptions,
    free_ports,
    require_port,
)
from services.launch.part import Part, http_not_ready
from services.launch.unreadable_redis import unreadable
from services.runtime.api_key import (
    REDIS_PASSWORD,
    BadKeyFile,
    first_key,
    kept_key,
    reward_service_key,
)
from services.runtime.gpus import GPU
from services.settings import Settings

Place = Callable[[int, int], CorePlan | None]
Devices = Callable[[Mapping[str, str]], Sequence[GPU]]

LOOPBACK = "127.0.0.1"
SERVING = "serving-"
"""Begins the names of workers that only serve."""


@dataclass(frozen=True)
class RolloutWorkers:
    """Makes the rollout workers of an installation, also later ones."""

    environment: Mapping[str, str]
    cores: CorePlan | None
    """As divided at the start; None if GPUs do the work."""
    gpus: GPUPlan | None = None
    """None if the machine has no GPUs, or if its GPUs are unknown."""

    def refuse(self, engines: int) -> None:
        """Raise LaunchError if this machine has too few GPUs for this many workers."""
        if self.gpus is not None:
            self.gpus.refuse(engines)

    def part(
        self, index: int, engines: int, running: Sequence[Part] | None = None, serving: int = 0
    ) -> Part:
        """Return worker `index` of `engines`; the last `serving` of them only serve. `running`: the
        workers that it joins, or None at the start."""
        cores: Cores = ()
        if self.cores is not None and running is None:
            cores = self.cores.rollouts[index]
        elif self.cores is not None and running is not None:
            cores = self.cores.joining([part.cores for part in running], engines)
        placed = {}
        if self.cores is not None:
            placed = bound_to(cores)
        shared = self.gpus.rollout_environment(engines) if self.gpus else {}
        first = engines - serving
        name = f"rollout-{index}" if index < first else f"{SERVING}{index - first}"
        role = {} if index < first else {"HEADRACE_SERVING_ONLY": "true"}
        return Part(
            name=name,
            argv=(sys.executable, "-m", "rollout"),
            stage=2,
            environment={**_unless_set(placed), **shared, **self.environment, **role},
            cores=cores,
        )


@dataclass(frozen=True)
class Plan:
    """The parts to start. The URLs are for processes of this machine."""

    parts: tuple[Part, ...]
    redis_url: str
    gateway_url: str
    reward_url: str
    workers: RolloutWorkers | None = None
    """None if this installation has no rollout workers."""


def configured_redis_url() -> str | None:
    """Return HEADRACE_REDIS_URL if the user has set it in the environment or in .env."""
    settings = Settings()
    if "redis_url" not in settings.model_fields_set:
        return None
    return settings.redis_url.get_secret_value()


@dataclass(frozen=True)
class Addresses:
    """The addresses on which the parts listen, and their URLs for processes of this machine."""

    redis: redis.Listening
    inner: str
    """The address of the reward service, and of a Redis with a port."""
    port: int
    """The gateway's."""
    reward_port: int
    redis_url: str
    gateway_url: str
    reward_url: str


def make_plan(
    options: UpOptions, data: Path, *, place: Place = place_here, devices: Devices = gpus_here
) -> Plan:
    """The parts to start in `data` (absolute). LaunchError for a port in use, a missing Redis or
    too few GPUs.

    `place` divides the cores between the given numbers of rollout workers and ranks. It
    returns None if a GPU does the work. `devices`: the GPUs that a process with this environment
    sees.
    """
    at = addresses(options, data)
    shared = _shared_environment(options, data, at)
    environment = shared | dict(options.environment)
    cores = place(
        options.engines if options.runs("rollout") else 0,
        options.ranks if options.runs("learner") else 0,
    )
    gpus = None if cores else _divided(options, data, devices)
    workers = RolloutWorkers(environment, cores, gpus)
    parts: list[Part] = []
    if options.runs("redis"):
        parts.append(_redis_part(at.redis, data, at.redis_url))
    if options.runs("gateway"):
        listen = ("services.gateway", "--host", options.host, "--port", str(at.port))
        parts.append(_service("gateway", listen, at.gateway_url, environment))
    if options.runs("reward"):
        listen = ("reward", "--host", at.inner, "--port", str(at.reward_port))
        placed = gpus.reward_environment() if gpus else {}
        parts.append(_service("reward", listen, at.reward_url, {**placed, **environment}))
    if options.runs("rollout"):
        engines = options.engines
        workers.refuse(engines)
        parts += [workers.part(index, engines, serving=options.serving) for index in range(engines)]
    if options.runs("learner"):
        parts.append(_learner_part(options, shared, cores, gpus))
    if not parts:
        raise LaunchError("nothing to start: every part is excluded")
    scalable = workers if "rollout" in options.parts else None
    return Plan(tuple(parts), at.redis_url, at.gateway_url, at.reward_url, scalable)


def addresses(options: UpOptions, data: Path) -> Addresses:
    """Return the addresses of the parts that are started here, and the settings' addresses of the
    others. Raises LaunchError for a port that is not free."""
    settings = Settings()
    reachable = LOOPBACK if options.host in ("0.0.0.0", "::", "") else options.host
    bracketed = f"[{reachable}]" if ":" in reachable else reachable
    # Workers on other hosts need Redis and the reward service, too.
    inner = options.host if options.redis_port is not None else LOOPBACK
    inner_url = bracketed if options.redis_port is not None else LOOPBACK
    at = redis.Listening(data / "redis", redis.socket_in(data / "redis"))
    if options.redis_port is None and at.socket is None:
        options = replace(options, redis_port=0)
    redis_port, port, reward_port = choose_ports(options, inner)
    if redis_port:
        at = replace(at, host=inner, port=redis_port, password=_redis_password(data))
    redis_url = options.redis_url or settings.redis_url.get_secret_value()
    if options.runs("redis"):
        redis_url = at.url(inner_url)
    gateway_url = f"http://{bracketed}:{port}" if options.runs("gateway") else settings.gateway_url
    reward_url = settings.reward_url
    if options.runs("reward"):
        reward_url = f"http://{inner_url}:{reward_port}"
    return Addresses(at, inner, port, reward_port, redis_url, gateway_url, reward_url)


def exports(plan: Plan, data: Path, options: UpOptions) -> dict[str, str]:
    """The variables that another terminal has to set, in whatever folder and whatever an earlier
    installation has left in it."""
    usual = Settings.model_fields["pool"].default
    return {
        "HEADRACE_GATEWAY_URL": plan.gateway_url,
        "HEADRACE_DATA": str(data),
        **({"HEADRACE_POOL": options.pool} if options.pool != usual else {}),
    }


def choose_ports(options: UpOptions, inner: str = LOOPBACK) -> tuple[int, int, int]:
    """Choose the ports of Redis, gateway and reward service. The port is 0 for a part that is not
    started here, and for a Redis without a port. `inner`: the address of Redis and reward service.
    Raises LaunchError, which names every port that is not free."""
    problems: list[str] = []
    anything = iter(free_ports(LOOPBACK, 3))
    chosen: list[int] = []
    asked = (
        ("redis", inner, options.redis_port, "--redis-port"),
        ("gateway", options.host, options.port, "--port"),
        ("reward", inner, options.reward_port, "--reward-port"),
    )
    for part, host, port, flag in asked:
        if not options.runs(part) or port is None:
            chosen.append(0)
            continue
        if port == 0:
            port = next(anything)
        try:
            require_port(host, port, flag, taken=chosen)
        except LaunchError as error:
            problems.append(str(error))
        chosen.append(port)
    if problems:
        raise LaunchError("; and ".join(problems))
    return chosen[0], chosen[1], chosen[2]


def _shared_environment(options: UpOptions, data: Path, at: Addresses) -> dict[str, str]:
    """Return the variables that all parts but Redis get."""
    shared = {
        "HEADRACE_REDIS_URL": at.redis_url,
        "HEADRACE_DATA": str(data),
        "HEADRACE_GATEWAY_URL": at.gateway_url,
        "HEADRACE_REWARD_URL": at.reward_url,
        "HEADRACE_POOL": options.pool,
    }
    if options.allow_unsafe_redis:
        shared["HEADRACE_ALLOW_UNSAFE_REDIS"] = "true"
    return shared


def _service(name: str, command: Sequence[str], url: str, environment: Mapping[str, str]) -> Part:
    return Part(
        name=name,
        argv=(sys.executable, "-m", *command),
        stage=1,
        environment=environment,
        not_ready=http_not_ready(f"{url}/readyz"),
    )


def make_keys(options: UpOptions, data: Path) -> None:
    """Make the keys that parts find in `data`, before any part starts: a worker that starts before
    the gateway would find no key, and send requests without one. Raises LaunchError."""
    settings = Settings(data=data)
    try:
        if options.runs("gateway"):
            first_key(settings)
        if options.runs("reward"):
            reward_service_key(settings)
    except (BadKeyFile, OSError) as error:
        raise LaunchError(str(error)) from None


def _redis_password(data: Path) -> str:
    try:
        return kept_key(data / REDIS_PASSWORD)
    except (BadKeyFile, OSError) as error:
        raise LaunchError(f"no password for Redis: {error}") from None


def _redis_part(at: redis.Listening, data: Path, url: str) -> Part:
    server = redis.bundled_server()
    file = redis.write_config(at)

    async def not_ready() -> str | None:
        return await redis.not_ready(url)

    return Part(
        name="redis",
        argv=(str(server), str(file)),
        stage=0,
        not_ready=not_ready,
        held_back=lambda: redis.disk_full(data),
        is_final=unreadable,
    )


def _divided(options: UpOptions, data: Path, devices: Devices) -> GPUPlan | None:
    """Divide the GPUs if workers may be started here. A learner by itself has all GPUs."""
    if "rollout" not in options.parts:
        return None
    settings = UpGPUSettings()
    if not options.runs("reward"):
        settings.reward_models = []
    visible = devices({**os.environ, **options.environment})
    ranks = options.ranks if options.runs("learner") else 0
    return plan_gpus(visible, ranks, options.engines, settings, data / "gpu-locks")


def _learner_part(
    options: UpOptions,
    shared: dict[str, str],
    cores: CorePlan | None,
    gpus: GPUPlan | None,
) -> Part:
    placed = cores.learner_environment() if cores else {}
    visible = gpus.learner_environment() if gpus else {}
    return Part(
        name="learner",
        argv=(sys.executable, "-m", "learner", "--ranks", str(options.ranks)),
        stage=2,
        environment=shared | _unless_set(placed) | dict(options.environment) | visible,
    )


def _unless_set(placed: dict[str, str]) -> dict[str, str]:
    """Return the variables of the core placement without those that the user has set."""
    return {name: value for name, value in placed.items() if name not in os.environ}
