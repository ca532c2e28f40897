"""What `model.path` says: a folder, a hub name (org/name), or `run:RUN` for what that run made."""

import json
from pathlib import Path
from typing import Any

from services.contracts.records import RunRecord
from services.contracts.weights import ADAPTER_CONFIG

PREFIX = "run:"


def run_named(path: str) -> str | None:
    """RUN of `run:RUN`, as it was written; None for a folder or a hub name."""
    return path.removeprefix(PREFIX) if path.startswith(PREFIX) else None


def starts_from(config: dict[str, Any]) -> set[str]:
    """Ids of the runs whose models the config of a run in the store names: its policy's, and its
    critic's."""
    critic = (config.get("algorithm") or {}).get("critic")
    models = [config.get("model"), critic]
    paths = [model.get("path") for model in models if isinstance(model, dict)]
    named = [run_named(path) for path in paths if isinstance(path, str)]
    return {run for run in named if run is not None}


def checkpoint_of(run: RunRecord) -> str:
    """The run's current checkpoint, relative to the data volume. Raises ValueError without one."""
    if run.checkpoint is None:
        raise ValueError(f"run {run.name} ({run.id}) is {run.state} and has no checkpoint")
    return run.checkpoint


def base_of(folder: Path) -> str | None:
    """The model, a folder or a hub name, that the LoRA adapter in `folder` was trained beside; None
    where no adapter is there. Raises ValueError for one that names none."""
    config = folder / ADAPTER_CONFIG
    if not config.is_file():
        return None
    # A run's checkpoint stands beside its model, wherever the data volume is mounted by now.
    own = folder.parent.parent / "model"
    if (own / "config.json").is_file():
        return str(own)
    try:
        base = json.loads(config.read_text())["base_model_name_or_path"]
    except (KeyError, TypeError, ValueError):
        base = None
    if not base:
        raise ValueError(f"{config} does not say which model it is for (base_model_name_or_path)")
    return str(base)
