"""Optimizer state that is on the host while nobody uses it, of a model on one GPU."""

import pytest
import torch
from torch import nn

from learner.model.placement.offload import Offload, present

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WIDTH = 1024


def state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [tensor for one in optimizer.state.values() for tensor in one.values()]


def stepped(model: nn.Linear, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    model.weight.grad = torch.randn(WIDTH, WIDTH, device="cuda", generator=generator)
    optimizer.step()


def made() -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH, bias=False, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    stepped(model, optimizer, 0)
    return model, optimizer


def test_steps_with_offloaded_state_are_those_without() -> None:
    (model, optimizer), (other, resident) = made(), made()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    offload = Offload(lambda: state(optimizer))
    # Two moments in float32.
    assert before - torch.cuda.memory_allocated() >= 2 * 4 * WIDTH * WIDTH
    assert all(kept.is_pinned() for kept in offload.host.values())
    for seed in range(1, 4):
        stepped(other, resident, seed)
        with present([offload], changed=True):
            stepped(model, optimizer, seed)
        assert all(tensor.untyped_storage().nbytes() == 0 for tensor in state(optimizer))
    assert torch.equal(model.weight, other.weight)
    with present([offload], changed=False):
        for one, right in zip(state(optimizer), state(resident), strict=True):
            assert torch.equal(one, right)
