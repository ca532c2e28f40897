"""Models whose sequences stay separate in a packed row are loaded. Others are refused in words."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BloomConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    Lfm2Config,
    PreTrainedConfig,
    Qwen3NextConfig,
)

from learner.errors import UnusableModel
from learner.model.loading import model_loader
from learner.model.loading.model_loader import load_critic, load_model
from learner.model.passes.packing_check import mixes_sequences
from services.contracts.config.model import PretrainedModel
from tests.unit.learner.policies import tiny_model

SHAPE: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
QWEN_NEXT = Qwen3NextConfig(
    **SHAPE,
    layer_types=["linear_attention", "full_attention"],
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
    linear_num_key_heads=2,
    linear_num_value_heads=2,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    num_labels=1,
)


def in_folder(folder: Path, config: PreTrainedConfig, kind: Any = AutoModelForCausalLM) -> str:
    """A folder with a model of random weights, as large as trained ones."""
    torch.manual_seed(0)
    model = kind.from_config(config)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    model.save_pretrained(folder)
    tiny_model().tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=24, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2),
        GPTNeoXConfig(**SHAPE | {"num_key_value_heads": None}),
        Gemma3TextConfig(**SHAPE, sliding_window=4),
        # Its attention cannot use our packed rows, and goes through transformers' mask.
        Gemma2Config(**SHAPE, final_logit_softcapping=None),
    ],
    ids=lambda c: c.model_type,
)
def test_sequences_that_only_see_themselves_can_be_packed(
    tmp_path: Path, config: PreTrainedConfig
) -> None:
    path = in_folder(tmp_path, config)
    load_model(path, PretrainedModel(path=path))


@pytest.mark.parametrize(
    "config",
    [
        QWEN_NEXT,
        Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]),
        # Their masks ignore packed rows.
        BloomConfig(vocab_size=24, hidden_size=32, n_layer=2, n_head=2),
        GptOssConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2),
    ],
    ids=lambda c: c.model_type,
)
def test_a_model_that_looks_beyond_the_ends_of_a_packed_sequence_is_refused(
    tmp_path: Path, config: PreTrainedConfig
) -> None:
    path = in_folder(tmp_path, config)
    with pytest.raises(UnusableModel, match=r"\w+ForCausalLM mixes the sequences"):
        load_model(path, PretrainedModel(path=path))


def test_a_critic_that_looks_beyond_the_ends_of_a_packed_sequence_is_refused(
    tmp_path: Path,
) -> None:
    path = in_folder(tmp_path, QWEN_NEXT, AutoModelForSequenceClassification)
    with pytest.raises(UnusableModel, match=r"the critic's model .* mixes the sequences"):
        load_critic(path, PretrainedModel(path=path), tiny_model().model)


def test_the_attention_that_trains_is_the_one_that_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a pass in bfloat16 has another kernel than one in float32."""

    class Mixes(type(tiny_model().model.base_model)):  # type: ignore[misc]
        def forward(self, *arguments: Any, **options: Any) -> Any:
            output = super().forward(*arguments, **options)
            if torch.is_autocast_enabled("cpu"):
                output.last_hidden_state = output.last_hidden_state.cumsum(1)
            return output

    model = tiny_model().model
    model.base_model.__class__ = Mixes
    assert mixes_sequences(model) is None
    assert "mixes the sequences" in (mixes_sequences(model, torch.bfloat16) or "")

    asked: list[torch.dtype | None] = []
    monkeypatch.setattr(
        model_loader, "mixes_sequences", lambda _, autocast=None: asked.append(autocast)
    )
    path = in_folder(tmp_path, GPTNeoXConfig(**SHAPE | {"num_key_value_heads": None}))
    load_model(path, PretrainedModel(path=path, dtype="bfloat16"))
    assert asked == [torch.bfloat16]
