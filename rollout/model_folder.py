"""The exported model folder (config, tokenizer, chat template; no weights) on this host."""

from pathlib import Path

import msgspec

from services.contracts.weights import MODEL_FILES, WeightFile
from services.volume import Volume


async def fetch_model(volume: Volume, name: str) -> Path:
    """The folder `name` of the data volume, as a local path, whole.

    Raises FileNotFoundError, services.volume.DamagedFile.
    """
    index = await volume.fetch(f"{name}/{MODEL_FILES}")
    for file in msgspec.json.decode(index.read_bytes(), type=list[WeightFile]):
        await volume.fetch(f"{name}/{file.name}", file.bytes, file.xxh3)
    return volume.path(name)
