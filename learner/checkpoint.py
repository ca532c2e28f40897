"""Checkpoints: folders that Hugging Face loads, plus what a resumed run needs.

A checkpoint is written beside its place, every file and the folder fsynced, then renamed; after
that the store's commit makes it the run's current one. `verify` reads every byte against the
manifest: a torn or truncated checkpoint is refused, never loaded in part.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from learner.errors import RunCannotGoOn
from learner.models import LoadedModel, save_description, weight_tensors
from learner.optimizers import Optimizers
from services.volume import DamagedFile, check_file, checksum, fsync

MANIFEST = "manifest.json"
STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"
RANDOM = "random.safetensors"
WEIGHTS = "model.safetensors"
SCHEMA = 1


class UnusableCheckpoint(RunCannotGoOn):
    """A checkpoint folder is incomplete or damaged; the message names the file."""


@dataclass(frozen=True)
class TrainingState:
    """Where a run stood: what cannot be read off the weights and the optimizer."""

    run: str
    step: int
    """Batches trained."""
    version: int
    optimizer_steps: int
    """Position of the learning rate schedule."""
    lineages: list[tuple[str, int]]
    """`staleness.Ancestry`, the lineage that wrote this last."""
    base_model: str
    """What the run's first step started from: the KL reference."""
    schema: int = SCHEMA


def directory_name(step: int) -> str:
    """`step-000010`."""
    return f"step-{step:06d}"


def save_checkpoint(
    folder: Path, loaded: LoadedModel, optimizers: Optimizers, state: TrainingState
) -> None:
    """Write a checkpoint to `folder`, durable when this returns.

    What lies there already was never committed (a commit's step is never trained again), and is
    replaced.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder.parent / f".{folder.name}.{os.getpid()}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    try:
        save_description(loaded, beside)
        weights = {name: t.contiguous() for name, t in weight_tensors(loaded.model).items()}
        save_file(weights, beside / WEIGHTS, metadata={"format": "pt"})
        save_file(optimizers.tensors(), beside / OPTIMIZER)
        save_file(_random_state(loaded.model.device), beside / RANDOM)
        (beside / STATE).write_text(json.dumps(asdict(state), indent=2) + "\n")
        _write_manifest(beside)
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
        fsync(folder.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def verify(folder: Path) -> TrainingState:
    """The state of a whole checkpoint. Raises UnusableCheckpoint naming what is wrong."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        for name, entry in manifest["files"].items():
            check_file(folder / name, entry["bytes"], entry["xxh3"])
        raw = json.loads((folder / STATE).read_text())
    except FileNotFoundError as error:
        raise UnusableCheckpoint(
            f"checkpoint {folder.name} lacks {Path(str(error.filename)).name}"
        ) from error
    except (DamagedFile, KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise UnusableCheckpoint(f"checkpoint {folder.name} is damaged: {error}") from error
    if raw.get("schema") != SCHEMA:
        raise UnusableCheckpoint(
            f"checkpoint {folder.name} has schema {raw.get('schema')}, this learner reads {SCHEMA}"
        )
    raw["lineages"] = [(str(name), int(began)) for name, began in raw["lineages"]]
    return TrainingState(**raw)


def load_optimizer(folder: Path, optimizers: Optimizers) -> None:
    """Take over the optimizer state and the random state of a verified checkpoint."""
    try:
        optimizers.load(load_file(folder / OPTIMIZER))
        random = load_file(folder / RANDOM)
    except (SafetensorError, FileNotFoundError) as error:
        raise UnusableCheckpoint(f"checkpoint {folder.name} is damaged: {error}") from error
    torch.set_rng_state(random["cpu"])
    if "cuda" in random and torch.cuda.is_available():
        torch.cuda.set_rng_state(random["cuda"])


def retain(root: Path, keep: int, current: str) -> list[str]:
    """Delete all but the newest `keep` checkpoints under `root`; `current` (a folder name) is
    never deleted. Returns the names that went."""
    found = sorted(path.name for path in root.glob("step-*") if path.is_dir())
    gone = [name for name in found[:-keep] if name != current]
    for name in gone:
        # Renamed first: a reader sees a whole checkpoint or none.
        doomed = root / f".{name}.{os.getpid()}.old"
        (root / name).rename(doomed)
        shutil.rmtree(doomed)
    return gone


def _write_manifest(folder: Path) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        fsync(path)
        files[path.name] = {"bytes": path.stat().st_size, "xxh3": checksum(path)}
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"schema": SCHEMA, "files": files}, indent=2) + "\n")
    fsync(manifest)
    fsync(folder)


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state
