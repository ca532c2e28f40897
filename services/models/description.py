"""Reads the JSON files of a model folder, and checks their numbers."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from services.contracts.experts import EXPERTS
from services.models.errors import UnusableFolder
from services.models.headers import Tensors

DEEPEST = 32
"""Maximum levels of a description; real ones have six."""
LARGEST_SIZE = 2**31 - 1
MOST_LAYERS = 2048
"""Each layer takes some hundred kilobytes before any weight is read."""
SIZES = ("vocab_size", "hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads")
OTHERS = ("num_key_value_heads", "head_dim", "max_position_embeddings", "n_positions", *EXPERTS)
"""Other whole numbers, for which 0 or null may have a meaning."""
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def read_object(text: bytes, name: str) -> dict[str, Any]:
    """Parse the JSON object in the file `name`. Raises UnusableFolder for other content, for more
    levels than `DEEPEST`, and for NaN."""
    try:
        # Infinity is not JSON, but some models' configs have it.
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableFolder(f"{name} is no JSON that can be read: {str(error)[:200]}") from error
    if not isinstance(parsed, dict):
        raise UnusableFolder(f"{name} holds {_kind(parsed)} where an object belongs")
    for path, depth, value in _values(parsed):
        if depth > DEEPEST:
            raise UnusableFolder(f"{name} is nested more than {DEEPEST} levels deep")
        if isinstance(value, float) and math.isnan(value):
            raise UnusableFolder(f"{name}: {path} is NaN, and a number belongs there")
    return parsed


def check_config(config: Mapping[str, Any], tensors: Tensors, name: str) -> None:
    """Raise UnusableFolder for a config.json that describes no model, or a model much larger than
    its weights. `tensors` is empty for a folder without weights."""
    for part, section in _sections(config):
        _check_kinds(section, f"{name}: {part}")
        for key in (*SIZES, *LAYERS, *HEADS, *OTHERS):
            _check_number(section, key, f"{name}: {part}{key}", part in ("", "text_config."))
        if tensors:
            _check_against(section, tensors, f"{name}: {part}")
    check_tokens(config, name)


def check_tokens(config: Mapping[str, Any], name: str) -> None:
    """Raise UnusableFolder unless each token's id is a number or a list of numbers."""
    for key in TOKENS:
        ids = config.get(key)
        for item in ids if isinstance(ids, list) else [ids]:
            if item is not None and not _whole(item):
                raise UnusableFolder(
                    f"{name}: {key} is {_kind(item)}, and a token's id belongs there"
                )


def _check_kinds(section: Mapping[str, Any], where: str) -> None:
    for key in ("rope_scaling", "rope_parameters", "auto_map", "quantization_config"):
        if not isinstance(section.get(key), dict | None):
            kind = _kind(section[key])
            raise UnusableFolder(f"{where}{key} is {kind}, and an object belongs there")
    for key in ("model_type", "dtype", "torch_dtype"):
        if not isinstance(section.get(key), str | None):
            kind = _kind(section[key])
            raise UnusableFolder(f"{where}{key} is {kind}, and a word belongs there")
    weights = section.get("transformers_weights")
    if weights is not None and not re.fullmatch(r"[^/]+\.safetensors", str(weights)):
        raise UnusableFolder(
            f"{where}transformers_weights names no .safetensors file of its folder"
        )
    kernel = section.get("attn_implementation") or section.get("_attn_implementation")
    if isinstance(kernel, str) and "/" in kernel:
        raise UnusableFolder(
            f"{where}attn_implementation names code of the hub ({kernel!r}): leave it out"
        )


def _check_number(section: Mapping[str, Any], key: str, where: str, is_text: bool) -> None:
    value = section.get(key)
    if value is None:
        return
    # Some models have a number for each layer.
    per_layer = isinstance(value, list) and key in (*OTHERS, *HEADS)
    # Encoders of images need no vocabulary.
    least = 1 if is_text and key not in OTHERS else 0
    limit = MOST_LAYERS if key in LAYERS else LARGEST_SIZE
    for item in value if per_layer else [value]:
        if not (_whole(item) and least <= item <= limit):
            shown = item if isinstance(item, int | float) else _kind(item)
            raise UnusableFolder(
                f"{where} is {shown}, and a whole number from {least} to {limit} belongs there"
            )


def _check_against(section: Mapping[str, Any], tensors: Tensors, where: str) -> None:
    """Raise UnusableFolder for a config whose model would have many more weights."""
    layers = next((section[key] for key in LAYERS if section.get(key)), 0)
    if layers > len(tensors):
        raise UnusableFolder(
            f"{where}{layers} layers do not fit the weights, which have {len(tensors)} tensors"
        )
    widths = (section.get(key) for key in ("embedding_size", "word_embed_proj_dim", *SIZES[1:]))
    width = next((part for part in widths if _whole(part) and part), 1)
    vocabulary = section.get("vocab_size") or 0
    if vocabulary * width > tensors.elements:
        raise UnusableFolder(
            f"{where}vocab_size {vocabulary} of width {width} makes more numbers than all weights "
            f"have ({tensors.elements})"
        )
    experts = next((section[key] for key in EXPERTS if isinstance(section.get(key), int)), 0)
    if experts > tensors.elements:
        raise UnusableFolder(f"{where}{experts} experts are more than the weights have numbers")


def _sections(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the config, and the configs of a composite model's parts, with the prefix of their
    keys."""
    yield "", config
    for key, value in config.items():
        if key.endswith("_config") and key != "quantization_config" and isinstance(value, dict):
            yield f"{key}.", value


def _values(root: Any) -> Iterator[tuple[str, int, Any]]:
    """Yield every value with its key and its depth, without recursion."""
    waiting: list[tuple[str, int, Any]] = [("", 0, root)]
    while waiting:
        name, depth, value = waiting.pop()
        yield name, depth, value
        if isinstance(value, dict):
            waiting += [(str(key), depth + 1, inner) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(name, depth + 1, inner) for inner in value]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    kinds = {str: "a text", list: "a list", dict: "an object", bool: "true or false"}
    return kinds.get(type(value), "null" if value is None else f"the number {value}")
