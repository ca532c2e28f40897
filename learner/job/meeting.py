"""The ranks of a job meet in torch's TCPStore, and hear whether they fit together.

Rank 0 opens the store on the address of MASTER_ADDR alone, unless torchrun has opened a store. The
store exchanges bytes and unpickles nothing. Each rank says what it is. Rank 0 compares, and tells
all ranks the same verdict, so no rank waits for a rank that has given up.
"""

import fcntl
import hashlib
import os
import socket
import struct
import threading
import time
from collections import Counter
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from learner.job.variables import JobError, JobRank, RanksMissing

MEET_SECONDS = 40.0
"""Seconds that a rank waits for the others."""
POLL_SECONDS = 0.05
USUAL_WAIT = timedelta(minutes=30)
SIOCGIFADDR = 0x8915
"""netdevice(7)"""


class Hello(msgspec.Struct):
    """A rank's description of itself."""

    host: str
    size: int
    version: str
    pool: str
    device: str
    problem: str = ""


class MeetingResult(msgspec.Struct):
    """Rank 0's verdict on all ranks."""

    problem: str
    is_missing: bool
    """Whether ranks are missing, which may come at the next start."""
    local_sizes: dict[str, int]
    """Number of ranks by host."""


def meet(job: JobRank, pool: str, stop: threading.Event) -> Store:
    """Wait for all ranks, and return their store. Sets the variables of the job that the engine has
    left out. Raises JobError."""
    deadline = time.monotonic() + MEET_SECONDS
    hello = described(job, pool)
    store = PrefixStore(f"headrace/{job.start}", _opened(job, deadline, stop))
    try:
        if store.add(f"ranks/{job.rank}", 1) > 1:
            raise JobError(f"two processes of this job have RANK {job.rank}: each needs its own")
        store.set(f"hello/{job.rank}", msgspec.json.encode(hello).decode())
        if job.rank == 0:
            verdict = _verdict(store, job, deadline, stop)
            store.set("verdict", msgspec.json.encode(verdict).decode())
            if verdict.problem:
                # The store ends with this process: the others need to read the verdict first.
                _waits_for(store, ["heard"], time.monotonic() + 2, stop)
        else:
            # Rank 0 may have come later by as much as it waits.
            if not _waits_for(store, ["verdict"], deadline + MEET_SECONDS / 4, stop):
                raise RanksMissing(f"rank 0 does not answer at {_place(job)}: its log says why")
            verdict = msgspec.json.decode(store.get("verdict"), type=MeetingResult)
            if store.add("hearing", 1) == job.size - 1:
                store.set("heard", "")
    except dist.DistError as error:
        raise RanksMissing(f"the ranks' store at {_place(job)} is gone: {error}") from None
    if verdict.problem:
        raise (RanksMissing if verdict.is_missing else JobError)(verdict.problem)
    os.environ.setdefault("LOCAL_WORLD_SIZE", str(verdict.local_sizes[hello.host]))
    store.set_timeout(USUAL_WAIT)
    return store


def described(job: JobRank, pool: str) -> Hello:
    """Describe this rank."""
    problem, gpus = "", torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus == 1:
        # Slurm shows each task its own GPU alone (--gpus-per-task).
        os.environ["LOCAL_RANK"] = "0"
    elif gpus and job.local >= gpus:
        problem = (
            f"LOCAL_RANK is {job.local}, and this process sees {gpus} GPUs: start as many ranks on "
            "a host as it has GPUs"
        )
    device = "cuda" if gpus else "cpu"
    return Hello(socket.gethostname(), job.size, code_version(), pool, device, problem)


