"""How ranks share the training of a model: each holds all of it (DDP), or a slice of every weight
(FSDP).

A sharded weight is a DTensor: rank r holds the r-th part of its rows, and the root module gathers
the rest for the length of a pass. Optimizers update the slices. Every pass of a sharded model,
with or without gradient, is one of all ranks: who leaves one out lets the others wait for ever.
"""

from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from learner.distributed import Ranks
from learner.model.folders import UnusableModel
from services.contracts.config.training import Parallel
from services.estimate.training import parallel_on


def agreed_parallel(parallel: Parallel, needed: float, ranks: Ranks) -> Literal["ddp", "fsdp"]:
    """What `training.parallel` means here, the same on every rank. `needed`: bytes that each rank
    would hold between two passes without sharding."""
    if ranks.size == 1 or parallel != "auto" or ranks.device.type != "cuda":
        return parallel_on(parallel, needed, None, ranks.size)
    there = torch.cuda.get_device_properties(ranks.device).total_memory
    (share,) = ranks.max([needed / there])
    return parallel_on(parallel, share, 1.0, ranks.size)


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
    assert dist.group.WORLD is not None
    mesh = DeviceMesh.from_group(dist.group.WORLD, ranks.device.type)
    reduced = None if compute is None else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduced)
    # The root, too: while it is gathered its slices are not to be found at their names, and a pass
    # without gradient would leave it so.
    for module in (*blocks(model, "training.parallel fsdp shards"), passes):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)


def blocks(model: PreTrainedModel, why: str) -> list[nn.Module]:
    """The blocks that `model` is a stack of. Raises UnusableModel, with `why` they are needed,
    where it does not say what its blocks are."""
    kinds = set(model._no_split_modules or ())
    found = [module for module in model.modules() if type(module).__name__ in kinds]
    if not found:
        raise UnusableModel(
            f"{type(model).__name__} does not say what its blocks are, which {why}: leave it out"
        )
    return found


def is_sharded(module: nn.Module) -> bool:
    """Whether each rank holds a slice of the weights of `module`, between its passes."""
    return isinstance(next(module.parameters()), DTensor)
