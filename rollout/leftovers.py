"""What workers that are gone have left on a machine, and nobody else removes."""

from collections.abc import Collection
from pathlib import Path

LOGS_KEPT = 10
"""Logs of workers that are gone: why the last ones ended can still be read."""


def log_of(folder: Path, worker: str) -> Path:
    """Where the vLLM of a worker writes its log, in the folder of all logs."""
    return folder / f"vllm-{worker}.log"


def forget_logs(folder: Path, living: Collection[str]) -> None:
    """Delete the logs of vLLMs of workers that are not among `living`, but for the newest."""
    kept = {log_of(folder, worker) for worker in living}
    left = [path for path in folder.glob(log_of(folder, "*").name) if path not in kept]
    for path in sorted(left, key=_written, reverse=True)[LOGS_KEPT:]:
        for name in (path.name, f"{path.name}.1"):
            path.with_name(name).unlink(missing_ok=True)


def _written(path: Path) -> float:
    """When it was last written to; another worker may be deleting the same."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
