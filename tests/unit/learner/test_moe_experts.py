"""Experts under autocast: their products are in its type, their gradients in the weights'."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from learner.model.loading.scratch import make_model
from learner.model.passes.logprobs import TokenLogprobs, packed_row
from tests.unit.learner.policies import TINY

MIXTURE = TINY.model_copy(update={"experts": 4, "experts_per_token": 2})


class Products(TorchDispatchMode):
    """The types of the factors of grouped products."""

    def __init__(self) -> None:
        super().__init__()
        self.types: list[set[torch.dtype]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if "grouped_mm" in str(func):
            self.types.append({x.dtype for x in args[:2]})
        return func(*args, **(kwargs or {}))


def a_pass(
    implementation: str | None, autocast: torch.dtype | None, width: int = 48
) -> tuple[torch.Tensor, dict[str, torch.Tensor], Products]:
    """Log-probabilities, gradients, and the grouped products of both passes."""
    model = make_model(MIXTURE.model_copy(update={"intermediate_size": width}), 3).model
    if implementation:
        model.set_experts_implementation(implementation)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, 20, (30,), generator=generator)
    row = packed_row([tokens], [torch.arange(30) > 3])
    with Products() as products:
        logprobs, _ = TokenLogprobs(model, autocast)(row)
        logprobs.sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return logprobs.detach(), grads, products


def test_experts_compute_in_the_type_of_the_pass_forward_and_backward() -> None:
    near, grads, products = a_pass(None, torch.bfloat16)
    # Two layers: each has two products forward, and each product has two backward.
    assert products.types == [{torch.bfloat16}] * 12
    assert {grad.dtype for grad in grads.values()} == {torch.float32}
    exact, right, products = a_pass(None, None)
    assert products.types == [{torch.float32}] * 12
    torch.testing.assert_close(near, exact, atol=0.05, rtol=0.05)
    # As close to the gradients of a float32 pass as linear layers are under autocast.
    _, linear, _ = a_pass("eager", torch.bfloat16)
    for name, grad in grads.items():
        ours = (grad - right[name]).norm() / right[name].norm()
        theirs = (linear[name] - right[name]).norm() / right[name].norm()
        assert ours < 2 * theirs + 1e-3, name


def test_sizes_that_cuda_does_not_take_in_half_precision_stay_as_they_are() -> None:
    _, _, products = a_pass(None, torch.bfloat16, width=44)
    assert {torch.bfloat16} not in products.types


@pytest.mark.parametrize("experts", [True, False], ids=["experts", "dense"])
def test_a_published_config_names_no_implementation(tmp_path: Path, experts: bool) -> None:
    make_model(MIXTURE if experts else TINY, 3).model.config.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    assert "headrace" not in config
    assert json.loads(config)["vocab_size"] > 0
