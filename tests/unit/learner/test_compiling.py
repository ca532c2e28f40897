"""Compiled blocks: the same numbers, whatever the row, and the same names."""

import pytest
import torch

from learner.model.compiling import compile_blocks
from learner.model.folders import UnusableModel
from learner.model.logprobs import TokenLogprobs, packed_row
from tests.unit.learner.policies import tiny_model

ROWS = [[5, 5], [9, 3, 7], [12, 2, 2, 6]]


def passes(model: torch.nn.Module) -> list[torch.Tensor]:
    """Log-probabilities and gradients of rows of other lengths, and of a pass without gradient."""
    policy, found = TokenLogprobs(model), []
    generator = torch.Generator().manual_seed(0)
    for lengths in ROWS:
        row = packed_row(
            [torch.randint(4, 20, (n,), generator=generator) for n in lengths],
            [torch.arange(n) >= 1 for n in lengths],
        )
        logprobs, _ = policy(row, 0.8)
        logprobs.sum().backward()
        with torch.no_grad():
            found += [logprobs.detach(), policy(row, 0.8)[0]]
    return found + [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.timeout(300)
def test_compiled_blocks_compute_and_learn_the_same_for_any_row() -> None:
    plain, compiled = tiny_model().model, tiny_model().model
    names = list(compiled.state_dict())
    compile_blocks(compiled)
    assert list(compiled.state_dict()) == names
    for found, expected in zip(passes(compiled), passes(plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs > 0
    # Another row is no other graph.
    passes(compiled)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_compiled_blocks_compute_their_activations_again_where_they_are_to() -> None:
    plain, compiled = tiny_model().model, tiny_model().model
    compiled.gradient_checkpointing_enable({"use_reentrant": False})
    compile_blocks(compiled)
    for found, expected in zip(passes(compiled.train()), passes(plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_model_without_blocks_to_compile_is_refused() -> None:
    model = tiny_model().model
    model._no_split_modules = []
    with pytest.raises(UnusableModel, match=r"LlamaForCausalLM does not say .* training\.compile"):
        compile_blocks(model)
