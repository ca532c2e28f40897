"""The stacked blocks of a model."""

from torch import nn
from transformers import PreTrainedModel

from learner.errors import UnusableModel


def blocks(model: PreTrainedModel, why: str) -> list[nn.Module]:
    """Return the stacked blocks of `model`. Raises UnusableModel, with the reason `why` they are
    needed, if the model does not name its blocks."""
    kinds = set(model._no_split_modules or ())
    stack = [module for module in model.modules() if type(module).__name__ in kinds]
    if not stack:
        raise UnusableModel(
            f"{type(model).__name__} does not say what its blocks are, which {why}: leave it out"
        )
    return stack
