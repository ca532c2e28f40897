"""Finds contradictions between a model's config.json and its weights.

Libraries load such a model silently, and each differently: transformers drops tensors that the
config does not ask for, and uses the output head in the files, while a server that gets only the
config ties the head to the embedding. The run would then train another model than the user means.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from services.models.architectures import Shapes, expected_shapes
from services.models.folder import CONFIG, ModelFolder, same_weights

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight")
HEADS = ("lm_head.weight", "embed_out.weight")
BLOCK = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
TYPES = ("auto", "float64", "float32", "float16", "bfloat16", "double", "float", "half")
"""The types that config.json may name."""
NUMBERS = {"F64", "F32", "F16", "BF16"}
"""Types in safetensors headers whose values are plain numbers."""
UNTIED = ("llama", "mistral", "qwen2", "qwen3")
"""Architectures whose output head is separate unless the config ties it."""
QUANTISED = ("F8", "F6_", "F4", "I8")
"""Prefixes of the types whose numbers need a scale."""
SHOWN = 3
"""Tensors that a sentence names."""


@dataclass
class Contradictions:
    """Differences between config and weights, as sentences."""

    refused: list[str] = field(default_factory=list)
    """Libraries cannot make the intended model, or make different ones."""
    warnings: list[str] = field(default_factory=list)
    """Some weights are not used."""


def contradictions(folder: ModelFolder) -> Contradictions:
    """Compare config.json with the headers of the weights. Reads the embedding only if the config
    ties the output head to it and the files have a head too."""
    config = folder.config
    text = config.get("text_config")
    text = {**config, **text} if isinstance(text, dict) else config
    problems = Contradictions()
    if not config or not folder.tensors:
        return problems
    if folder.unread:
        problems.warnings.append(
            f"weights in {_some(list(folder.unread))} are not read, since other files come first: "
            "remove the files that do not belong to the model"
        )
    _check_types(folder, problems)
    # Custom code and quantised weights have other tensors.
    is_usual = text is config and not (config.get("auto_map") or config.get("quantization_config"))
    expected = expected_shapes(config) if is_usual else None
    if expected is None:
        _check_sizes(text, folder.tensors, problems)
    else:
        _check_tensors(text, with_prefix_of(folder.tensors, expected), folder.tensors, problems)
    _check_head(text, folder, problems)
    return problems


def not_used(names: list[str]) -> str:
    """Return a warning about tensors that the model's config does not ask for."""
    biases = all(name.endswith(".bias") for name in names)
    key = "attention_bias or mlp_bias" if biases else "model_type"
    return (
        f"the weights' files have {_some(names)}, which {CONFIG} does not ask for: they are not "
        f"used, and what is trained lacks them; if they belong to the model, correct {key}"
    )


def with_prefix_of(tensors: Iterable[str], expected: Shapes) -> Shapes:
    """Return `expected` with the names that `tensors` have: without the prefix `model.` if the
    folder was saved from a model without its head."""
    if any(name.startswith("model.") for name in tensors):
        return expected
    return {name.removeprefix("model."): shape for name, shape in expected.items()}


def _check_types(folder: ModelFolder, problems: Contradictions) -> None:
    dtype = folder.config.get("dtype") or folder.config.get("torch_dtype")
    if dtype and str(dtype).removeprefix("torch.") not in TYPES:
        problems.refused.append(
            f"{CONFIG} says dtype {str(dtype)[:40]!r}, which is no type of torch: set it to the "
            "type of the weights, like bfloat16"
        )
    numbers = folder.tensors.types.keys() & NUMBERS
    others = sorted(name for name in folder.tensors.types if name.startswith(QUANTISED))
    if others and not folder.config.get("quantization_config"):
        problems.refused.append(
            f"the weights' files have {_and(others)} numbers, and {CONFIG} has no "
            "quantization_config that says how to read them: name the model that was quantised"
        )
    if len(numbers) > 1:
        total = sum(folder.tensors.types[name] for name in numbers)
        shares = sorted(numbers, key=lambda name: -folder.tensors.types[name])
        parts = [f"{name} ({folder.tensors.types[name] / total:.1%})" for name in shares]
        problems.warnings.append(
            f"the weights' files mix types: {_and(parts)}; the run trains all in float32, and "
            "publishes all in one type (model.dtype)"
        )


