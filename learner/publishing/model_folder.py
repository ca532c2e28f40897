"""The run's model folder: everything of the model except its weights, for workers on any host."""

import os
import shutil
from pathlib import Path

import msgspec
import torch

from learner.model.loading.lora import base_on_host, save_base
from learner.model.loading.model_loader import LoadedModel
from learner.model.loading.saving import save_description
from services.contracts.weights import MODEL_FILES
from services.volume import fsync, opened_by_umask, weight_file


def export_description(
    loaded: LoadedModel, folder: Path, base: dict[str, torch.Tensor] | None = None
) -> None:
    """Write `folder`, with the list of its files for hosts without the volume. It is written once
    per run, because a worker may be reading it. For adapters it also holds the frozen weights,
    which never change. `base`: host copy of the frozen weights, if `loaded` is sharded."""
    if folder.exists():
        return
    for unfinished in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(unfinished)
    beside = folder.with_name(f".{folder.name}.{os.getpid()}")
    save_description(loaded, beside)
    if loaded.lora:
        save_base(loaded, beside, base or base_on_host(loaded))
    files = [
        weight_file(path, str(path.relative_to(beside)))
        for path in sorted(beside.rglob("*"))
        if path.is_file() and path.name != MODEL_FILES
    ]
    (beside / MODEL_FILES).write_bytes(msgspec.json.encode(files))
    for path in (*beside.rglob("*"), beside):
        if path.is_file():
            opened_by_umask(path)
        fsync(path)
    beside.rename(folder)
    fsync(folder.parent)
