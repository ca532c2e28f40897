"""The sizes of a model, from its config.json and, if it has weights, from their headers."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from services.contracts.experts import expert_count

if TYPE_CHECKING:  # bench.learner.one_pass needs only torch and transformers
    from services.contracts.config.model import BPETokenizer, CharacterTokenizer, ScratchModel

BLOCK = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
SPECIAL_TOKENS = 4
"""Special tokens of a tokenizer made from scratch: padding, begin, end, unknown."""


@dataclass(frozen=True)
class ModelShape:
    """Numbers of weights, and widths."""

    parameters: int
    """All weights; a tied output head counts once."""
    embedding: int
    head: int
    """Weights of a separate output head; 0 if the embedding is the head."""
    block: int
    """Weights of the largest block."""
    layers: int
    hidden: int
    query: int
    """Query heads times the size of a head."""
    key_value: int
    """Key heads times the size of a head."""
    intermediate: int
    """Width of the feed-forward layer, or of all experts that a token uses."""
    vocabulary: int
    experts: int = 0
    """Experts of a layer; 0 for a dense model."""
    experts_used: int = 0
    """Experts that a token uses."""
    idle: int = 0
    """Weights of the experts that a token does not use."""
    query_norm: bool = False
    """Whether queries and keys have norms of their own."""
    positions: int | None = None
    """The longest sequence; None: the config does not say."""
    windowed: int = 0
    """Layers that attend only to the last `window` tokens."""
    window: int = 0


def shape_of(
    config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]] | None = None
) -> ModelShape | None:
    """Return the shape of the model that a config.json describes; None if it lacks a width.

    `tensors`: shapes of the weights by name. Without tensors, a Llama with the config's widths
    is assumed.
    """
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, Mapping) else config
    widths = {name: text.get(name) for name in ("hidden_size", "num_hidden_layers", "vocab_size")}
    hidden, layers, vocabulary = (v if isinstance(v, int) else 0 for v in widths.values())
    heads = text.get("num_attention_heads")
    if not (hidden and layers and vocabulary and isinstance(heads, int) and heads):
        return None
    size = text.get("head_dim") or hidden // heads
    query, key_value = heads * size, (text.get("num_key_value_heads") or heads) * size
    experts = expert_count(text)
    used = int(text.get("num_experts_per_tok") or 1) if experts else 0
    width = text.get("moe_intermediate_size") if experts else None
    inside = int(width or text.get("intermediate_size") or 4 * hidden)
    embedding = vocabulary * hidden
    tied = bool(text.get("tie_word_embeddings", False))
    head = 0 if tied else embedding
    attention = hidden * (2 * query + 2 * key_value)
    one_expert = 3 * hidden * inside
    block = attention + max(experts, 1) * one_expert + experts * hidden + 2 * hidden
    parameters = layers * block + embedding + head + hidden
    norms = str(text.get("model_type", "")).startswith(("qwen3", "gemma3", "olmo2"))
    idle = layers * (experts - used) * one_expert if experts else 0
    window = text.get("sliding_window") or 0 if text.get("use_sliding_window", True) else 0
    # Without a list of kinds all layers have the window (Mistral).
    kinds = text.get("layer_types") or ["sliding_attention"] * layers
    positions = text.get("max_position_embeddings")
    shape = ModelShape(
        parameters=parameters,
        embedding=embedding,
        head=head,
        block=block,
        layers=layers,
        hidden=hidden,
        query=query,
        key_value=key_value,
        intermediate=inside * max(used, 1),
        vocabulary=vocabulary,
        experts=experts,
        experts_used=used,
        idle=idle,
        query_norm=norms,
        positions=positions if isinstance(positions, int) else None,
        windowed=list(kinds).count("sliding_attention") if window else 0,
        window=window,
    )
    return _counted(shape, tensors, tied) if tensors else shape


def _counted(shape: ModelShape, tensors: Mapping[str, tuple[int, ...]], tied: bool) -> ModelShape:
    """Return `shape` with its weights counted in `tensors`. `tied`: the embedding is the head."""
    sizes = {name: prod(shape) for name, shape in tensors.items()}
    head = next((size for name, size in sizes.items() if name.endswith("lm_head.weight")), 0)
    blocks: Counter[str] = Counter()
    for name, size in sizes.items():
        if place := BLOCK.search(name):
            blocks[place[1]] += size
    of_experts = sum(size for name, size in sizes.items() if ".experts." in name)
    unused = shape.experts - shape.experts_used
    return replace(
        shape,
        parameters=sum(sizes.values()),
        head=0 if tied else head,
        block=max(blocks.values(), default=shape.block),
        idle=of_experts * unused // shape.experts if shape.experts else 0,
        query_norm=any(".q_norm." in name for name in tensors),
    )


def vocabulary_of(tokenizer: "CharacterTokenizer | BPETokenizer") -> int:
    """Tokens that a model from scratch knows."""
    if tokenizer.type == "bpe":
        return tokenizer.vocabulary
    return len(tokenizer.alphabet) + SPECIAL_TOKENS


def scratch_config(config: "ScratchModel") -> dict[str, Any]:
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.intermediate_size,
        "moe_intermediate_size": config.intermediate_size,
        "num_experts": config.experts,
        "num_experts_per_tok": config.experts_per_token,
        "vocab_size": vocabulary_of(config.tokenizer),
        "max_position_embeddings": config.max_length,
        "tie_word_embeddings": False,
    }


def scratch_shape(config: "ScratchModel") -> ModelShape:
    """Return the shape of a model that a run makes from scratch."""
    shape = shape_of(scratch_config(config))
    assert shape is not None
    return shape
