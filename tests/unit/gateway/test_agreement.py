"""A config.json and weights that contradict each other are named, with the way out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from services.models import check_folder
from services.models.agreement import Contradictions, contradictions

CONFIG: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 6,
    "hidden_size": 4,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": False,
}
LAYER = {
    "self_attn.q_proj.weight": (4, 4),
    "self_attn.k_proj.weight": (2, 4),
    "self_attn.v_proj.weight": (2, 4),
    "self_attn.o_proj.weight": (4, 4),
    "self_attn.q_proj.bias": (4,),
    "self_attn.k_proj.bias": (2,),
    "self_attn.v_proj.bias": (2,),
    "mlp.gate_proj.weight": (8, 4),
    "mlp.up_proj.weight": (8, 4),
    "mlp.down_proj.weight": (4, 8),
    "input_layernorm.weight": (4,),
    "post_attention_layernorm.weight": (4,),
}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def weights(layers: int = 2, vocabulary: int = 6) -> dict[str, Any]:
    shapes = {f"model.layers.{at}.{n}": shape for at in range(layers) for n, shape in LAYER.items()}
    shapes |= dict.fromkeys((EMBEDDING, HEAD), (vocabulary, 4))
    shapes["model.norm.weight"] = (4,)
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


def without(tensors: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def said(folder: Path, tensors: dict[str, Any], **config: Any) -> Contradictions:
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    save_file(tensors, folder / "model.safetensors")
    return contradictions(check_folder(folder))


@pytest.mark.parametrize(
    ("tensors", "config"),
    [
        (weights(), {}),
        (without(weights(), HEAD), {"tie_word_embeddings": True}),
        # As many savers do: the embedding twice.
        (weights(), {"tie_word_embeddings": True}),
        ({n.removeprefix("model."): t for n, t in weights().items()}, {}),
        (weights() | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(1, np.float32)}, {}),
        (weights(3), {"num_nextn_predict_layers": 1}),
        # Unknown architectures and code of their own have other tensors.
        (weights() | {"model.extra.weight": np.ones(1, np.float32)}, {"model_type": "other"}),
        (weights() | {"model.extra.weight": np.ones(1, np.float32)}, {"auto_map": {"A": "b.C"}}),
    ],
)
def test_a_model_whose_config_and_weights_agree_has_nothing_to_say(
    tmp_path: Path, tensors: dict[str, Any], config: dict[str, Any]
) -> None:
    assert said(tmp_path, tensors, **config) == Contradictions()


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        (
            weights(),
            {"torch_dtype": "float99"},
            "config.json says dtype 'float99', which is no type of torch: set it to the type of "
            "the weights, like bfloat16",
        ),
        (
            weights() | {HEAD: np.zeros((6, 4), np.float32)},
            {"tie_word_embeddings": True},
            "config.json says tie_word_embeddings, and the files have another lm_head.weight: set "
            "it to false",
        ),
        (
            without(weights(), HEAD),
            {},
            "config.json says tie_word_embeddings false, and the files have no output head "
            "(lm_head.weight): set it to true if the embedding is the head",
        ),
        (
            weights(vocabulary=9),
            {},
            "config.json says vocab_size 6, and model.embed_tokens.weight has 9 rows: set it to 9",
        ),
        (
            weights(vocabulary=9),
            {"model_type": "other"},
            "config.json says vocab_size 6, and model.embed_tokens.weight has 9 rows: set it to 9",
        ),
        (
            weights(1),
            {},
            "config.json says num_hidden_layers 2, and the weights' files have no layer 1: set it "
            "to 1, or copy the files again",
        ),
        (
            without(weights(), "model.layers.1.mlp.up_proj.weight"),
            {},
            "the weights' files lack model.layers.1.mlp.up_proj.weight, which config.json asks "
            "for: correct config.json, or copy the files again",
        ),
        (
            weights(),
            {"num_key_value_heads": 2},
            "config.json makes model.layers.0.self_attn.k_proj.bias 4, and the weights' files have "
            "2: correct config.json",
        ),
        (
            {**weights(), "model.norm.weight": np.ones(4, np.int8)},
            {},
            "the weights' files have I8 numbers, and config.json has no quantization_config that "
            "says how to read them: name the model that was quantised",
        ),
    ],
)
def test_a_contradiction_that_makes_two_models_of_one_is_refused(
    tmp_path: Path, tensors: dict[str, Any], config: dict[str, Any], words: str
) -> None:
    assert said(tmp_path, tensors, **config).refused[0] == words


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        (
            weights(3),
            {},
            "config.json says num_hidden_layers 2, and the weights' files have layers up to 2: the "
            "last 1 are not used; set it to 3 if they belong to the model",
        ),
        (
            weights(),
            {"model_type": "llama"},
            "the weights' files have model.layers.0.self_attn.k_proj.bias, "
            "model.layers.0.self_attn.q_proj.bias, model.layers.0.self_attn.v_proj.bias and 3 "
            "more, which config.json does not ask for: they are not used, and what is trained "
            "lacks them; if they belong to the model, correct attention_bias or mlp_bias",
        ),
        (
            {**weights(), "model.norm.weight": np.ones(4, np.float16)},
            {},
            "the weights' files mix types: F32 (98.9%) and F16 (1.1%); the run trains all in "
            "float32, and publishes all in one type (model.dtype)",
        ),
    ],
)
def test_weights_that_are_not_used_as_they_are_are_named(
    tmp_path: Path, tensors: dict[str, Any], config: dict[str, Any], words: str
) -> None:
    assert said(tmp_path, tensors, **config) == Contradictions([], [words])


def test_weights_in_unread_files_are_named_instead_of_compared(tmp_path: Path) -> None:
    save_file({"output.weight": np.ones((9, 4), np.float32)}, tmp_path / "consolidated.safetensors")
    assert said(tmp_path, weights()).warnings == [
        "weights in consolidated.safetensors are not read, since other files come first: remove "
        "the files that do not belong to the model"
    ]
