"""Experts that compute in the type of the pass.

transformers' grouped products ignore autocast: they cast their input to the type of the weights,
float32. Here the weights are cast to the type of the pass, as autocast does for linear layers.
Gradients return in the weights' own type.
"""

from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward

NAME = "headrace_grouped_mm"


class _InType:
    """The experts of a layer, with their weights cast to a type on access."""

    def __init__(self, experts: nn.Module, kind: torch.dtype) -> None:
        self._experts, self._kind = experts, kind

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._experts, name)
        return value.to(self._kind) if isinstance(value, torch.Tensor) else value


def experts_forward(
    experts: nn.Module,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """[T, d] like transformers' `grouped_mm`: the outputs of the experts `top_k_index` [T, k] for
    `hidden_states` [T, d], weighted by `top_k_weights` [T, k] and added up in the type of the
    weights."""
    device = hidden_states.device.type
    if torch.is_autocast_enabled(device) and _fits(experts):
        # The input is cast to the weights' type. Outputs are added up in the input's own type.
        experts = cast(nn.Module, _InType(experts, torch.get_autocast_dtype(device)))
    output: torch.Tensor = grouped_mm_experts_forward(
        experts, hidden_states, top_k_index, top_k_weights
    )
    return output


def _fits(experts: nn.Module) -> bool:
    """Whether CUDA's grouped products support these sizes in half precision. Their rows must begin
    at multiples of 16 bytes."""
    return all(size % 8 == 0 for p in experts.parameters() if p.ndim == 3 for size in p.shape[1:])


def use_pass_type_experts(model: PreTrainedModel) -> None:
    """Make the experts of `model` compute in the type of the pass, if it has experts that use
    grouped products."""
    if model.config._experts_implementation == "grouped_mm":
        ExpertsInterface.register(NAME, experts_forward)
        model.set_experts_implementation(NAME)
