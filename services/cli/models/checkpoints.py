"""The checkpoint of a run that a user names, on this machine's data volume."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.options import data_folder, folder_source
from headrace.cli.output import FINAL, CliError
from headrace.wording import counted, predicate

if TYPE_CHECKING:
    from headrace.cli.client import Gateway


def run_with_step(api: "Gateway", record: dict[str, Any], step: int | None) -> dict[str, Any]:
    """Return the run that trained `step`: `record`'s run, or an earlier run that it resumes. A
    resumed run has only the later steps."""
    while step is not None and record["resume_from"] is not None:
        before: dict[str, Any] = api.get(f"/v1/runs/{record['resume_from']}")
        began = record.get("resume_step")
        if step > (before["committed_step"] if began is None else began):
            break
        record = before
    return record


def checkpoint_of(record: dict[str, Any], data: Path | None, step: int | None = None) -> Path:
    """Return the folder of the run's current checkpoint, or of the checkpoint of `step`. Raises
    CliError if it is missing or damaged."""
    source, data = folder_source(data), data_folder(data)
    if record["checkpoint"] is None:
        yet = "" if record["state"] in FINAL else f" yet{_next_checkpoint(record)}"
        raise CliError(
            f"run {record['name']} ({record['id']}) {predicate(record['state'])} and has no "
            f"checkpoint{yet}"
        )
    path = data / str(record["checkpoint"])
    if not path.is_dir():
        raise CliError(
            f"the checkpoint {record['checkpoint']} is not in {data}{source}: name the data folder "
            "with --data or HEADRACE_DATA"
        )
    if step is None:
        return _whole(path, record["id"])
    # A crash may have left one of the same step that was written earlier.
    checkpoints = sorted(
        path.parent.glob(f"step-{step:06d}-*"), key=lambda folder: folder.stat().st_mtime
    )
    if not checkpoints:
        from services.models.path import kept_in_words

        resumed = record.get("resume_from"), record.get("resume_step")
        raise CliError(
            f"run {record['name']} ({record['id']}) has no checkpoint of step {step}; it has those "
            f"of {kept_in_words(data, path.parent, *resumed)}: raise training.keep_checkpoints to "
            "keep more"
        )
    return _whole(checkpoints[-1], record["id"])


def _next_checkpoint(record: dict[str, Any]) -> str:
    """Say when a run that is not over makes its first checkpoint."""
    every = record["config"]["training"]["checkpoint_every"]
    return (
        f": it makes one every {counted(every, 'step')} (training.checkpoint_every) and at its "
        "end, also if `headrace cancel` ends it"
    )


def _whole(checkpoint: Path, run: str) -> Path:
    """Return `checkpoint`. If it is damaged, raise CliError with the name of the newest undamaged
    checkpoint."""
    # It brings httpx, which other commands do not need.
    from services.volume.checkpoint import damage, others

    problem = damage(checkpoint)
    if problem is None:
        return checkpoint
    whole = next((step for step, path in others(checkpoint) if damage(path) is None), None)
    if whole is None:
        raise CliError(f"{problem}, and the run has no other checkpoint that is whole")
    raise CliError(f"{problem}. The newest whole one is that of step {whole}: name {run}@{whole}")
