"""The peak memory of a step on one of several ranks, by torch's tracker, without data."""

from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from learner.distributed import Ranks
from learner.model.attention.row_layout import PackedLayout, packed_layout
from learner.model.compiling import make_trainable
from learner.model.head import output_head
from learner.model.passes.logprobs import PackedRow, TokenLogprobs
from learner.model.placement.parallel import shard
from services.estimate.rank_bytes import FLOAT32


class _Flash(torch.autograd.Function):
    """Keep the tensors that the flash kernel keeps. Compute nothing."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3])
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[1:3], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, *_others = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _flash(
    module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, **_: Any
) -> tuple[torch.Tensor, None]:
    return _Flash.apply(q, k, v), None


def tracked_peak(config: dict[str, Any], ranks: int, tokens: int) -> int:
    """Return the peak bytes of one of `ranks` in a step of two micro-batches of `tokens`. The step
    has FSDP, bfloat16 passes and activation checkpointing."""
    AttentionInterface.register("traced", _flash)
    # Chunks of logits as on a GPU.
    output_head.CPU_ROWS, output_head.CPU_VOCABULARY = output_head.ROWS, output_head.VOCABULARY
    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    layout = packed_layout([2])
    # Not under FakeTensorMode: the mesh reads its ranks from a tensor.
    mesh = init_device_mesh("cpu", (ranks,))
    with FakeTensorMode(), patch.object(DeviceMesh, "from_group", return_value=mesh):
        fields = {name: value for name, value in config.items() if name != "model_type"}
        made = AutoConfig.for_model(config["model_type"], **fields)
        model = AutoModelForCausalLM.from_config(made, dtype=torch.float32)
        model.set_attn_implementation("traced")
        make_trainable(model, checkpointing=True, compiled=None)
        policy = TokenLogprobs(model)
        shard(policy, model, torch.bfloat16, Ranks(0, ranks, torch.device("cpu")))
        row = row_of(tokens, layout)
        tracker = FSDPMemTracker(policy)
        with tracker:
            for micro_batch in range(2):
                logprobs, entropy = policy(row, 0.8)
                (logprobs.sum() + 0.1 * entropy.sum()).backward()
                if micro_batch == 0:
                    # Gradients stay between micro-batches.
                    tracker.reset_mod_stats()
        peak = tracker.get_tracker_snapshot("peak")
        weights = sum(parameter.numel() for parameter in model.parameters())
    # AdamW's moments exist from the first step on. Its fused step needs no other memory.
    return int(sum(found["Total"] for found in peak.values())) + 2 * FLOAT32 * weights // ranks


def row_of(tokens: int, layout: PackedLayout) -> PackedRow:
    """A row of one sequence that predicts all tokens but the first. The traced attention ignores
    `layout`."""
    index = torch.zeros(tokens, dtype=torch.int64)
    return PackedRow(index, index, layout, index[1:], index[1:], index[-1:], tokens)
