"""How a model makes its passes: without noise, with recomputed activations, compiled.

torch.compile is for the blocks: norms, activations and residuals become one pass each.

Blocks are compiled one by one, so that all of a kind share their graphs, for any number of tokens.
Attention stays as it is: it reads the layout of a row, and each layout would be another graph.
"""

import torch
from transformers import AttentionInterface, PreTrainedModel

from learner.model.packed_attention import NAME, packed_attention
from learner.model.parallel import blocks
from services.contracts.config.training import Training


def compile_blocks(model: PreTrainedModel) -> None:
    """Compile the blocks of `model` when they are first used, which takes half a minute and a C
    compiler. Raises UnusableModel where it does not say what its blocks are."""
    found = blocks(model, "training.compile compiles")
    # For all models: it changes nothing where nothing is compiled.
    AttentionInterface.register(NAME, torch.compiler.disable(packed_attention))
    for block in found:
        block.compile(dynamic=True)


def make_trainable(model: PreTrainedModel, training: Training) -> None:
    """Have `model` make its passes as the config says. No dropout and no noise in routers, whatever
    its own config says: the sampler has none, and ratios would be random."""
    model.eval()
    if training.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        for module in model.modules():
            if getattr(module, "gradient_checkpointing", False):
                # transformers recomputes in training mode alone, in which a block drops by itself.
                module.training = True
                vars(module).update({n: 0.0 for n, v in vars(module).items() if _drops(n, v)})
    if training.compile:
        compile_blocks(model)


def _drops(name: str, value: object) -> bool:
    return isinstance(value, float) and "drop" in name
