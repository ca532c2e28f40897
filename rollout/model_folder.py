"""The exported model folder (config, tokenizer, chat template; no weights) on this host."""

from pathlib import Path

import msgspec

from services.contracts.weights import WeightFile
from services.volume import Volume

# What the folder holds, written last by the learner: hosts without the volume fetch by it.
INDEX = "files.json"


async def fetch_model(volume: Volume, name: str) -> Path:
    """The folder `name` of the data volume, as a local path, whole.

    Raises FileNotFoundError, services.volume.DamagedFile.
    """
    folder = volume.path(name)
    if (folder / "config.json").exists() and not (folder / INDEX).exists():
        return folder
    index = await volume.fetch(f"{name}/{INDEX}")
    for file in msgspec.json.decode(index.read_bytes(), type=list[WeightFile]):
        await volume.fetch(f"{name}/{file.name}", file.bytes, file.xxh3)
    return folder
