"""Split the training of a model over ranks: each rank holds the whole model (DDP), or a slice of
every weight (FSDP).

A sharded weight is a DTensor: rank r holds the r-th part of its rows. A pass gathers the weights of
one block at a time from all ranks. Optimizers update the slices. All ranks must make every pass of
a sharded model together, with or without gradient: a rank that skips a pass deadlocks the others.
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
from learner.model.compiling import blocks
from learner.model.placement.slicing import mesh_of, weights_of

T = TypeVar("T")


def replicate(passes: nn.Module, ranks: Ranks) -> nn.Module:
    """Have the last backward pass of `passes` before an update average gradients over ranks."""
    if ranks.size == 1 or is_sharded(passes):
        return passes
    return DistributedDataParallel(passes, forward_sync_buffers=False)


def shard(
    passes: nn.Module, model: PreTrainedModel, compute: torch.dtype | None, ranks: Ranks
) -> None:
    """Leave each rank its slice of every weight of `model`. `passes` is the module around `model`
    whose `forward` makes its passes: it gathers each block separately, and the remaining weights
    together.

    `compute`: type of the gathered weights and of the passes; None: the type of the weights.
    Gradients are averaged over ranks in float32 after every backward pass, so a rank never holds
    the gradients of the whole model. Raises UnusableModel if the model does not name its blocks.
    """
    mesh = mesh_of(ranks)
    # FSDP expects whole weights, even without memory, and makes slices of them.
    slices = [
        (place, name, weight) for place, name, weight in weights_of(model) if is_slice(weight)
    ]
    unread: dict[int, nn.Parameter] = {}
    for place, name, weight in slices:
        empty = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
        unread.setdefault(id(weight), nn.Parameter(empty, requires_grad=weight.requires_grad))
        setattr(place, name, unread[id(weight)])
    reduced = None if compute is None else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduced)
    # The root is resharded too: while it is gathered, its slices are not under their names, and a
    # pass without gradient would leave it gathered.
    for module in (*blocks(model, "training.parallel fsdp shards"), passes):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    for place, name, weight in slices:
        setattr(place, name, weight)
    # Moves nothing, but makes FSDP update its record of the slices.
    passes.to(ranks.device)


def gathered(passes: nn.Module, action: Callable[[], T]) -> T:
    """Return the result of `action`, which computes with the model inside `passes` without its
    `forward`. For a sharded model all ranks call this together."""
    if not is_sharded(passes):
        return action()
    passes.acting = action  # type: ignore[assignment]
    register_fsdp_forward_method(passes, "acting")
    try:
        return cast(T, passes.acting())  # type: ignore[operator]
    finally:
        del passes.acting


def is_sharded(module: nn.Module) -> bool:
    """Whether each rank holds a slice of the weights of `module` between its passes."""
    return is_slice(next(module.parameters()))


def is_slice(weight: torch.Tensor) -> bool:
    """Whether a rank holds some rows of `weight`."""
    return isinstance(weight, DTensor)
