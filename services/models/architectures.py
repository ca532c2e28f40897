"""The tensors that a config.json asks for, for the most common architectures."""

from collections.abc import Mapping
from typing import Any

Shapes = Mapping[str, tuple[int, ...]]
LLAMAS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")
NORMS = ("input_layernorm", "post_attention_layernorm")
FEEDFORWARD_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")


def expected_shapes(config: Mapping[str, Any]) -> Shapes | None:
    """Return names and shapes of the weights of a dense model like Llama, with the output head.
    Return None for another architecture, and for a config that leaves sizes to a library's
    defaults."""
    kind = config.get("model_type")
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    sizes = [config.get(key) for key in (*keys, "num_attention_heads")]
    if kind not in LLAMAS or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    vocabulary, hidden, inner, layers, heads = (int(size) for size in sizes if size)
    head, groups = config.get("head_dim") or hidden // heads, config.get("num_key_value_heads")
    if not isinstance(head, int) or not isinstance(groups, int) or config.get("head_dim") is None:
        # Gemma and Qwen3 have other defaults for both.
        if kind not in ("llama", "mistral", "qwen2") or not isinstance(groups or heads, int):
            return None
        groups = groups or (8 if kind == "mistral" else heads)
    query, key = heads * head, groups * head
    widths = {
        "q_proj": (query, hidden),
        "k_proj": (key, hidden),
        "v_proj": (key, hidden),
        "o_proj": (hidden, query),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }
    layer: dict[str, tuple[int, ...]] = {}
    for name, shape in widths.items():
        part = "self_attn" if name in ATTENTION else "mlp"
        layer[f"{part}.{name}.weight"] = shape
        if name in _biased(kind, config):
            layer[f"{part}.{name}.bias"] = shape[:1]
    norms = NORMS + (FEEDFORWARD_NORMS if kind in ("gemma2", "gemma3_text") else ())
    layer |= {f"{name}.weight": (hidden,) for name in norms}
    if kind in ("qwen3", "gemma3_text"):
        layer |= {f"self_attn.{name}.weight": (head,) for name in ("q_norm", "k_norm")}
    every = {
        f"model.layers.{at}.{name}": shape for at in range(layers) for name, shape in layer.items()
    }
    ends = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    return {**every, **ends, "lm_head.weight": (vocabulary, hidden)}


def _biased(kind: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the layers of a block that have a bias."""
    if kind == "qwen2":
        return ATTENTION[:3]
    if kind == "mistral":
        return ()
    attention = ATTENTION if config.get("attention_bias") else ()
    return attention + (MLP if kind == "llama" and config.get("mlp_bias") else ())
