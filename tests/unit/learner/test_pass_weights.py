"""Passes in bfloat16 of a model whose weights are float32."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from learner.model.attention.packed import use_packed_attention
from learner.model.compiling import Backend, make_trainable
from learner.model.passes.logprobs import TokenLogprobs, hidden_states, packed_row

Gradients = dict[str, torch.Tensor]


class Casts(TorchDispatchMode):
    """Counts casts of each weight to bfloat16."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self._names = {p.data_ptr(): name for name, p in model.named_parameters()}
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        is_cast = "_to_copy" in str(func) and (kwargs or {}).get("dtype") == torch.bfloat16
        if is_cast and (name := self._names.get(args[0].data_ptr())):
            self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def made(checkpointing: bool = False, compiled: Backend | None = None) -> PreTrainedModel:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            vocab_size=200,
            tie_word_embeddings=True,
        )
    )
    use_packed_attention(model)
    make_trainable(model, checkpointing, compiled)
    return model


def row() -> Any:
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(200, (length,), generator=generator) for length in (40, 25)]
    return packed_row(sequences, [torch.arange(len(tokens)) > 3 for tokens in sequences])


def a_pass(model: PreTrainedModel, kind: torch.dtype | None) -> tuple[Gradients, Casts]:
    """Return the gradients of a pass, and the casts of both its directions."""
    model.zero_grad()
    with Casts(model) as casts:
        logprobs, entropy = TokenLogprobs(model, kind)(row())
        (logprobs.sum() / 60 + 0.01 * entropy.sum()).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, casts


def apart(gradients: Gradients, others: Gradients) -> float:
    """Return the largest relative difference of a weight's gradients."""
    assert gradients.keys() == others.keys()
    return max(
        float((gradient - others[name]).norm() / others[name].norm())
        for name, gradient in gradients.items()
    )


def test_blocks_compute_in_half_precision_and_gradients_stay_float32() -> None:
    half, exact = made(), made()
    assert hidden_states(half, row(), torch.bfloat16).dtype == torch.bfloat16
    gradients, _ = a_pass(half, torch.bfloat16)
    assert {gradient.dtype for gradient in gradients.values()} == {torch.float32}
    assert 0 < apart(gradients, a_pass(exact, None)[0]) < 0.03


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_weight_is_cast_once_a_pass_also_if_activations_are_computed_again(
    checkpointing: bool,
) -> None:
    model = made(checkpointing)
    _, casts = a_pass(model, torch.bfloat16)
    of_blocks = {name for name, _ in model.named_parameters() if "embed_tokens" not in name}
    assert {name: casts.counts.get(name) for name in of_blocks} == dict.fromkeys(of_blocks, 1)


def test_a_pass_that_is_computed_again_has_the_same_gradients() -> None:
    kept, _ = a_pass(made(), torch.bfloat16)
    again, _ = a_pass(made(checkpointing=True), torch.bfloat16)
    assert apart(again, kept) == 0


def test_a_pass_gives_the_weights_back_also_if_it_fails() -> None:
    model = made()
    before = dict(model.named_parameters())
    kinds = set()

    def fail(module: Any, inputs: Any) -> None:
        kinds.add(module.weight.dtype)
        raise RuntimeError("no memory")

    model.model.norm.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        hidden_states(model, row(), torch.bfloat16)
    assert kinds == {torch.bfloat16}
    after = dict(model.named_parameters())
    assert all(after[name] is weight for name, weight in before.items())
    embedding = model.get_input_embeddings()
    assert embedding(torch.zeros(1, dtype=torch.int64)).dtype == torch.float32


@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_blocks_compute_with_the_same_weights(checkpointing: bool) -> None:
    torch.compiler.reset()
    plain, _ = a_pass(made(checkpointing), torch.bfloat16)
    model = made(checkpointing, "aot_eager")
    first, _ = a_pass(model, torch.bfloat16)
    # An update of the weights is in the next pass.
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    second, _ = a_pass(model, torch.bfloat16)
    assert apart(first, plain) == 0
    assert apart(second, plain) > 0.1
