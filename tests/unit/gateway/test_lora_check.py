"""Targets of adapters are compared with the layers that a model's files name."""

import json
from pathlib import Path

from services.contracts.config import RLConfig, parse_config
from services.gateway.lora_check import check_targets

SHAPES = {
    "model.embed_tokens.weight": [10, 4],
    "model.layers.0.self_attn.q_proj.weight": [4, 4],
    "model.layers.0.self_attn.q_proj.bias": [4],
    "model.layers.0.mlp.up_proj.weight": [6, 4],
    "model.layers.0.input_layernorm.weight": [4],
    "lm_head.weight": [10, 4],
}


def config(*targets: str) -> RLConfig:
    made = parse_config(
        {
            "model": {"path": "m", "lora": {"targets": list(targets)} if targets else {}},
            "data": {"dataset": "d"},
            "rewards": [{"verifier": "math"}],
        }
    )
    assert isinstance(made, RLConfig)
    return made


def model(folder: Path) -> Path:
    entries = {n: {"dtype": "F32", "shape": s, "data_offsets": [0, 0]} for n, s in SHAPES.items()}
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


def test_a_lora_target_that_names_no_layer_is_refused_with_the_layers(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    assert check_targets(folder, config("q_proj", "mlp.up_proj")) == []
    assert check_targets(folder, config()) == []
    assert check_targets(folder, config("q_proj", "q_porj", "lm_head")) == [
        ("model.lora.targets", "'q_porj' is no linear layer of the model; it has q_proj, up_proj"),
        ("model.lora.targets", "'lm_head' is no linear layer of the model; it has q_proj, up_proj"),
    ]


def test_lora_targets_of_an_adapter_are_those_of_its_base(tmp_path: Path) -> None:
    base, adapter = model(tmp_path / "model"), tmp_path / "adapter"
    adapter.mkdir()
    said = {"base_model_name_or_path": str(base)}
    (adapter / "adapter_config.json").write_text(json.dumps(said))
    ((_, problem),) = check_targets(adapter, config("k_proj"))
    assert "'k_proj' is no linear layer" in problem


def test_lora_targets_of_an_unreadable_model_are_not_checked(tmp_path: Path) -> None:
    assert check_targets(tmp_path, config("nothing")) == []
    (tmp_path / "model.safetensors").write_bytes(b"PK\x03\x04 a pickle in a zip")
    assert check_targets(tmp_path, config("nothing")) == []
