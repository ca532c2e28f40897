"""Targets of adapters are compared with the layers that a model's files name."""

from pathlib import Path

from services.contracts.config.lora import LoRA
from services.gateway.submission.lora_check import check_targets
from services.models import ModelFolder
from services.models.headers import Tensors

SHAPES = {
    "model.embed_tokens.weight": (10, 4),
    "model.layers.0.self_attn.q_proj.weight": (4, 4),
    "model.layers.0.self_attn.q_proj.bias": (4,),
    "model.layers.0.mlp.up_proj.weight": (6, 4),
    "model.layers.0.input_layernorm.weight": (4,),
    "lm_head.weight": (10, 4),
}


def lora(*targets: str) -> LoRA:
    return LoRA(targets=list(targets) or None)


def model(folder: Path) -> ModelFolder:
    return ModelFolder(folder, tensors=Tensors(SHAPES))


def test_a_lora_target_that_names_no_layer_is_refused_with_the_layers(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    assert check_targets(folder, lora("q_proj", "mlp.up_proj")) == []
    assert check_targets(folder, lora()) == []
    assert check_targets(folder, lora("q_proj", "q_porj", "lm_head")) == [
        ("model.lora.targets", "'q_porj' is no linear layer of the model; it has q_proj, up_proj"),
        ("model.lora.targets", "'lm_head' is no linear layer of the model; it has q_proj, up_proj"),
    ]


def test_lora_targets_of_an_unknown_model_are_not_checked(tmp_path: Path) -> None:
    assert check_targets(ModelFolder(tmp_path), lora("nothing")) == []