def code_version() -> str:
    """Return the version of Headrace with a fingerprint of its code, and the version of torch."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for package in ("learner", "services"):
        for file in sorted((root / package).rglob("*.py")):
            digest.update(f"{file.relative_to(root)}\n".encode() + file.read_bytes())
    return f"{version('headrace')} (code {digest.hexdigest()[:10]}, torch {torch.__version__})"


def misfit(first: Hello, rank: int, other: Hello) -> str:
    """Say why rank `rank` cannot train with rank 0, or return ''."""
    if other.problem:
        return f"rank {rank} on {other.host}: {other.problem}"
    ours, theirs = f"at rank 0 ({first.host})", f"at rank {rank} ({other.host})"
    if other.size != first.size:
        return (
            f"WORLD_SIZE is {first.size} {ours} and {other.size} {theirs}: start all hosts with "
            "the same numbers of hosts and ranks"
        )
    if other.version != first.version:
        return (
            f"Headrace is {first.version} {ours} and {other.version} {theirs}: install the same "
            "version on all hosts"
        )
    if other.pool != first.pool:
        return (
            f"the pool is {first.pool!r} {ours} and {other.pool!r} {theirs}: set HEADRACE_POOL to "
            "the same on all hosts"
        )
    if other.device != first.device:
        return (
            f"torch computes on {first.device} {ours} and on {other.device} {theirs}: all ranks "
            "need a GPU, or none"
        )
    return ""


def _verdict(store: Store, job: JobRank, deadline: float, stop: threading.Event) -> MeetingResult:
    """Wait for all ranks and compare them. A rank that does not fit ends the wait."""
    hellos: dict[int, Hello] = {}
    while True:
        for rank in range(job.size):
            if rank not in hellos and store.check([f"hello/{rank}"]):
                text = store.get(f"hello/{rank}")
                hellos[rank] = msgspec.json.decode(text, type=Hello)
                if problem := misfit(hellos[0], rank, hellos[rank]):
                    return MeetingResult(problem, False, {})
        if len(hellos) == job.size:
            return MeetingResult("", False, Counter(hello.host for hello in hellos.values()))
        if time.monotonic() > deadline or stop.wait(POLL_SECONDS):
            missing = ", ".join(str(rank) for rank in range(job.size) if rank not in hellos)
            return MeetingResult(
                f"ranks {missing} of WORLD_SIZE {job.size} did not come to {_place(job)} within "
                f"{MEET_SECONDS:.0f} s: see their logs, and whether their hosts reach this address",
                True,
                {},
            )


def _waits_for(store: Store, keys: list[str], deadline: float, stop: threading.Event) -> bool:
    while not store.check(keys):
        if time.monotonic() > deadline or stop.wait(POLL_SECONDS):
            return False
    return True


def _place(job: JobRank) -> str:
    return f"MASTER_ADDR {job.address}, MASTER_PORT {job.port}"


def _opened(job: JobRank, deadline: float, stop: threading.Event) -> Store:
    """Open the store as rank 0, else connect to it."""
    address = _resolved(job, deadline, stop)
    if (name := interface_towards(address)) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
    is_master = job.rank == 0 and not job.agent
    descriptor = _listening(job, address) if is_master else None
    # torch would print the stack of each try, and wait twice as long.
    if not is_master and not _answers(address, job.port, deadline, stop):
        raise _nobody(job)
    try:
        return TCPStore(
            address,
            job.port,
            is_master=is_master,
            timeout=timedelta(seconds=max(deadline - time.monotonic(), 1)),
            wait_for_workers=False,
            master_listen_fd=descriptor,
        )
    except dist.DistError:
        raise _nobody(job) from None


def _nobody(job: JobRank) -> RanksMissing:
    return RanksMissing(
        f"nobody answers at {_place(job)}: start rank 0 on that host, and see that this host "
        "reaches the port"
    )


def _answers(address: str, port: int, deadline: float, stop: threading.Event) -> bool:
    """Wait until somebody listens there. Return False if nobody does before `deadline`."""
    while True:
        try:
            socket.create_connection((address, port), 2).close()
        except OSError:
            if time.monotonic() > deadline or stop.wait(POLL_SECONDS):
                return False
        else:
            return True


def _resolved(job: JobRank, deadline: float, stop: threading.Event) -> str:
    """Return the IP address of MASTER_ADDR. A host that starts at the same time may have no name
    yet."""
    while True:
        try:
            addresses = socket.getaddrinfo(job.address, job.port, type=socket.SOCK_STREAM)
            return str(addresses[0][4][0])
        except (OSError, UnicodeError) as error:
            if time.monotonic() > deadline or stop.wait(1):
                raise RanksMissing(
                    f"MASTER_ADDR is {job.address!r}, and no host has that name ({error}): name "
                    "the host of rank 0"
                ) from None


def _listening(job: JobRank, address: str) -> int:
    """Return a socket that listens on `address` alone, for the store to keep."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, job.port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise JobError(
            f"rank 0 cannot listen at {_place(job)} ({address}): {error.strerror}. MASTER_ADDR is "
            "an address of the host of rank 0, with a port that is free there"
        ) from None
    return listener.detach()


def interface_towards(address: str) -> str | None:
    """Return the network interface with which this host reaches an IPv4 address, or None."""
    if ":" in address:
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            ours = socket.inet_aton(probe.getsockname()[0])
            if ours[0] == 127:
                return "lo"
            for _, name in socket.if_nameindex():
                try:
                    answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
                except OSError:
                    continue
                if answer[20:24] == ours:
                    return name
    except OSError:
        pass
    return None
