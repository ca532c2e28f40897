"""Whether a model has the layers that `model.lora` names, by the headers of its weight files.

The learner decides, which has the model; where its files are here, a user need not wait for that.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from services.contracts.config import RLConfig
from services.gateway.model_check import Problems
from services.runtime.model_path import base_of

LONGEST_HEADER = 100_000_000
"""What safetensors itself takes."""
NO_LAYERS = ("embed", "lm_head", "wte", "wpe")
"""Parts of names whose matrices are those of embeddings, or of the head."""


def check_targets(folder: Path, config: RLConfig) -> Problems:
    """A problem for each target that no layer's name ends with."""
    lora = config.model.lora
    if lora is None or not lora.targets:
        return []
    layers = {
        name.removesuffix(".weight")
        for file in Path(base_of(folder) or folder).glob("*.safetensors")
        for name, rank in _tensors(file)
        if name.endswith(".weight") and rank == 2 and not any(no in name for no in NO_LAYERS)
    }
    ends = ", ".join(sorted({layer.rpartition(".")[2] for layer in layers}))
    return [
        ("model.lora.targets", f"{target!r} is no linear layer of the model; it has {ends}")
        for target in lora.targets
        if layers and not any(f".{layer}".endswith(f".{target}") for layer in layers)
    ]


def _tensors(path: Path) -> Iterator[tuple[str, int]]:
    """Name and number of dimensions of each tensor; nothing for a file that is none."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= LONGEST_HEADER else {}
    except (OSError, ValueError):
        return
    for name, entry in header.items():
        if name != "__metadata__":
            yield name, len(entry["shape"])
