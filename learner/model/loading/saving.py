"""What is written of a model: its description, and its weights on the host, by the names of model
folders."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from learner.errors import UnusableModel
from learner.model.loading.models import LoadedModel
from learner.slices import WHOLE, Part, whole


def save_description(loaded: LoadedModel, folder: Path) -> None:
    """Config, generation config and tokenizer into `folder`: all of a model but its weights.

    The config names the type that is published, so that vLLM's `auto` picks it. Raises OSError, and
    UnusableModel for what transformers read and cannot write.
    """
    try:
        loaded.model.config.save_pretrained(folder)
        if loaded.model.generation_config is not None:
            loaded.model.generation_config.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:
        raise UnusableModel(
            f"the model's config or tokenizer cannot be written: {error}"
        ) from error
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["dtype"] = str(loaded.publish_dtype).removeprefix("torch.")
    config["architectures"] = [type(loaded.model).__name__]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def weight_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights by the names they have in `model`, tied ones once."""
    seen: set[int] = set()
    tensors: dict[str, torch.Tensor] = {}
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    named = model.state_dict(keep_vars=True)
    for name, tensor in sorted(named.items(), key=lambda item: item[0] in tied):
        # A slice may be empty, and has no address then.
        place = id(tensor) if isinstance(tensor, DTensor) else tensor.data_ptr()
        if place in seen and tensor.numel() > 0:
            continue
        seen.add(place)
        tensors[name] = tensor.detach()
    return dict(sorted(tensors.items()))


def on_host(
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype | None = None,
    part: Part | None = WHOLE,
) -> dict[str, torch.Tensor]:
    """A copy of `part` of `tensors` in host memory, in their own type or in `dtype`.

    Sharded ones are gathered one by one, with the slices of all ranks, so that no device holds two.
    With `part` None this rank gives its slices and keeps nothing.
    """
    copied, kept = {}, part.of(tensors) if part else set()
    for name, tensor in tensors.items():
        # In the smaller type before it is sent to the other ranks.
        every = whole(tensor.to(dtype or tensor.dtype))
        if name in kept:
            copied[name] = every.to("cpu", copy=True).contiguous()
    return copied


def as_in_a_folder(
    model: PreTrainedModel, tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """`tensors` by the names of a model folder, which vLLM's `load_weights` takes: transformers
    holds all experts of a layer in one tensor, which is split here. Copies these, so `tensors`
    should be on the host."""
    cut = revert_weight_conversion(model, tensors)
    return {name: tensor.contiguous() for name, tensor in sorted(cut.items())}
