"""Checks before the ranks take the pool: their clocks agree, and they share the data folder."""

import secrets
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from learner.distributed import Ranks
from learner.job.variables import JobError
from services.contracts.devices import GPUDevice

CLOCK_SECONDS = 10.0
"""The most that clocks may be apart: the ages of groups and the times of files are compared."""
SHARE_SECONDS = 3.0
"""Seconds until a file of one host is seen on the others."""


def check_hosts(ranks: Ranks, root: Path, gpus: list[GPUDevice]) -> None:
    """Compare the hosts of all ranks. Raises JobError on all ranks, with the same message."""
    _check_gpus(gpus)
    _check_clocks(ranks, time.time)
    _check_folder(ranks, root, socket.gethostname())


def _check_gpus(gpus: list[GPUDevice]) -> None:
    for index, gpu in enumerate(gpus):
        if gpu.uuid in [other.uuid for other in gpus[:index]]:
            raise JobError(
                f"two ranks have the GPU {gpu.uuid}: start as many ranks on a host as it has GPUs, "
                "and give each its LOCAL_RANK"
            )


def _check_clocks(ranks: Ranks, now: Callable[[], float]) -> None:
    # All ranks leave this exchange at nearly the same moment.
    ranks.gather(b"")
    times = []
    for message in ranks.gather(f"{now()} {socket.gethostname()}".encode()):
        seconds, _, host = message.decode().partition(" ")
        times.append((float(seconds), host))
    (early, behind), (late, ahead) = min(times), max(times)
    if late - early > CLOCK_SECONDS:
        raise JobError(
            f"the clock of {ahead} is {late - early:.0f} s ahead of the clock of {behind}: set "
            "them by NTP (chrony, systemd-timesyncd) on all hosts"
        )


def _check_folder(ranks: Ranks, root: Path, host: str) -> None:
    """Have rank 0 make a folder in the data folder, and every rank write a file there."""
    folder, failure = root / f".ranks-{secrets.token_hex(8)}", ""
    if ranks.first:
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            failure = f"{host} cannot write to HEADRACE_DATA {root}: {error.strerror}"
    message = ranks.gather(f"{folder.name} {host}".encode())[0].decode()
    name, _, first_host = message.partition(" ")
    try:
        if not ranks.first:
            failure = _unshared(root / name / str(ranks.rank), root, host, first_host)
        failures = [text.decode() for text in ranks.gather(failure.encode())]
    finally:
        if ranks.first:
            shutil.rmtree(folder, ignore_errors=True)
    if problem := next(filter(None, failures), ""):
        raise JobError(problem)


def _unshared(file: Path, root: Path, host: str, first_host: str) -> str:
    """Write a file into rank 0's folder. Say why that fails, or return ''."""
    deadline = time.monotonic() + SHARE_SECONDS
    while True:
        # A network file system may show a new folder late.
        with suppress(FileNotFoundError):
            try:
                file.write_bytes(b"")
                return ""
            except PermissionError as error:
                return f"{host} cannot write to HEADRACE_DATA {root}: {error.strerror}"
        if time.monotonic() > deadline:
            return (
                f"HEADRACE_DATA {root.absolute()} on {host} is not the folder that rank 0 has "
                f"on {first_host}: all hosts of a learner need to share one data folder"
            )
        time.sleep(0.1)
