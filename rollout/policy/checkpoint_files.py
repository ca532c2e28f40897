"""A checkpoint's files in the form in which vLLM is given versions: a model folder without weights,
and a manifest of one weight file.

A run that samples has such a model folder. For any other run the folder is made of the files in the
checkpoint, below `cache/served/` of the data folder.
"""

import asyncio
import json
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import xxhash

from rollout.policy.whole_weights import UNUSABLE, is_whole, write_whole
from rollout.vllm.model_files import fetch_model
from rollout.vllm_plugin.weight_file import read_tensors
from services.contracts.served_models import ModelDemand
from services.contracts.weights import ADAPTER_CONFIG, ADAPTER_WEIGHTS, WeightFile, WeightManifest
from services.volume import DamagedFile, Volume, weight_file, written_beside
from services.volume.checkpoint import MANIFEST, NAME, ListedFile, listed_files

FOLDER = "cache/served"
TRAINING = "training/"
"""Begins the names of files that only training needs."""
WEIGHTS = ".safetensors"
INDEX = ".safetensors.index.json"
ABANDONED_SECONDS = 3600.0


class ServedFiles(NamedTuple):
    """A checkpoint that is ready to be loaded."""

    model: Path
    """Config and tokenizer; for an adapter also its base."""
    manifest: WeightManifest


async def served_files(volume: Volume, demand: ModelDemand) -> ServedFiles:
    """Fetch and check the files of a checkpoint. Raises DamagedFile, FileNotFoundError and other
    OSErrors, and ValueError."""
    folder, directory = volume.path(demand.directory), demand.directory
    await volume.fetch(f"{directory}/{MANIFEST}")
    listed = [file for file in listed_files(folder) if not file.name.startswith(TRAINING)]
    names = {file.name for file in listed}
    adapter = ADAPTER_WEIGHTS in names
    weights = [
        file
        for file in listed
        if (file.name == ADAPTER_WEIGHTS if adapter else file.name.endswith(WEIGHTS))
    ]
    if not weights:
        raise DamagedFile(f"{MANIFEST} of checkpoint {folder.name} lists no weights")
    model = await _model_folder(volume, demand, adapter, listed)
    fetched = [await volume.fetch(_named(file, directory)) for file in weights]
    if adapter:
        await volume.fetch(f"{directory}/{ADAPTER_CONFIG}")
    file = _named(weights[0], directory)
    if not adapter:
        dtype = json.loads((model / "config.json").read_bytes()).get("dtype")
        try:
            if not await asyncio.to_thread(is_whole, fetched, str(dtype)):
                file = await asyncio.to_thread(_whole, volume, demand, sorted(fetched), str(dtype))
        except UNUSABLE as error:
            raise ValueError(f"the weights of checkpoint {folder.name}: {error}") from error
    name = NAME.fullmatch(folder.name)
    manifest = WeightManifest(
        run=demand.run,
        version=demand.step,
        # The name of a checkpoint has the lineage that wrote it.
        lineage=name[2] if name else folder.name,
        kind="adapter" if adapter else "full",
        files=[file],
        tensors=await asyncio.to_thread(_tensors, volume.path(file.name)),
        model=str(model.relative_to(volume.root)),
        created=time.time(),
    )
    return ServedFiles(model, manifest)


def forget_converted(volume: Volume, manifest: WeightManifest) -> None:
    """Delete the weight file that was written for a load, once it is loaded."""
    for file in manifest.files:
        if file.name.startswith(f"{FOLDER}/"):
            volume.path(file.name).unlink(missing_ok=True)


async def _model_folder(
    volume: Volume, demand: ModelDemand, adapter: bool, listed: list[ListedFile]
) -> Path:
    run = Path(demand.directory).parts[1]
    try:
        return await fetch_model(volume, f"runs/{run}/model")
    except FileNotFoundError:
        if adapter:
            # The base is there alone.
            raise
    described = [file for file in listed if not file.name.endswith((WEIGHTS, INDEX))]
    fetched = [await volume.fetch(_named(file, demand.directory)) for file in described]
    return await asyncio.to_thread(_copied, volume.path(FOLDER), described, fetched)


def _copied(root: Path, listed: list[ListedFile], files: list[Path]) -> Path:
    """Return a folder with copies of the files, named by their content. Runs of one model share
    it."""
    content = sorted(f"{file.name} {file.xxh3}" for file in listed)
    folder = root / xxhash.xxh3_64_hexdigest("\n".join(content).encode())
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = folder.with_name(f".{folder.name}.{time.monotonic_ns()}")
        for file, path in zip(listed, files, strict=True):
            copy = beside / file.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        with suppress(OSError):
            beside.rename(folder)
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _whole(volume: Volume, demand: ModelDemand, files: list[Path], dtype: str) -> WeightFile:
    root = volume.path(FOLDER)
    root.mkdir(parents=True, exist_ok=True)
    for file in root.glob(f"*{WEIGHTS}"):
        # A worker that died has left it.
        with suppress(FileNotFoundError):
            if file.stat().st_mtime < time.time() - ABANDONED_SECONDS:
                file.unlink()
    name = f"{FOLDER}/{demand.model}-{time.monotonic_ns()}{WEIGHTS}"
    with written_beside(volume.path(name)) as beside:
        write_whole(files, dtype, beside)
        return weight_file(beside, name)


def _tensors(path: Path) -> int:
    return len(read_tensors(path))


def _named(file: ListedFile, directory: str) -> WeightFile:
    return WeightFile(f"{directory}/{file.name}", file.bytes, file.xxh3)
