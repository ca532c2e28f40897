"""How ranks share the training of a model: each holds all of it (DDP), or a slice of every weight
(FSDP).

A sharded weight is a DTensor: rank r holds the r-th part of its rows, and the root module gathers
the rest for the length of a pass. Optimizers update the slices. Every pass of a sharded model,
with or without gradient, is one of all ranks: who leaves one out lets the others wait for ever.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch import nn
from torch.distributed.fsdp import (
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from learner.distributed import Ranks
from learner.model.placement.blocks import blocks
from learner.model.placement.slicing import mesh_of, weights_of

T = TypeVar("T")


def replicate(passes: nn.Module, ranks: Ranks) -> nn.Module:
    """`passes` so that its last backward pass before an update averages gradients over ranks."""
    if ranks.size == 1 or is_sharded(passes):
        return passes
    return DistributedDataParallel(passes, forward_sync_buffers=False)


def shard(
    passes: nn.Module, model: PreTrainedModel, compute: torch.dtype | None, ranks: Ranks
) -> None:
    """Leave each rank its slice of every weight of `model`, and have `passes`, the module around it
    whose `forward` makes its passes, gather them: each block for itself, the rest together.

    `compute`: the type of the gathered weights and of the passes; None: that of the weights.
    Gradients are averaged over ranks in float32, after every backward pass: a rank never holds
    those of the whole model. Raises UnusableModel where the model does not name its blocks.
    """
    mesh = mesh_of(ranks)
    # FSDP takes whole weights, also such without memory, and makes slices of them.
    slices = [(place, name, one) for place, name, one in weights_of(model) if is_slice(one)]
    unread: dict[int, nn.Parameter] = {}
    for place, name, one in slices:
        empty = torch.empty(one.shape, dtype=one.dtype, device="meta")
        unread.setdefault(id(one), nn.Parameter(empty, requires_grad=one.requires_grad))
        setattr(place, name, unread[id(one)])
    reduced = None if compute is None else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduced)
    # The root, too: while it is gathered its slices are not to be found at their names, and a pass
    # without gradient would leave it so.
    for module in (*blocks(model, "training.parallel fsdp shards"), passes):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    for place, name, one in slices:
        setattr(place, name, one)
    # Moves nothing: FSDP looks again at what its slices are.
    passes.to(ranks.device)


def gathered(passes: nn.Module, action: Callable[[], T]) -> T:
    """The result of `action`, which computes with the model inside `passes` other than by its
    `forward`. All ranks call it for a sharded one."""
    if not is_sharded(passes):
        return action()
    passes.acting = action  # type: ignore[assignment]
    register_fsdp_forward_method(passes, "acting")
    try:
        return cast(T, passes.acting())  # type: ignore[operator]
    finally:
        del passes.acting


def is_sharded(module: nn.Module) -> bool:
    """Whether each rank holds a slice of the weights of `module`, between its passes."""
    return is_slice(next(module.parameters()))


def is_slice(weight: torch.Tensor) -> bool:
    """Whether a rank holds some rows of `weight`."""
    return isinstance(weight, DTensor)
