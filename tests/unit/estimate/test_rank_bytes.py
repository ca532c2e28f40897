"""The estimate of training memory against models of transformers: numbers of weights, and what
autograd keeps."""

from typing import Any

import pytest
import torch
from transformers import (
    AttentionInterface,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from learner.model.pass_weights import computing_in
from services.contracts.config.model import ScratchModel
from services.contracts.config.optimizer import AdamW, AdamW8bit, MuonAdamW
from services.estimate.model_shape import ModelShape, scratch_shape, shape_of
from services.estimate.rank_bytes import (
    Memory,
    Parallel,
    Pass,
    activations,
    in_a_pass,
    parallel_on,
    resident,
)
from tests.unit.estimate.known import LLAMA_8B, QWEN3_8B, QWEN3_30B_A3B

GB = 10**9


def described(config: dict[str, Any]) -> ModelShape:
    found = shape_of(config)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("config", "kind", "made"),
    [
        (LLAMA_8B, LlamaForCausalLM, LlamaConfig),
        (QWEN3_8B, Qwen3ForCausalLM, Qwen3Config),
        (QWEN3_30B_A3B, Qwen3MoeForCausalLM, Qwen3MoeConfig),
    ],
    ids=["llama", "qwen3", "qwen3_moe"],
)
def test_a_config_and_its_weights_give_the_numbers_of_the_model(
    config: dict[str, Any], kind: Any, made: Any
) -> None:
    with torch.device("meta"):
        model = kind(made(**config | {"num_hidden_layers": 3}))
    every = {name: tuple(p.shape) for name, p in model.named_parameters()}
    count = sum(p.numel() for p in model.parameters())
    block = sum(p.numel() for p in model.model.layers[0].parameters())

    for found in (
        described(config | {"num_hidden_layers": 3}),
        shape_of(config | {"num_hidden_layers": 3}, every),
    ):
        assert found is not None
        # Without weights, norms of queries and keys are left out.
        assert found.parameters == pytest.approx(count, rel=1e-5)
        assert found.block == pytest.approx(block, rel=1e-5)
        assert found.head == found.embedding == config["vocab_size"] * config["hidden_size"]
        assert found.query_norm == (kind is not LlamaForCausalLM)


def test_a_model_without_widths_has_no_shape() -> None:
    assert shape_of({"model_type": "mamba"}) is None
    assert shape_of({"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 9}) is None


def test_the_text_part_of_a_model_of_several_parts_counts() -> None:
    found = described({"model_type": "x", "text_config": LLAMA_8B})
    assert found == described(LLAMA_8B)


def test_a_model_from_scratch_has_a_shape() -> None:
    found = scratch_shape(ScratchModel(source="scratch"))
    assert (found.hidden, found.layers, found.vocabulary) == (128, 4, 22)


class Flash(torch.autograd.Function):
    """Keeps what a flash kernel keeps."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(q).transpose(1, 2).contiguous()
        ctx.save_for_backward(q, k, v, out)
        return out


def flash(
    module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, **_: Any
) -> tuple[torch.Tensor, None]:
    return Flash.apply(q, k, v), None


def kept(model: PreTrainedModel, tokens: int, autocast: bool) -> int:
    """Bytes that a forward pass keeps for the backward pass, weights included."""
    seen: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        computing_in(model, torch.bfloat16 if autocast else None),
    ):
        model.model(torch.zeros(1, tokens, dtype=torch.int64), use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())


@pytest.mark.parametrize(
    ("parallel", "half"), [("ddp", True), ("fsdp", True), ("ddp", False), ("fsdp", False)]
)
@pytest.mark.parametrize(
    ("kind", "made", "sizes"),
    [
        (LlamaForCausalLM, LlamaConfig, {"head_dim": 32}),
        (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 64}),
    ],
    ids=["llama", "qwen3"],
)
def test_activations_are_what_autograd_keeps(
    kind: Any, made: Any, sizes: dict[str, int], parallel: Parallel, half: bool
) -> None:
    AttentionInterface.register("counted", flash)
    config = {
        "vocab_size": 64,
        "hidden_size": 192,
        "intermediate_size": 640,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        **sizes,
    }
    counts = []
    for layers in (1, 2):
        model = kind(made(**config, num_hidden_layers=layers))
        model.set_attn_implementation("counted")
        autocast = half and parallel == "ddp"
        model = model.bfloat16() if half and not autocast else model
        # Weights do not grow with the tokens.
        counts.append(kept(model, 256, autocast) - kept(model, 128, autocast))
    found = described(config | {"num_hidden_layers": 1, "model_type": made.model_type})
    estimate = activations(found, Pass(2, parallel, half, 128))
    assert estimate == pytest.approx(counts[1] - counts[0], rel=0.02)


def test_ddp_holds_sixteen_bytes_a_weight_its_buckets_and_casts() -> None:
    shape = described(LLAMA_8B)
    how = Pass(8, "ddp", half=True, tokens=16_384, checkpointing=True)
    held = resident(shape, AdamW(), shape.parameters, how)
    assert held == Memory(
        weights=4 * shape.parameters,
        gradients=4 * shape.parameters,
        optimizer=8 * shape.parameters,
    )
    # 4 bytes of buckets, and 2 of the blocks' casts.
    blocks = shape.parameters - shape.embedding - shape.head
    assert in_a_pass(shape, shape.parameters, how).buffers == 4 * shape.parameters + 2 * blocks


def test_slices_of_every_rank_make_the_whole_and_fit_eight_gpus() -> None:
    shape = described(QWEN3_8B)
    how = Pass(8, "fsdp", half=True, tokens=16_384, checkpointing=True)
    held = resident(shape, AdamW(), shape.parameters, how)
    assert held.total == pytest.approx(2 * shape.parameters, rel=1e-6)
    assert held.total + in_a_pass(shape, shape.parameters, how).total < 0.8 * 80 * GB


def test_an_optimizers_moments_and_a_frozen_model_cost_what_they_are() -> None:
    shape, alone = described(QWEN3_8B), Pass(1, "ddp", True, 1024)
    n, outside = shape.parameters, shape.embedding + shape.head
    assert resident(shape, AdamW8bit(type="adamw_8bit"), n, alone).optimizer == 2 * n
    muon = resident(shape, MuonAdamW(type="muon"), n, alone)
    assert muon.optimizer == 4 * n + 4 * outside
    assert resident(shape, None, 0, alone, frozen=2) == Memory(weights=2 * n)
    # Adapters of a tenth of a percent: frozen weights in bfloat16.
    thin = resident(shape, AdamW(), n // 1000, alone, frozen=2)
    assert thin.weights == 4 * (n // 1000) + 2 * (n - n // 1000)


@pytest.mark.parametrize(
    ("parallel", "ranks", "memory", "expected"),
    [
        ("auto", 8, 80 * GB, "fsdp"),
        ("auto", 8, 400 * GB, "ddp"),
        ("auto", 1, 80 * GB, "ddp"),
        ("auto", 2, None, "ddp"),
        ("fsdp", 2, None, "fsdp"),
        ("fsdp", 1, None, "ddp"),
        ("ddp", 8, 80 * GB, "ddp"),
    ],
)
def test_ranks_shard_what_fills_more_than_half_of_a_gpu(
    parallel: str, ranks: int, memory: int | None, expected: str
) -> None:
    assert parallel_on(parallel, 160 * GB, memory, ranks) == expected
