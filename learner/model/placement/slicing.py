"""Load only this rank's rows of a model: no process ever holds the whole model.

transformers creates a model on the meta device, then reads its weights. In between, every weight
becomes a DTensor without memory, and transformers reads this rank's rows into it. `parallel.shard`
hands these rows to FSDP.
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
    assert dist.group.WORLD is not None
    return DeviceMesh.from_group(dist.group.WORLD, ranks.device.type)


@contextmanager
def loading_slices(ranks: Ranks | None) -> Iterator[None]:
    """Within the block, `from_pretrained` loads only this rank's rows of every weight. None: all
    rows.

    If the model's folder holds its tensors in a layout that mixes their rows, the model is loaded
    whole and sharded afterwards.
    """
    if ranks is None:
        yield
        return
    mesh = mesh_of(ranks)
    # The only hook between the creation of the model and the loading of its weights. transformers'
    # own `fsdp_plan` also shards there, but our passes are made by another module than the model.
    read = PreTrainedModel._load_pretrained_model

    def read_slices(
        model: PreTrainedModel, state: Any, files: Any, options: Any, *rest: Any
    ) -> Any:
        mixing = [
            conversion for conversion in options.weight_mapping or () if not keeps_rows(conversion)
        ]
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
    """Whether each row of a weight is made from the same row of tensors in its folder, or from
    whole tensors (a layer's experts)."""
    if not isinstance(conversion, WeightConverter):
        return True
    return all(
        (isinstance(step, MergeModulelist) and step.dim == 0)
        or (isinstance(step, Concatenate) and step.dim != 0)
        for step in conversion.operations
    ) and any(isinstance(step, MergeModulelist) for step in conversion.operations)


def without_memory(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Replace every weight of `model`, which is on the meta device, by a sharded weight."""
    for module, name, weight in weights_of(model):
        sliced = sharded_as(weight.detach(), mesh)
        setattr(module, name, nn.Parameter(sliced, requires_grad=weight.requires_grad))


def weights_of(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Yield every place of every weight: its module, its name there, and the weight. A tied weight
    has several places."""
    for module in list(model.modules()):
        for name, weight in list(module.named_parameters(recurse=False)):
            yield module, name, weight
