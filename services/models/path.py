"""What `model.path` says: a folder, a hub name (org/name), `run:RUN` for what that run made, or
`run:RUN@STEP` for its checkpoint of that step."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from services.contracts.model_paths import CRITIC, MODEL_PATHS, POLICY, REFERENCE, path_at
from services.contracts.records import RunRecord
from services.contracts.weights import ADAPTER_CONFIG
from services.models.errors import UnusableFolder
from services.models.folder import ModelFolder, check_folder

PREFIX = "run:"


STEP = re.compile(r"@(\d{1,12})$")


def run_named(path: str) -> str | None:
    """RUN of `run:RUN` or `run:RUN@STEP`, as it was written; None for a folder or a hub name."""
    return STEP.sub("", path.removeprefix(PREFIX)) if path.startswith(PREFIX) else None


def step_named(path: str) -> int | None:
    """STEP of `run:RUN@STEP`."""
    found = STEP.search(path) if path.startswith(PREFIX) else None
    return int(found[1]) if found else None


def starts_from(config: dict[str, Any]) -> set[str]:
    """Ids of the runs whose models the config of a run in the store names (`MODEL_PATHS`)."""
    named = [run_named(path) for path in _model_paths(config)]
    return {run for run in named if run is not None}


def needed_runs(record: RunRecord) -> set[str]:
    """Of `starts_from`, the runs without whose models a new run cannot begin."""
    # An evaluation of a model goes on from its answers, and has no checkpoint.
    goes_on = record.resume_from is not None and record.max_steps != 0
    named = [run_named(path) for path in _model_paths(record.config, goes_on)]
    return {run for run in named if run is not None}


def needs_start(config: dict[str, Any]) -> bool:
    """Whether a run that goes on from its checkpoint needs also the model that its first step
    started from: as the reference of a KL, or of a comparison of two answers."""
    model, algorithm, objective = (config.get(key) for key in ("model", "algorithm", "objective"))
    if isinstance(model, dict) and model.get("lora"):
        # The reference is the policy without its adapters.
        return False
    if path_at(config, REFERENCE) is not None:
        return False
    kl = algorithm.get("kl") if isinstance(algorithm, dict) else None
    compares = isinstance(objective, dict) and objective.get("type") == "dpo"
    return compares or (isinstance(kl, dict) and kl.get("type", "none") != "none")


def named_steps(config: dict[str, Any]) -> set[tuple[str, int]]:
    """(run, step) of the checkpoints that such a config names by their steps."""
    paths = [(run_named(path), step_named(path)) for path in _model_paths(config)]
    return {(run, step) for run, step in paths if run is not None and step is not None}


def _model_paths(config: dict[str, Any], goes_on: bool = False) -> list[str]:
    """`goes_on`: only of the models that a run needs which goes on from a checkpoint."""
    # The checkpoint has the policy and the critic.
    here = {CRITIC, *(() if needs_start(config) else (POLICY,))} if goes_on else set()
    paths = [path_at(config, key) for key in MODEL_PATHS if key not in here]
    return [path for path in paths if path is not None]


async def run_with_step(
    run: RunRecord, step: int | None, get: Callable[[str], Awaitable[RunRecord | None]]
) -> RunRecord:
    """The run that trained `step` of `run`: a run that resumes another has only the steps since.
    `get` finds a run by its id. None: the current checkpoint, which is the run's own."""
    while step is not None and run.resume_from is not None:
        before = await get(run.resume_from)
        if before is None or before.damage or step > before.committed_step:
            break
        run = before
    return run


def checkpoint_of(run: RunRecord, root: Path, step: int | None = None) -> str:
    """The run's current checkpoint, or that of `step`, relative to the data volume `root`. Raises
    ValueError without one."""
    if run.checkpoint is None:
        raise ValueError(f"run {run.name} ({run.id}) is {run.state} and has no checkpoint")
    if step is None or step == run.committed_step:
        return run.checkpoint
    folder = Path(run.checkpoint).parent
    # A crash may have left one of the same step that was written earlier.
    found = sorted(
        (root / folder).glob(f"step-{step:06d}-*"), key=lambda path: path.stat().st_mtime
    )
    if not found:
        kept = sorted({int(path.name.split("-")[1]) for path in (root / folder).glob("step-*")})
        raise ValueError(
            f"run {run.name} ({run.id}) has no checkpoint of step {step}; it has those of "
            f"{', '.join(map(str, kept)) or 'none'}: raise training.keep_checkpoints to keep more"
        )
    return str(folder / found[-1].name)


class CheckedModel(NamedTuple):
    """What `model.path` leads to."""

    named: ModelFolder
    """The folder itself."""
    weights: ModelFolder | None
    """The same; for a LoRA adapter its base, or None where that is a hub name."""
    base: str | None
    """What the adapter names as its base; None for a whole model."""


def check_model(folder: Path) -> CheckedModel:
    """The model in `folder`, and for an adapter the base, both checked. Raises UnusableFolder."""
    named = check_folder(folder)
    if named.adapter is None:
        return CheckedModel(named, named, None)
    base = base_of(named)
    return CheckedModel(named, check_base(Path(base)) if Path(base).is_dir() else None, base)


def check_base(folder: Path) -> ModelFolder:
    """The base of an adapter, checked. Raises UnusableFolder."""
    found = check_folder(folder)
    if found.adapter is not None:
        raise UnusableFolder(
            f"the adapter's base {folder} is an adapter itself: merge that one into its base first"
        )
    return found


def base_of(found: ModelFolder) -> str:
    """The model, a folder or a hub name, that a LoRA adapter was trained beside. Raises
    UnusableFolder for an adapter that names none."""
    # A run's checkpoint stands beside its model, wherever the data volume is mounted by now.
    own = found.path.parent.parent / "model"
    if (own / "config.json").is_file():
        return str(own)
    base = (found.adapter or {}).get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        raise UnusableFolder(
            f"{found.path / ADAPTER_CONFIG} does not say which model it is for "
            "(base_model_name_or_path)"
        )
    return base
