"""The tensors that reach the kernels of attention: types, sizes, and the models that keep their own
mask. test_logprobs tests with whole models that packed rows equal separate sequences."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

from learner.model.attention import packed as packed_attention
from learner.model.attention.packed import attention_in_use, use_packed_attention
from learner.model.passes.logprobs import hidden_states, packed_row
from tests.unit.learner import varlen_kernel

SHAPE: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
GEMMA3 = Gemma3TextConfig(
    **SHAPE, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
)
CONFIGS = [
    LlamaConfig(**SHAPE),
    Qwen3Config(**SHAPE),
    Qwen3MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
    GEMMA3,
]


class Recorded(TorchDispatchMode):
    """The types of the tensors that kernels of attention get, and the largest tensor made."""

    def __init__(self) -> None:
        super().__init__()
        self.types: dict[str, set[torch.dtype]] = {}
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = func(*args, **(kwargs or {}))
        if "flash_attention" in str(func):
            tensors = args[:6] if "backward" in str(func) else args[:3]
            # The log-sum-exp is float32 in any case.
            kinds = {x.dtype for x in tensors[:5]}
            self.types.setdefault(func.overloadpacket.__name__, set()).update(kinds)
        for one in found if isinstance(found, tuple) else (found,):
            if isinstance(one, torch.Tensor):
                self.largest = max(self.largest, one.numel())
        return found


def model_of(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def a_pass(model: PreTrainedModel, lengths: list[int], autocast: torch.dtype | None) -> Recorded:
    """Forward and backward, recorded."""
    sequences = [torch.arange(n) % 23 + 1 for n in lengths]
    row = packed_row(sequences, [torch.zeros(n, dtype=torch.bool) for n in lengths])
    with Recorded() as recorded:
        hidden_states(model, row, autocast).float().sum().backward()
    return recorded


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.model_type)
def test_under_autocast_kernels_get_its_type_alone(config: PreTrainedConfig) -> None:
    model = model_of(config)
    assert use_packed_attention(model) is None
    recorded = a_pass(model, [9, 3], torch.bfloat16)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    assert recorded.types == {name: {torch.bfloat16}, f"{name}_backward": {torch.bfloat16}}
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.model_type)
def test_a_pass_in_half_precision_uses_the_varlen_kernel_if_available(
    monkeypatch: pytest.MonkeyPatch, config: PreTrainedConfig
) -> None:
    called: list[torch.dtype] = []

    def forward(*arguments: Any, **options: Any) -> Any:
        called.extend(x.dtype for x in arguments[:3])
        return varlen_kernel.forward(*arguments, **options)

    varlen_kernel.stand_in(monkeypatch)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", forward)
    monkeypatch.setattr(
        packed_attention, "takes_varlen", lambda _, kind: kind in (torch.float16, torch.bfloat16)
    )
    model = model_of(config)
    use_packed_attention(model)
    recorded = a_pass(model, [9, 3], torch.bfloat16)
    assert called == [torch.bfloat16] * 3 * config.num_hidden_layers
    assert not recorded.types


@pytest.mark.parametrize("config", [CONFIGS[0], GEMMA3], ids=lambda c: c.model_type)
def test_no_tensor_of_a_pass_has_the_square_of_the_row(config: PreTrainedConfig) -> None:
    model = model_of(config)
    use_packed_attention(model)
    lengths = [300, 200, 200]
    assert a_pass(model, lengths, None).largest < sum(lengths) ** 2 / 4


@pytest.mark.parametrize("window", [None, 4, 9])
def test_cached_keys_before_the_queries_are_seen_as_far_as_the_window(window: int | None) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 12, 8) for heads in (4, 2, 2))
    whole, _ = packed_attention.packed_attention(
        torch.nn.Identity(), q, k, v, None, sliding_window=window
    )
    for queries in (1, 5):
        last, _ = packed_attention.packed_attention(
            torch.nn.Identity(), q[:, :, -queries:], k, v, None, sliding_window=window
        )
        torch.testing.assert_close(last, whole[:, -queries:])


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (Gemma2Config(**SHAPE), "Gemma2ForCausalLM caps its attention scores"),
        (
            GptOssConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2),
            "GptOssForCausalLM has learned attention sinks",
        ),
        (
            Llama4TextConfig(**SHAPE, layer_types=["chunked_attention", "full_attention"]),
            "Llama4ForCausalLM attends in chunks",
        ),
    ],
    ids=lambda x: getattr(x, "model_type", ""),
)
def test_a_model_that_attends_otherwise_keeps_its_mask_and_says_why(
    config: PreTrainedConfig, why: str
) -> None:
    model = model_of(config)
    before = model.config._attn_implementation
    assert use_packed_attention(model) == why
    in_use = f"transformers' {before}, with a mask of each row: {why}"
    assert str(attention_in_use(model, torch.bfloat16)) == in_use


def test_the_implementation_in_use_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(CONFIGS[0])
    in_use = attention_in_use(model, torch.bfloat16)
    assert str(in_use) == "flash attention in blocks: the learner computes on a cpu"
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    for capability, autocast, words in [
        ((9, 0), torch.bfloat16, "varlen flash attention: the passes are in bfloat16 on CUDA"),
        (
            (9, 0),
            None,
            "memory-efficient attention in blocks: varlen flash attention has no float32",
        ),
        (
            (7, 5),
            torch.float16,
            "memory-efficient attention in blocks: varlen flash attention needs compute "
            "capability 8.0, that of an A100",
        ),
    ]:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert str(attention_in_use(model, autocast)) == words
