"""Find the checkpoint that a run resumes from: its current one, or an earlier one if that is
damaged."""

import errno
import shutil
from contextlib import suppress
from pathlib import Path

from learner.checkpoints.checkpoint_reader import UnusableCheckpoint, verify
from learner.distributed import Ranks
from learner.slices import RankPart
from learner.state import TrainingProgress
from learner.store.run_store import RunStore
from services.contracts.records import RunRecord
from services.volume import DamagedFile, Volume, check_file
from services.volume.checkpoint import damage, earlier, listed_files

UNREADABLE = (errno.EIO, errno.EREMOTEIO, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
"""Errors of a disk with a bad sector, and of a file in a folder's place."""


def read_checkpoint(
    record: RunRecord, ranks: Ranks, store: RunStore, volume: Volume
) -> tuple[Path, TrainingProgress] | None:
    """Return the run's checkpoint and its progress, or None without a checkpoint. If the checkpoint
    is damaged, the run goes back to the newest whole one. All ranks read together. Raises as
    `prepare` does."""
    if record.checkpoint is None:
        return None
    folder, part = volume.path(record.checkpoint), RankPart(ranks.rank, ranks.size)
    for warning in leave_out_damaged(folder) if ranks.first else []:
        store.warn(warning)
    progress, problem = ranks.together(lambda: checked(folder, part))
    if not (problem := next(filter(None, ranks.gather(problem.encode())), b"").decode()):
        assert progress is not None
        return folder, progress
    name = ranks.from_first(lambda: go_back(folder, problem, store, volume).encode()).decode()
    store.committed_step = int(name.split("-")[1])
    whole = folder.parent / name
    return whole, ranks.together(lambda: verify(whole, part))


def checked(folder: Path, part: RankPart) -> tuple[TrainingProgress | None, str]:
    """Return the progress in a checkpoint, or why the checkpoint cannot be used. Raises
    SchemaMismatch, and OSError if the disk cannot read any checkpoint of the run."""
    try:
        return verify(folder, part), ""
    except UnusableCheckpoint as error:
        return None, str(error)
    except OSError as error:
        is_broken = error.errno in UNREADABLE
        if is_broken and any(damage(path) is None for _, path in earlier(folder)):
            name = Path(error.filename).name if error.filename else "a file"
            return None, f"checkpoint {folder.name}: {name} cannot be read: {error.strerror}"
        raise


def go_back(damaged: Path, problem: str, store: RunStore, volume: Volume) -> str:
    """Have the run resume from the newest whole checkpoint before `damaged`. Returns its name.
    Raises UnusableCheckpoint without a checkpoint, Fenced, OSError."""
    for step, folder in earlier(damaged):
        if damage(folder) is None:
            store.go_back(step, str(folder.relative_to(volume.root)), volume.root)
            store.warn(
                f"{problem}; the run goes on from step {step}, whose checkpoint is whole: what was "
                "trained after it is trained again"
            )
            return folder.name
    raise UnusableCheckpoint(
        f"{problem}; no earlier checkpoint of the run is whole: put the file back, or start a new "
        "run"
    )


def leave_out_damaged(folder: Path) -> list[str]:
    """Delete damaged files of a checkpoint that training does not need. Return warnings for the
    user. A checkpoint whose manifest is damaged stays as it is."""
    warnings: list[str] = []
    with suppress(DamagedFile, OSError):
        for name, size, xxh3 in (file for file in listed_files(folder) if not file.needed):
            try:
                check_file(folder / name, size, xxh3, name)
            except FileNotFoundError:
                continue
            except (DamagedFile, OSError) as error:
                _delete(folder / name)
                problem = f"{name}: {error.strerror}" if isinstance(error, OSError) else error
                warnings.append(
                    f"checkpoint {folder.name}: {problem}; training goes on without the file"
                )
    return warnings


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
