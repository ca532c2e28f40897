"""The processes of an installation that a kill may hit, by their part, and the files of weights
that a disk may damage."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import httpx

from services.launch import Stack


def children(parent: int) -> list[int]:
    """The living processes that `parent` has started itself."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name, the second field, may hold any character; what follows its bracket is
            # the state and the parent (proc(5)).
            state, above = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(above) == parent and state != "Z":
            found.append(int(entry.name))
    return sorted(found)


def descendants(parent: int) -> Iterator[int]:
    """Children, and theirs."""
    for child in children(parent):
        yield child
        yield from descendants(child)


def part(name: str) -> Callable[[Stack], list[int]]:
    """The process of a part, or of all parts called `name`-0, -1, …"""
    return lambda stack: [
        pid for one, pid in stack.processes.items() if one.partition("-")[0] == name
    ]


def vllm(stack: Stack) -> list[int]:
    """Return the children of rollout workers: the server, and with a real vLLM its engine."""
    return [pid for worker in part("rollout")(stack) for pid in descendants(worker)]


def that_can_hang(stack: Stack) -> list[int]:
    """Return the processes that vLLM needs while it serves, without Python's tracker of shared
    memory, which works at the end."""
    return [pid for pid in vllm(stack) if "resource_tracker" not in command_line(pid)]


def command_line(pid: int) -> str:
    """The arguments of a process, each with a zero byte behind it; empty of one that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def ranks(stack: Stack) -> list[int]:
    return [pid for supervisor in part("learner")(stack) for pid in descendants(supervisor)]


def updating(stack: Stack) -> list[int]:
    """Return the processes of a vLLM server that is paused for new weights at this moment."""
    for worker in part("rollout")(stack):
        for server in children(worker):
            try:
                command = command_line(server).split("\0")
                socket = command[command.index("--uds") + 1]
                with httpx.Client(
                    transport=httpx.HTTPTransport(verify=False, uds=socket), timeout=5
                ) as http:
                    paused = http.get("http://vllm/is_paused").json()["is_paused"]
                if paused:
                    return [server, *descendants(server)]
            except (OSError, ValueError, httpx.HTTPError):
                continue
    return []


VICTIMS: dict[str, Callable[[Stack], list[int]]] = {
    "rollout worker": part("rollout"),
    "vLLM": vllm,
    "vLLM in a weight update": updating,
    "reward service": part("reward"),
    "learner rank": ranks,
    "rank supervisor": part("learner"),
    "gateway": part("gateway"),
    "Redis": part("redis"),
}


def kill(stack: Stack, victim: str, chance: Random, over: Callable[[], bool]) -> str:
    """Send SIGKILL to one process of this part as soon as it exists, and describe the kill.
    Raises AssertionError if `over()` comes first. `over` is called only while no such process
    exists: it may wait for a gateway that was just killed, while the run goes on to its end."""
    between = threading.Event()
    while True:
        stack.check()
        if found := VICTIMS[victim](stack):
            pid = chance.choice(found)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return f"{victim} (pid {pid})"
        if over():
            raise AssertionError(f"the run was over before there was a {victim} to kill")
        between.wait(0.005)


def damage(weights: Path, delta: bool, cut: bool, chance: Random) -> str:
    """Change a byte of the newest file of a run's weights, a delta or a whole version, or `cut` it
    short, as a disk may. Describe the damage."""
    pattern = "v*.delta.safetensors" if delta else "v??????-??????.safetensors"
    between = threading.Event()
    while not (found := sorted(weights.glob(pattern))):
        between.wait(0.05)
    path = found[-1]
    size = path.stat().st_size
    with path.open("r+b") as file:
        if cut:
            file.truncate(size - 1)
        else:
            # A byte of the values: only a checksum can detect the change.
            file.seek(place := size - 1 - chance.randrange(min(size // 2, 64)))
            (value,) = file.read(1)
            file.seek(place)
            file.write(bytes([value ^ 4]))
    return f"{path.name} {'is cut short' if cut else 'has another byte'}"
