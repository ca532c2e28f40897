"""What `model.path` says: a folder, a hub name (org/name), or `run:RUN` for what that run made."""

from pathlib import Path

from services.contracts.records import RunRecord
from services.volume import Volume

PREFIX = "run:"


def run_named(path: str) -> str | None:
    """RUN of `run:RUN`, as it was written; None for a folder or a hub name."""
    return path.removeprefix(PREFIX) if path.startswith(PREFIX) else None


def made_by(run: RunRecord, volume: Volume) -> Path:
    """The folder of the run's current checkpoint. Raises ValueError where it has none."""
    if run.checkpoint is None:
        raise ValueError(f"run {run.name} ({run.id}) is {run.state} and has no checkpoint")
    return volume.path(run.checkpoint)
