"""Attention, experts and shared prompts on a GPU: the kernels of half precision against float32.

Needs torch 2.11 or later, transformers and pytest alone:

    PYTHONPATH=. python -m pytest tests/gpu -c /dev/null --rootdir=. --confcutdir=tests/gpu
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

from learner.model.attention.kernels import attend
from learner.model.attention.packed import attention_in_use, use_packed_attention
from learner.model.attention.row_layout import packed_layout
from learner.model.passes.families import cost_of, cut, families_of, sharing_of
from learner.model.passes.logprobs import PackedRow, TokenLogprobs, packed_row
from tests.unit.learner.test_attention_kernels import apart, forest, sees

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = "cuda"
SHAPE: dict[str, Any] = {
    "vocab_size": 32768,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WINDOWS = {"sliding_window": 96, "layer_types": ["sliding_attention", "full_attention"] * 2}
CONFIGS = [
    Qwen3Config(**SHAPE),
    Qwen3Config(**SHAPE, use_sliding_window=True, sliding_window=96, max_window_layers=2),
    Gemma3TextConfig(**SHAPE, **WINDOWS),
    Qwen3MoeConfig(**SHAPE, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=256),
]
IDS = ["qwen3", "qwen3_windows", "gemma3", "qwen3_moe"]


@pytest.mark.parametrize(("kind", "limit"), [(torch.bfloat16, 2e-2), (torch.float32, 1e-5)])
@pytest.mark.parametrize("heads", [(8, 8), (6, 2)], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_parts_of_a_forest_add_up_on_the_gpu(
    seed: int, heads: tuple[int, int], kind: torch.dtype, limit: float
) -> None:
    host = forest(seed)
    layout = packed_layout(host.lengths, DEVICE, host.parents)
    torch.manual_seed(seed)
    h, g = heads
    tokens = host.starts[-1]
    inputs = [torch.randn(tokens, n, 64).to(kind) for n in (h, g, g)]
    upstream = torch.randn(tokens, h, 64).to(kind)
    for window in (None, 2, 7, 33):
        exact = [x.double().requires_grad_() for x in inputs]
        q, k, v = (x.repeat_interleave(h // x.shape[1], 1).transpose(0, 1) for x in exact)
        scores = (q @ k.transpose(1, 2) * 0.3).masked_fill(~sees(host, window), -torch.inf)
        right = (scores.softmax(-1) @ v).transpose(0, 1)
        right_grads = torch.autograd.grad((right * upstream).sum(), exact)
        leaves = [x.to(DEVICE).requires_grad_() for x in inputs]
        q, k, v = leaves
        calls = layout.varlen(window) if kind == torch.bfloat16 else layout.blocks(window)
        out = attend(q, k, v, calls, 0.3)
        grads = torch.autograd.grad((out * upstream.to(DEVICE)).sum(), leaves)
        assert apart(out.cpu(), right, right) < limit
        for grad, other in zip(grads, right_grads, strict=True):
            assert apart(grad.cpu(), other, upstream) < limit


def model_of(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(DEVICE)
    assert use_packed_attention(model) is None
    return model.eval()


def rows(model: PreTrainedModel, shared: bool) -> list[PackedRow]:
    """Four prompts of 400 tokens with eight answers of 20 to 140 each."""
    generator = torch.Generator().manual_seed(1)

    def tokens(n: int) -> torch.Tensor:
        return torch.randint(32768, (n,), generator=generator)

    sequences = []
    for _ in range(4):
        prompt = tokens(400)
        sequences += [torch.cat([prompt, tokens(20 + 17 * i)]) for i in range(8)]
    masks = [torch.arange(len(s)) >= 400 for s in sequences]
    policy = TokenLogprobs(model)
    sharing = sharing_of(policy) if shared else None
    samples: list[Any] = [
        SimpleNamespace(tokens=tokens, loss_mask=mask, experts=None)
        for tokens, mask in zip(sequences, masks, strict=True)
    ]
    families = families_of(samples, 16384, sharing, cost_of(policy))
    return [
        packed_row(
            [sequences[i] for one in chosen for i in one.members],
            [masks[i] for one in chosen for i in one.members],
            model.device,
            shared=[n for one in chosen for n in one.shared],
        )
        for chosen in cut(families, 16384, None)
    ]


def gradients(
    model: PreTrainedModel, shared: bool, autocast: torch.dtype | None
) -> tuple[float, torch.Tensor]:
    """The mean log-probability, and the gradient of the sum of their squares."""
    policy = TokenLogprobs(model, autocast)
    model.zero_grad()
    total, count = 0.0, 0
    for row in rows(model, shared):
        logprobs, _ = policy(row, 0.8)
        logprobs.square().sum().backward()
        total, count = total + float(logprobs.detach().sum()), count + len(logprobs)
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    assert {grad.dtype for grad in grads} == {torch.float32}
    return total / count, torch.cat(grads).cpu()


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_half_precision_and_shared_prompts_train_as_float32_does(config: PreTrainedConfig) -> None:
    model = model_of(config)
    in_use = attention_in_use(model, torch.bfloat16)
    assert in_use.implementation == "varlen flash attention"
    mean, right = gradients(model, shared=False, autocast=None)
    for shared, autocast, limit in (
        (True, None, 1e-4),
        (False, torch.bfloat16, 5e-2),
        (True, torch.bfloat16, 5e-2),
    ):
        found, grads = gradients(model, shared, autocast)
        assert found == pytest.approx(mean, rel=limit)
        # In a mixture of experts rounding can send a token to another expert.
        assert apart(grads, right, right) < limit * (4 if "Moe" in type(model).__name__ else 1)


def test_prompts_are_shared_if_that_saves_most_of_the_tokens() -> None:
    (row,) = rows(model_of(CONFIGS[0]), shared=True)
    assert len(row.tokens) == row.sequence_tokens - 4 * 7 * 400


@pytest.mark.parametrize("config", CONFIGS[:3], ids=IDS[:3])
def test_a_pass_does_not_wait_for_the_gpu(config: PreTrainedConfig) -> None:
    model = model_of(config)
    policy = TokenLogprobs(model, torch.bfloat16)
    (row,) = rows(model, shared=True)
    policy(row, 0.8)[0].sum().backward()
    (row,) = rows(model, shared=True)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        policy(row, 0.8)[0].sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
