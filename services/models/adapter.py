"""Checks what a LoRA adapter's config asks of the library that loads it (peft)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.contracts.weights import ADAPTER_WEIGHTS
from services.models.errors import UnusableFolder
from services.models.headers import Headers

UNSUPPORTED = ("layer_replication", "megatron_config", "alora_invocation_tokens")
"""Keys that change the base, or import modules by name."""
MERGED = (
    "r", "lora_alpha", "target_modules", "exclude_modules", "target_parameters", "rank_pattern",
    "alpha_pattern", "use_rslora", "use_dora", "fan_in_fan_out", "bias", "lora_bias",
    "modules_to_save", "layers_to_transform", "layers_pattern", "trainable_token_indices",
)  # fmt: skip
"""Keys that say how an adapter is added to its base."""
PATTERN = re.compile(r"[\w.^$\\*]*")
"""Layer names that can be matched in linear time: peft takes regular expressions."""


def check_adapter(
    config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], name: str
) -> None:
    """Raise UnusableFolder unless the config is that of a LoRA adapter whose ranks match its
    `tensors`."""
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise UnusableFolder(
            f"{name}: peft_type is {str(kind)[:50]!r}, and only LORA can be merged into its base: "
            "merge the adapter with peft, and name the whole model"
        )
    for key in UNSUPPORTED:
        if config.get(key):
            raise UnusableFolder(
                f"{name}: {key} is not supported: merge the adapter with peft, and name the whole "
                "model"
            )
    for key in ("rank_pattern", "alpha_pattern"):
        if not isinstance(config.get(key), dict | None):
            raise UnusableFolder(f"{name}: {key} is no object of numbers by layer")
    patterns = config.get("rank_pattern") or {}
    largest = max((size for shape in tensors.values() for size in shape), default=0)
    for rank in (config.get("r", 8), *patterns.values()):
        if not isinstance(rank, int) or not 0 < rank <= largest:
            raise UnusableFolder(
                f"{name}: rank {str(rank)[:50]} does not fit the adapter's weights, whose largest "
                f"side is {largest}"
            )
    for pattern in (*patterns, *(config.get("alpha_pattern") or {})):
        _check_pattern(pattern, name)
    for key in ("layers_pattern", "exclude_modules", "target_modules"):
        unsupported = config.get(key)
        for value in unsupported if isinstance(unsupported, list) else [unsupported]:
            if value is not None and not isinstance(value, str):
                raise UnusableFolder(f"{name}: {key} holds what is no layer's name")
        if isinstance(unsupported, str) and key != "target_modules":
            _check_pattern(unsupported, name)


def _check_pattern(pattern: str, name: str) -> None:
    # One star at most: nested or repeated ones can take exponential time.
    if not PATTERN.fullmatch(pattern) or pattern.count("*") > 1:
        raise UnusableFolder(
            f"{name}: {pattern[:100]!r} is no plain layer's name: merge the adapter with peft, and "
            "name the whole model"
        )


def adapted_layers(folder: Path) -> list[str]:
    """Return the layers for which the adapter in `folder` has weights. Raises UnusableFolder."""
    path = folder / ADAPTER_WEIGHTS
    with path.open("rb") as file:
        names = [header.name for header in Headers().tensors(file.fileno(), path)]
    layers = (name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in names)
    return sorted({layer for layer in layers if layer})
