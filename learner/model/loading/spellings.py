"""Make config.json and tokenizer_config.json read alike in old and new transformers.

transformers 5 renamed some keys, and writes only the new names. With both spellings every version
reads the same model. Pure functions over JSON objects, which return new objects.
"""

from collections.abc import Mapping
from typing import Any

from services.models.description import TOKENS

Object = dict[str, Any]
NOT_TRAINED = frozenset(
    {"use_cache", "dtype", "torch_dtype", "architectures", "transformers_version", "_name_or_path"}
)
"""Keys that a run does not change, or that are written separately."""
GPT_NEOX = ("gpt_neox", "gpt_neox_japanese")
TWO_ROTARIES = ("gemma3_text", "gemma3n_text")
"""Models whose older configs have a separate key for the positions of local attention."""


def changed_config(file: Mapping[str, Any], read: Object, trained: Object) -> Object:
    """Return the file `file` with the keys updated that differ between `read`, the config that a
    library read from it, and the `trained` config."""
    changed = dict(file)
    for key in trained.keys() - NOT_TRAINED:
        value, before = trained[key], read.get(key)
        if key in read and before == value:
            continue
        parts = file.get(key), before, value
        if all(isinstance(part, dict) for part in parts):
            changed[key] = changed_config(file[key], read[key], value)
        else:
            changed[key] = value
    for key in read.keys() - trained.keys() - NOT_TRAINED:
        changed.pop(key, None)
    return changed


def section_of(file: Object, model_type: str) -> Object | None:
    """Return the part of the file `file` that describes a model of `model_type`: the whole file, or
    its text_config if only the text model was loaded. Return None without such a part."""
    if file.get("model_type") == model_type:
        return file
    text = file.get("text_config")
    if not isinstance(text, dict) or text.get("model_type") != model_type:
        return None
    above = {key: file[key] for key in (*TOKENS, "tie_word_embeddings") if key in file}
    return {**above, **text}


def with_dtype_named(config: Object, dtype: str) -> Object:
    """Return `config` with `dtype` as the type of the weights, in all its sections."""
    named = {
        key: with_dtype_named(value, dtype) if _is_section(key, value) else value
        for key, value in config.items()
    }
    return {**named, "dtype": dtype, "torch_dtype": dtype}


def config_for_all(config: Object) -> Object:
    """Return `config` with both spellings of experts and positions, if it has only the newer
    one."""
    both = {
        key: config_for_all(value) if _is_section(key, value) else value
        for key, value in config.items()
    }
    if "num_local_experts" in config:
        both.setdefault("num_experts", config["num_local_experts"])
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_theta" in config or config.get("rope_scaling"):
        return both
    if config.get("model_type") in TWO_ROTARIES:
        rope, local = (rope.get(f"{kind}_attention") for kind in ("full", "sliding"))
        if not isinstance(rope, dict) or not isinstance(local, dict):
            return both
        both["rope_local_base_freq"] = local.get("rope_theta")
    if "rope_theta" not in rope:
        return both
    both["rope_theta"], part = rope["rope_theta"], rope.get("partial_rotary_factor")
    if part is not None:
        both["partial_rotary_factor"] = part
        if config.get("model_type") in GPT_NEOX:
            both |= {"rotary_emb_base": rope["rope_theta"], "rotary_pct": part}
    scaling = {k: v for k, v in rope.items() if k not in ("rope_theta", "partial_rotary_factor")}
    is_plain = scaling.get("rope_type", "default") == "default"
    both["rope_scaling"] = None if is_plain else scaling
    return both


def tokenizer_config_for_all(config: Object) -> Object:
    """Return a tokenizer_config.json without keys that transformers before 5 rejects."""
    both = dict(config)
    if both.get("tokenizer_class") == "TokenizersBackend":
        both["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(both.get("extra_special_tokens"), list):
        both["additional_special_tokens"] = both.pop("extra_special_tokens")
    return both


def _is_section(key: str, value: Any) -> bool:
    return key.endswith("_config") and key != "quantization_config" and isinstance(value, dict)
