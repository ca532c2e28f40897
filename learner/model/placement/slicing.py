"""Loading a model of which this rank keeps its rows only: no process ever holds all of it.

transformers makes a model on the meta device, then reads its weights. In between, every weight
becomes a DTensor without memory, of which transformers reads this rank's rows; `parallel.shard`
gives these to FSDP.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter

from learner.distributed import Ranks
from learner.slices import sharded_as
from services.runtime.logs import get_logger

log = get_logger(__name__)


def mesh_of(ranks: Ranks) -> DeviceMesh:
    """All ranks, in their order."""
    assert dist.group.WORLD is not None
    return DeviceMesh.from_group(dist.group.WORLD, ranks.device.type)


@contextmanager
def loading_slices(ranks: Ranks | None) -> Iterator[None]:
    """Within it `from_pretrained` leaves this rank its rows of every weight; None: all of them.

    A model whose folder holds other tensors than it has, in ways that mix their rows, is loaded
    whole, and sharded afterwards.
    """
    if ranks is None:
        yield
        return
    mesh = mesh_of(ranks)
    # The one place between the model on the meta device and its weights. transformers' own
    # `fsdp_plan` shards there, too, but the module that makes our passes is not the model's.
    read = PreTrainedModel._load_pretrained_model

    def read_slices(
        model: PreTrainedModel, state: Any, files: Any, options: Any, *rest: Any
    ) -> Any:
        mixing = [one for one in options.weight_mapping or () if not keeps_rows(one)]
        if mixing:
            log.warning("a rank loads the whole model", reason=str(mixing[0]))
        else:
            without_memory(model, mesh)
        return read(model, state, files, options, *rest)

    PreTrainedModel._load_pretrained_model = staticmethod(read_slices)
    try:
        yield
    finally:
        PreTrainedModel._load_pretrained_model = staticmethod(read)


def keeps_rows(conversion: Any) -> bool:
    """Whether rows of a weight are made of the same rows of tensors in its folder, or of whole ones
    (a layer's experts)."""
    if not isinstance(conversion, WeightConverter):
        return True
    return all(
        (isinstance(step, MergeModulelist) and step.dim == 0)
        or (isinstance(step, Concatenate) and step.dim != 0)
        for step in conversion.operations
    ) and any(isinstance(step, MergeModulelist) for step in conversion.operations)


def without_memory(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Make every weight of `model`, on the meta device, a sharded one."""
    for module, name, weight in weights_of(model):
        sliced = sharded_as(weight.detach(), mesh)
        setattr(module, name, nn.Parameter(sliced, requires_grad=weight.requires_grad))


def weights_of(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Every place of every weight: its module, its name there, itself. Tied ones have several."""
    for module in list(model.modules()):
        for name, weight in list(module.named_parameters(recurse=False)):
            yield module, name, weight
