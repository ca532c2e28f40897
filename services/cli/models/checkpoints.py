"""The checkpoint of a run that a user names, on this machine's data volume."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.cli.options import data_folder, folder_source
from services.cli.output import FINAL, CliError

if TYPE_CHECKING:
    from services.cli.client import Gateway


def run_with_step(api: "Gateway", record: dict[str, Any], step: int | None) -> dict[str, Any]:
    """The run that trained `step` of `record`'s: a run that resumes another has only the steps
    since."""
    while step is not None and record["resume_from"] is not None:
        before: dict[str, Any] = api.get(f"/v1/runs/{record['resume_from']}")
        if step > before["committed_step"]:
            break
        record = before
    return record


def checkpoint_of(record: dict[str, Any], data: Path | None, step: int | None = None) -> Path:
    """The folder of the run's current checkpoint, or that of `step`. Raises CliError if it is
    missing or damaged."""
    source, data = folder_source(data), data_folder(data)
    if record["checkpoint"] is None:
        yet = "" if record["state"] in FINAL else " yet"
        raise CliError(
            f"run {record['name']} ({record['id']}) is {record['state']} and has no checkpoint{yet}"
        )
    path = data / str(record["checkpoint"])
    if not path.is_dir():
        raise CliError(
            f"the checkpoint {record['checkpoint']} is not in {data}{source}: name the data folder "
            "with --data or HEADRACE_DATA"
        )
    if step is None:
        return _whole(path)
    # A crash may have left one of the same step that was written earlier.
    checkpoints = sorted(
        path.parent.glob(f"step-{step:06d}-*"), key=lambda folder: folder.stat().st_mtime
    )
    if not checkpoints:
        kept = sorted({int(folder.name.split("-")[1]) for folder in path.parent.glob("step-*-*")})
        raise CliError(
            f"run {record['name']} ({record['id']}) has no checkpoint of step {step}; it has those "
            f"of {', '.join(map(str, kept))}: raise training.keep_checkpoints to keep more"
        )
    return _whole(checkpoints[-1])


def _whole(checkpoint: Path) -> Path:
    # It brings httpx, which other commands do not need.
    from services.volume.checkpoint import damage

    if problem := damage(checkpoint):
        raise CliError(f"{problem}: name an earlier step with RUN@STEP")
    return checkpoint