def _check_tensors(
    config: Mapping[str, Any], expected: Shapes, tensors: Shapes, problems: Contradictions
) -> None:
    """Compare names and shapes with the tensors of this architecture."""
    has = {name: shape for name, shape in tensors.items() if not name.endswith("inv_freq")}
    _check_layers(config, has, problems)
    _check_vocabulary(config, has, problems)
    if problems.refused:
        return
    # Heads have a check of their own.
    wanted = {name: shape for name, shape in expected.items() if not name.endswith(HEADS)}
    if missing := sorted(wanted.keys() - has.keys()):
        problems.refused.append(
            f"the weights' files lack {_some(missing)}, which {CONFIG} asks for: correct "
            f"{CONFIG}, or copy the files again"
        )
    wrong = sorted(name for name in wanted.keys() & has.keys() if wanted[name] != has[name])
    if wrong:
        first = wrong[0]
        problems.refused.append(
            f"{CONFIG} makes {first} {_by(wanted[first])}, and the weights' files have "
            f"{_by(has[first])}: correct {CONFIG}"
        )
    layers = config.get("num_hidden_layers", 0)
    extra = sorted(name for name in has.keys() - wanted.keys() if not name.endswith(HEADS))
    extra = [name for name in extra if (at := _layer(name)) is None or at < layers]
    if extra:
        problems.warnings.append(not_used(extra))


def _check_sizes(config: Mapping[str, Any], tensors: Shapes, problems: Contradictions) -> None:
    """Compare the tensors that any architecture has."""
    _check_layers(config, tensors, problems)
    if "padded_vocab_size" not in config:
        _check_vocabulary(config, tensors, problems)


def _check_layers(config: Mapping[str, Any], tensors: Shapes, problems: Contradictions) -> None:
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    there = {at for name in tensors if (at := _layer(name)) is not None}
    if not isinstance(layers, int) or not there:
        return
    key = "num_hidden_layers" if "num_hidden_layers" in config else "n_layer"
    if missing := set(range(layers)) - there:
        problems.refused.append(
            f"{CONFIG} says {key} {layers}, and the weights' files have no layer {min(missing)}: "
            f"set it to {min(missing)}, or copy the files again"
        )
    # Layers that predict further tokens come after the model's own.
    model_layers = layers + (config.get("num_nextn_predict_layers") or 0)
    if extra := sorted(at for at in there if at >= model_layers):
        problems.warnings.append(
            f"{CONFIG} says {key} {layers}, and the weights' files have layers up to {extra[-1]}: "
            f"the last {len(extra)} are not used; set it to {extra[-1] + 1} if they belong to the "
            "model"
        )


def _check_vocabulary(config: Mapping[str, Any], tensors: Shapes, problems: Contradictions) -> None:
    size = config.get("vocab_size")
    for name, shape in sorted(tensors.items(), key=lambda item: item[0].endswith(HEADS)):
        is_whole = name.endswith((*EMBEDDINGS, *HEADS)) and "vision" not in name
        if is_whole and len(shape) == 2 and isinstance(size, int) and shape[0] != size:
            problems.refused.append(
                f"{CONFIG} says vocab_size {size}, and {name} has {shape[0]} rows: set it to "
                f"{shape[0]}"
            )
            return


def _check_head(config: Mapping[str, Any], folder: ModelFolder, problems: Contradictions) -> None:
    """Compare `tie_word_embeddings` with the head in the files."""
    head = next((name for name in folder.tensors if name.endswith(HEADS)), None)
    embedding = next((name for name in folder.tensors if name.endswith(EMBEDDINGS)), None)
    tied, known = config.get("tie_word_embeddings"), config.get("model_type") in UNTIED
    if tied is True and head and embedding and not same_weights(folder.path, head, embedding):
        problems.refused.append(
            f"{CONFIG} says tie_word_embeddings, and the files have another {head}: set it to false"
        )
    if head is None and embedding and (tied is False or (tied is None and known)):
        problems.refused.append(
            f"{CONFIG} says tie_word_embeddings false, and the files have no output head "
            "(lm_head.weight): set it to true if the embedding is the head"
        )


def _layer(name: str) -> int | None:
    place = BLOCK.search(name)
    return int(place[1]) if place else None


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(islice(names, SHOWN)) + (f" and {more:,} more" if more > 0 else "")


def _and(words: list[str]) -> str:
    return " and ".join(words)


def _by(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
