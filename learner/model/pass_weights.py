"""The weights with which a model's passes compute in half precision, although its own are float32.

In a pass, copies in the type of the pass replace the weights of the blocks. They are made once a
pass, also if the backward pass computes the blocks again, and gradients reach the float32 weights
through them. The embedding's output is cast, too, so the blocks pass on half as many bytes as under
autocast alone, as with FSDP and in vLLM. Autocast remains, for products with what is still float32.

Embedding and output head keep their weights: `output_head` casts the head chunk by chunk, and adds
up its gradient in float32.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from transformers import PreTrainedModel

Contexts = tuple[AbstractContextManager[None], AbstractContextManager[None]]

_in_use: "PassWeights | None" = None
"""The weights of the pass in progress."""


class PassWeights:
    """Copies of the weights of a model's blocks in the type `kind`, for one pass."""

    def __init__(self, model: PreTrainedModel, kind: torch.dtype) -> None:
        outside = {
            id(weight)
            for module in (model.get_input_embeddings(), model.get_output_embeddings())
            if module is not None
            for weight in module.parameters()
        }
        copies: dict[int, torch.Tensor] = {}
        self._places: list[tuple[dict[str, torch.Tensor | None], str, nn.Parameter]] = []
        for module in model.base_model.modules():
            if not _fits(module):
                continue
            for name, weight in module.named_parameters(recurse=False):
                if weight.dtype == torch.float32 and id(weight) not in outside:
                    self._places.append((module._parameters, name, weight))
                    if id(weight) not in copies:
                        copies[id(weight)] = weight.to(kind)
        self._copies = copies

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Replace the model's weights within the block."""
        for parameters, name, weight in self._places:
            parameters[name] = self._copies[id(weight)]
        try:
            yield
        finally:
            for parameters, name, weight in self._places:
                parameters[name] = weight


def _fits(module: nn.Module) -> bool:
    """Whether CUDA's grouped products support the sizes of the experts in `module`, if it has any,
    in half precision. Their rows must begin at multiples of 16 bytes."""
    weights = module.parameters(recurse=False)
    return all(size % 8 == 0 for weight in weights if weight.ndim == 3 for size in weight.shape[1:])


@contextmanager
def computing_in(model: PreTrainedModel, kind: torch.dtype | None) -> Iterator[None]:
    """Compute in `kind` within the block, a pass of `model`. None: in the type of the weights."""
    global _in_use
    if kind is None:
        yield
        return

    def cast(module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        return output.to(kind)

    before, _in_use = _in_use, PassWeights(model, kind)
    hook = model.get_input_embeddings().register_forward_hook(cast)
    try:
        with _in_use.replacing(), torch.autocast(model.device.type, kind):
            yield
    finally:
        hook.remove()
        _in_use = before


def contexts_of_recomputation() -> Contexts:
    """Return contexts for a block, in its pass and when the backward pass computes it again
    (`context_fn` of `torch.utils.checkpoint`). The second has the weights of the pass."""
    return nullcontext(), nullcontext() if _in_use is None else _in_use.replacing()


CHECKPOINTING: dict[str, bool | Callable[[], Contexts]] = {
    "use_reentrant": False,
    "context_fn": contexts_of_recomputation,
}
"""Options of transformers' `gradient_checkpointing_enable`."""
