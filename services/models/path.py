"""Resolves `model.path`: a folder, a hub name (org/name), `run:RUN` for the result of a run, or
`run:RUN@STEP` for its checkpoint of that step."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from headrace.config_keys import CRITIC, MODEL_PATHS, POLICY, REFERENCE, text_at, value_at
from headrace.wording import predicate
from services.contracts.records import RunRecord, RunSummary
from services.contracts.weights import ADAPTER_CONFIG
from services.models.errors import UnusableFolder
from services.models.folder import ModelFolder, check_folder

PREFIX = "run:"


STEP = re.compile(r"@(\d{1,12})$")


def run_named(path: str) -> str | None:
    """Return RUN of `run:RUN` or `run:RUN@STEP`, as it was written; None for a folder or a hub
    name."""
    return STEP.sub("", path.removeprefix(PREFIX)) if path.startswith(PREFIX) else None


def step_named(path: str) -> int | None:
    """Return STEP of `run:RUN@STEP`, or None."""
    match = STEP.search(path) if path.startswith(PREFIX) else None
    return int(match[1]) if match else None


def starts_from(config: dict[str, Any]) -> set[str]:
    """Return the ids of the runs whose models a stored run's config names (`MODEL_PATHS`)."""
    named = [run_named(path) for path in _model_paths(config)]
    return {run for run in named if run is not None}


def needed_runs(record: RunRecord) -> set[str]:
    """Return the runs of `starts_from` whose models a new run needs to begin."""
    # An evaluation of a model continues from its answers, and has no checkpoint.
    goes_on = record.resume_from is not None and record.max_steps != 0
    named = [run_named(path) for path in _model_paths(record.config, goes_on)]
    return {run for run in named if run is not None}


def needs_start(config: dict[str, Any]) -> bool:
    """Return whether a run that continues from its checkpoint also needs the model of its first
    step: as the reference of a KL, or of a comparison of two answers."""
    # With adapters the reference is the policy without them.
    if value_at(config, "model.lora") or text_at(config, REFERENCE) is not None:
        return False
    kl = value_at(config, "algorithm.kl.type") or "none"
    return kl != "none" or value_at(config, "objective.type") == "dpo"


def named_steps(config: dict[str, Any]) -> set[tuple[str, int]]:
    """Return (run, step) of the checkpoints that such a config names by their steps."""
    paths = [(run_named(path), step_named(path)) for path in _model_paths(config)]
    return {(run, step) for run, step in paths if run is not None and step is not None}


def _model_paths(config: dict[str, Any], goes_on: bool = False) -> list[str]:
    """Return the paths of models in a config. `goes_on` limits them to models that a run needs
    which continues from a checkpoint."""
    # The checkpoint has the policy and the critic.
    here = {CRITIC, *(() if needs_start(config) else (POLICY,))} if goes_on else set()
    paths = [text_at(config, key) for key in MODEL_PATHS if key not in here]
    return [path for path in paths if path is not None]


def begins_after(run: RunSummary, before: RunSummary) -> int:
    """The last step that `run` has from `before`, the resumed run."""
    return before.committed_step if run.resume_step is None else run.resume_step


async def run_with_step(
    run: RunRecord, step: int | None, get: Callable[[str], Awaitable[RunRecord | None]]
) -> RunRecord:
    """Return the run that trained `step` of `run`: a resumed run has only the steps since. `get`
    finds a run by its id. Without a step, return `run`, which has the current checkpoint."""
    while step is not None and run.resume_from is not None:
        before = await get(run.resume_from)
        if before is None or before.damage or step > begins_after(run, before):
            break
        run = before
    return run


def checkpoint_of(run: RunRecord, root: Path, step: int | None = None) -> str:
    """Return the run's current checkpoint, or that of `step`, relative to the data volume `root`.
    Raises ValueError if the run has no checkpoint, or none of `step`. Whether the files of the
    current one are there is not looked at."""
    if run.checkpoint is None:
        raise ValueError(f"run {run.name} ({run.id}) {predicate(run.state)} and has no checkpoint")
    if step is None or step == run.committed_step:
        return run.checkpoint
    folder = Path(run.checkpoint).parent
    # A crash may have left an older checkpoint of the same step.
    checkpoints = sorted(
        (root / folder).glob(f"step-{step:06d}-*"), key=lambda path: path.stat().st_mtime
    )
    if not checkpoints:
        kept = kept_in_words(root, root / folder, run.resume_from, run.resume_step)
        raise ValueError(
            f"run {run.name} ({run.id}) has no checkpoint of step {step}; it has those of "
            f"{kept}: raise training.keep_checkpoints to keep more"
        )
    return str(folder / checkpoints[-1].name)


def kept_in_words(root: Path, folder: Path, resumed: str | None, resume_step: int | None) -> str:
    """List the steps whose checkpoints are in the `folder` of a run, and those of the run that it
    resumed, up to that step. `root`: the data volume."""
    kept_here = ", ".join(map(str, _steps(folder))) or "none"
    before = _steps(root / "runs" / resumed / "checkpoints") if resumed else []
    taken = [str(step) for step in before if resume_step is None or step <= resume_step]
    if not taken:
        return kept_here
    return f"{kept_here}, and run {resumed}, which it continues, those of {', '.join(taken)}"


def _steps(folder: Path) -> list[int]:
    return sorted({int(path.name.split("-")[1]) for path in folder.glob("step-*-*")})


class CheckedModel(NamedTuple):
    """The model at `model.path`, checked."""

    named: ModelFolder
    """The folder at the path."""
    weights: ModelFolder | None
    """The same folder; for a LoRA adapter its base, or None if the base is a hub name."""
    base: str | None
    """The adapter's name for its base; None for a whole model."""


def check_model(folder: Path) -> CheckedModel:
    """Check the model in `folder`, and for an adapter the base too. Raises UnusableFolder."""
    named = check_folder(folder)
    if named.adapter is None:
        return CheckedModel(named, named, None)
    base = base_of(named)
    return CheckedModel(named, check_base(Path(base)) if Path(base).is_dir() else None, base)


def check_base(folder: Path) -> ModelFolder:
    """Check the base of an adapter. Raises UnusableFolder."""
    adapter = check_folder(folder)
    if adapter.adapter is not None:
        raise UnusableFolder(
            f"the adapter's base {folder} is an adapter itself: merge that one into its base first"
        )
    return adapter


def base_of(model: ModelFolder) -> str:
    """Return the model, a folder or a hub name, that a LoRA adapter was trained on. Raises
    UnusableFolder for an adapter without a base."""
    # A run's checkpoint is in the same folder as its model, wherever the data volume is mounted
    # now.
    recorded = model.path.parent.parent / "model"
    if (recorded / "config.json").is_file():
        return str(recorded)
    base = (model.adapter or {}).get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        raise UnusableFolder(
            f"{model.path / ADAPTER_CONFIG} does not say which model it is for "
            "(base_model_name_or_path)"
        )
    return base
