"""The effect of an optimizer step for a given gradient, with hand-computed values."""

from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from learner.optim.optimizers import Optimizers
from services.contracts.config.optimizer import AdamW, MuonAdamW
from tests.unit.learner.policies import tiny_model

MATRIX, HEAD, NORM = "model.layers.0.self_attn.q_proj.weight", "lm_head.weight", "model.norm.weight"


def stepped(optimizers: Optimizers, model: Any, gradient: float | torch.Tensor) -> float:
    """Do one step with this gradient in every entry of MATRIX and HEAD, and 0 in NORM. Returns the
    gradient norm."""
    for name, parameter in model.named_parameters():
        if name in (MATRIX, HEAD):
            parameter.grad = torch.zeros_like(parameter) + gradient
        elif name == NORM:
            parameter.grad = torch.zeros_like(parameter)
    return optimizers.step()


def test_adam_moves_by_its_corrected_moments_and_only_matrices_decay() -> None:
    model = tiny_model().model
    options: dict[str, Any] = {"lr": 0.1, "betas": (0.5, 0.75), "eps": 1.0, "weight_decay": 0.5}
    optimizers = Optimizers(model, AdamW(**options, max_grad_norm=None))
    weight, norm = model.get_parameter(HEAD), model.get_parameter(NORM)
    before, kept = weight.detach().clone(), norm.detach().clone()
    stepped(optimizers, model, 3.0)
    # Decay 0.1 · 0.5; m = 3 and √v = 3 after correction: 0.1 · 3/(3 + 1).
    first = 0.95 * before - 0.075
    torch.testing.assert_close(weight.detach(), first)
    stepped(optimizers, model, -1.0)
    # m = .25·3 − .5 = ¼ of ¾, v = .1875·9 + .25 = 1.9375 of .4375: ⅓ / (√(31/7) + 1).
    second = 0.95 * first - 0.1 * (1 / 3) / ((31 / 7) ** 0.5 + 1)
    torch.testing.assert_close(weight.detach(), second)
    assert torch.equal(norm, kept)


def test_gradients_beyond_the_norm_are_scaled_down_together() -> None:
    model = tiny_model().model
    optimizers = Optimizers(model, AdamW(lr=0.1, eps=1.0, max_grad_norm=2.0))
    entries = sum(model.get_parameter(name).numel() for name in (MATRIX, HEAD))
    weight = model.get_parameter(HEAD)
    before = weight.detach().clone()
    norm = stepped(optimizers, model, 3.0)
    assert norm == pytest.approx(3 * entries**0.5, rel=1e-5)
    # Each entry is 2/√entries of what it was before the clip in all.
    clipped = 2 / entries**0.5
    torch.testing.assert_close(weight.detach(), before - 0.1 * clipped / (clipped + 1))


def orthogonalised(value: float) -> float:
    """A singular value after Muon's five Newton–Schulz steps: ax + bx³ + cx⁵."""
    for _ in range(5):
        value = 3.4445 * value - 4.775 * value**3 + 2.0315 * value**5
    return value


def test_muon_moves_by_its_momentum_made_orthogonal() -> None:
    model = tiny_model().model
    muon = MuonAdamW(type="muon", lr=0.1, momentum=0.5, weight_decay=0.5, max_grad_norm=None)
    optimizers = Optimizers(model, muon)
    weight = model.get_parameter(MATRIX)
    one = torch.eye(32)
    before = torch.ones(32, 32)
    weight.data.copy_(before)
    # A multiple of the unit matrix has 32 equal singular values, 1/√32 of its norm. A CPU computes
    # in float32: bfloat16 would be off by 1e-2 of `moved`.
    moved = 0.1 * orthogonalised(32**-0.5)
    weight.grad = 5 * one
    optimizers.step()
    first = 0.95 * before - moved * one
    torch.testing.assert_close(weight.detach(), first, rtol=0, atol=1e-5 * moved)
    # The mean is ½·5 of one; after −1.25 of one it is .625, and half way from that to it −.3125;
    # with a momentum of 0.95 it would be positive.
    weight.grad = -1.25 * one
    optimizers.step()
    second = 0.95 * first + moved * one
    torch.testing.assert_close(weight.detach(), second, rtol=0, atol=1e-5 * moved)


def test_muon_leaves_embeddings_of_positions_to_adam() -> None:
    """Their rows are looked up, and never multiplied."""
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2, **ends)
    )
    optimizers = Optimizers(model, MuonAdamW(type="muon"))
    muon = {
        optimizers.names[parameter]
        for part in optimizers.parts
        if isinstance(part, torch.optim.Muon)
        for group in part.param_groups
        for parameter in group["params"]
    }
    assert len(muon) == 4
    assert all(name.startswith("transformer.h.0.") for name in muon)
