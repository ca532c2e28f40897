"""Whether a model has the layers that `model.lora` names, by the headers of its weight files.

The learner decides, which has the model; where its files are here, a user need not wait for that.
"""

from services.contracts.config.lora import LoRA
from services.gateway.submission.model_check import Problems
from services.models import ModelFolder

NO_LAYERS = ("embed", "lm_head", "wte", "wpe")
"""Parts of names whose matrices are those of embeddings, or of the head."""


def check_targets(folder: ModelFolder, lora: LoRA | None) -> Problems:
    """A problem for each target that no layer's name ends with."""
    if lora is None or not lora.targets:
        return []
    layers = {
        name.removesuffix(".weight")
        for name, shape in folder.tensors.items()
        if name.endswith(".weight") and len(shape) == 2 and not any(no in name for no in NO_LAYERS)
    }
    ends = ", ".join(sorted({layer.rpartition(".")[2] for layer in layers}))
    return [
        ("model.lora.targets", f"{target!r} is no linear layer of the model; it has {ends}")
        for target in lora.targets
        if layers and not any(f".{layer}".endswith(f".{target}") for layer in layers)
    ]
