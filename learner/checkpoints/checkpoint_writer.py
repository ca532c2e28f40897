"""Write checkpoints: folders that transformers (or peft, for adapters) loads, plus the state that a
resumed run needs.

A crash at any time is harmless: the checkpoint is written under another name, every file and the
folder are fsynced, then the folder is renamed. After that the store's commit makes it the run's
current checkpoint. `verify` checks every byte against the manifest: a damaged checkpoint is never
loaded in part.

If the state is sharded, every rank writes a part: whole tensors, in files named like those of any
large model. Any number of ranks can read them, each rank its rows.

A folder's name carries the lineage that wrote it. A learner that was replaced while it slept can
therefore neither replace nor delete its successor's checkpoints when it wakes.
"""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from learner.checkpoints.captured import Captured
from learner.model.loading.lora import save_adapter_config
from learner.model.loading.saving import (
    save_beside_adapter,
    save_description,
)
from learner.slices import PART, WHOLE, RankPart
from learner.state import SCHEMA
from services.contracts.weights import ADAPTER_WEIGHTS
from services.volume import checksum, fsync, opened_by_umask
from services.volume.checkpoint import MANIFEST

# In a separate folder, because servers of the checkpoint read every *.safetensors next to the
# config as weights.
TRAINING = "training"
STATE = f"{TRAINING}/state.json"
OPTIMIZER = f"{TRAINING}/optimizer.safetensors"
RANDOM = f"{TRAINING}/random.safetensors"
WEIGHTS = "model.safetensors"
# A model folder that AutoModelForSequenceClassification loads.
CRITIC = f"{TRAINING}/critic"
CRITIC_OPTIMIZER = f"{TRAINING}/critic_optimizer.safetensors"
COPY = f"{TRAINING}/{{}}.safetensors"
"""Weights of a copy of the policy, by its name."""
UNFINISHED = re.compile(r"\.step-(\d+)-([^-.]+)(?:\.old)?")
"""A checkpoint folder before its rename, or during its deletion."""


class Entry(msgspec.Struct, frozen=True):
    bytes: int
    xxh3: str


class WrittenPart(msgspec.Struct, frozen=True):
    files: dict[str, Entry]
    weights: dict[str, dict[str, str]] = {}
    """Tensors and their files, for each model folder in parts, by the path of its index."""


def write_checkpoint(root: Path, captured: Captured, before_rename: Callable[[], None]) -> Path:
    """Write a checkpoint that this rank has whole, under `root`, the run's folder of checkpoints.
    Durable when this returns. `before_rename`: see `complete`."""
    try:
        return complete(root, captured, [write_part(root, captured)], before_rename)
    finally:
        shutil.rmtree(_unfinished(root, captured), ignore_errors=True)


def write_part(root: Path, captured: Captured) -> WrittenPart:
    """Write this rank's files of a checkpoint to the unfinished folder. Durable when this
    returns."""
    beside, part = _unfinished(root, captured), captured.part
    if part == WHOLE:
        shutil.rmtree(beside, ignore_errors=True)
    (beside / TRAINING).mkdir(parents=True, exist_ok=True)
    if part.number == 0:
        _write_description(beside, captured, root.parent.absolute() / "model")
    weights: dict[str, dict[str, str]] = {}
    if captured.loaded.lora is None:
        _save_model(beside, WEIGHTS, captured.weights, part, weights)
    elif part.number == 0:
        save_file(captured.weights, beside / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    save_file(captured.optimizer, beside / part.file(OPTIMIZER))
    if captured.critic:
        (beside / CRITIC).mkdir(exist_ok=True)
        _save_model(beside, f"{CRITIC}/{WEIGHTS}", captured.critic.weights, part, weights)
        save_file(captured.critic.optimizer, beside / part.file(CRITIC_OPTIMIZER))
    for name, copied in captured.copies.items():
        save_file(copied, beside / part.file(COPY.format(name)))
    return WrittenPart(_durable(beside, part), weights)


def complete(
    root: Path,
    captured: Captured,
    written: Sequence[WrittenPart],
    before_rename: Callable[[], None],
) -> Path:
    """Complete a checkpoint from the files that all ranks have `written`. Durable when this
    returns.

    `before_rename` may raise, which leaves nothing under the final name. An existing folder of that
    name is an earlier, uncommitted attempt of the same learner and is replaced. Without an
    unfinished folder, the existing one is this checkpoint: its rename may not be durable yet.
    """
    beside, folder = _unfinished(root, captured), root / captured.progress.directory
    if beside.exists() or not folder.exists():
        _list_files(beside, written)
        before_rename()
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)
    fsync(root)
    return folder


def _list_files(beside: Path, written: Sequence[WrittenPart]) -> None:
    """Write the manifest of a checkpoint, and the indexes of weights in parts."""
    files = {name: entry for part in written for name, entry in part.files.items()}
    for index in written[0].weights:
        places = {key: file for part in written for key, file in part.weights[index].items()}
        folders = {str(Path(index).parent / file) for file in places.values()}
        size = sum(files[str(Path(name))].bytes for name in folders)
        content = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
        (beside / index).write_text(json.dumps(content, indent=2) + "\n")
        files[index] = _entry(beside / index)
    listed = {name: msgspec.to_builtins(entry) for name, entry in sorted(files.items())}
    manifest = beside / MANIFEST
    manifest.write_text(json.dumps({"schema": SCHEMA, "files": listed}, indent=2) + "\n")
    fsync(manifest)
    fsync(beside)


def _unfinished(root: Path, captured: Captured) -> Path:
    return root / f".{captured.progress.directory}"


def _write_description(folder: Path, captured: Captured, base: Path) -> None:
    """Write everything except tensors, plus rank 0's random state. `base`: folder of the adapters'
    base."""
    if captured.loaded.lora:
        save_beside_adapter(captured.loaded, folder)
        save_adapter_config(captured.loaded, folder, str(base))
    else:
        save_description(captured.loaded, folder)
    if captured.critic:
        captured.critic.model.config.save_pretrained(folder / CRITIC)
    save_file(captured.random, folder / RANDOM)
    # 100,000 running means are 6.7 MB: the standard encoder would delay training for seconds.
    state = msgspec.json.format(msgspec.json.encode(captured.progress), indent=2)
    (folder / STATE).write_bytes(state + b"\n")


def _save_model(
    folder: Path,
    name: str,
    tensors: dict[str, torch.Tensor],
    part: RankPart,
    weights: dict[str, dict[str, str]],
) -> None:
    """Save a part of a model folder's weights. `name`: file name of the whole weights. A part is
    recorded in `weights`."""
    file = part.file(name)
    save_file(tensors, folder / file, metadata={"format": "pt"})
    if part.count > 1:
        weights[f"{name}.index.json"] = dict.fromkeys(tensors, Path(file).name)


def _durable(folder: Path, part: RankPart) -> dict[str, Entry]:
    files = {}
    for path in sorted(folder.rglob("*")):
        numbered = PART.search(path.name)
        if path.is_dir():
            fsync(path)
        # Other parts may still be in progress, under names that begin with a dot.
        elif not path.name.startswith(".") and part.number == (
            int(numbered[1]) - 1 if numbered else 0
        ):
            opened_by_umask(path)
            files[str(path.relative_to(folder))] = _entry(path)
    return files


def _entry(path: Path) -> Entry:
    fsync(path)
    return Entry(path.stat().st_size, checksum(path))
