"""The blocks that a model is a stack of."""

from torch import nn
from transformers import PreTrainedModel

from learner.errors import UnusableModel


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
