"""Chunked log-probabilities equal log_softmax. Packed rows equal separate sequences."""

from typing import Any

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    NanoChatConfig,
    NanoChatForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from learner.model.attention.packed import use_packed_attention
from learner.model.head.logit_scale import LogitScale, other_logits
from learner.model.head.output_head import head_logprobs
from learner.model.passes.logprobs import TokenLogprobs, packed_row


def reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    full = (torch.nn.functional.linear(hidden, weight, bias) / temperature).log_softmax(-1)
    return full.gather(1, targets[:, None]).squeeze(1), -(full.exp() * full).sum(1)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("rows", "vocabulary"), [(100, 100), (3, 4), (1, 1), (7, 11)])
def test_chunks_equal_log_softmax_with_gradients(
    rows: int, vocabulary: int, with_bias: bool
) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(11, dtype=torch.float64, requires_grad=True) if with_bias else None
    targets = torch.randint(0, 11, (10,))
    upstream = torch.randn(10, dtype=torch.float64)
    inputs = [t for t in (hidden, weight, bias) if t is not None]

    logprobs, entropy = head_logprobs(
        hidden, weight, bias, targets, 0.7, rows=rows, vocabulary=vocabulary
    )
    expected, expected_entropy = reference(hidden, weight, bias, targets, 0.7)
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropy, expected_entropy)
    # Each alone, and both in one loss.
    for loss, wanted in (
        (logprobs, expected),
        (entropy, expected_entropy),
        (logprobs - 0.3 * entropy, expected - 0.3 * expected_entropy),
    ):
        grads = torch.autograd.grad(loss @ upstream, inputs, retain_graph=True)
        right = torch.autograd.grad(wanted @ upstream, inputs, retain_graph=True)
        for grad, other in zip(grads, right, strict=True):
            torch.testing.assert_close(grad, other)


def test_entropy_of_a_uniform_policy_is_the_logarithm_of_the_vocabulary() -> None:
    _, entropy = head_logprobs(torch.zeros(2, 3), torch.ones(8, 3), None, torch.tensor([0, 7]))
    torch.testing.assert_close(entropy, torch.full((2,), 8.0).log())


def test_extreme_logits_do_not_overflow() -> None:
    hidden, weight = torch.tensor([[1e4]]), torch.tensor([[1.0], [-1.0]])
    logprobs, entropy = head_logprobs(hidden, weight, None, torch.tensor([0]), vocabulary=1)
    assert logprobs.tolist() == [0.0]
    assert entropy.tolist() == [0.0]


def models() -> list[Any]:
    shape = {
        "vocab_size": 19,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 96,
    }
    torch.manual_seed(0)
    return [
        LlamaForCausalLM(LlamaConfig(**shape)),
        Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=8, tie_word_embeddings=True)),
        Qwen3ForCausalLM(
            Qwen3Config(
                **shape, head_dim=8, use_sliding_window=True, sliding_window=4, max_window_layers=0
            )
        ),
    ]


@pytest.mark.parametrize("model", models(), ids=["llama", "qwen3_tied", "qwen3_sliding"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "dense_mask"])
@pytest.mark.parametrize("lengths", [[9, 4, 1, 7], [6, 6, 6], [5], [33, 2, 80, 50, 81, 3]], ids=str)
def test_packed_rows_equal_separate_sequences_with_gradients(
    model: Any, packed: bool, lengths: list[int]
) -> None:
    torch.manual_seed(1)
    sequences = [torch.randint(0, 19, (n,)) for n in lengths]
    wanted = [torch.tensor([i > 0 and i % 3 != 2 for i in range(n)]) for n in lengths]
    model.set_attn_implementation("eager")
    model.zero_grad()
    expected = []
    for sequence, mask in zip(sequences, wanted, strict=True):
        logits = model(sequence[None], use_cache=False).logits[0].float() / 1.3
        every = logits[:-1].log_softmax(-1).gather(1, sequence[1:, None]).squeeze(1)
        expected.append(every[mask[1:]])
    torch.cat(expected).square().sum().backward()
    expected_grads = {name: p.grad.clone() for name, p in model.named_parameters()}

    model.set_attn_implementation("sdpa")
    if packed:
        assert use_packed_attention(model) is None
    model.zero_grad()
    logprobs, _ = TokenLogprobs(model)(packed_row(sequences, wanted), 1.3)
    logprobs.square().sum().backward()

    torch.testing.assert_close(logprobs, torch.cat(expected), atol=1e-5, rtol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected_grads[name], atol=1e-5, rtol=1e-4)


def test_a_first_token_cannot_be_predicted() -> None:
    with pytest.raises(ValueError, match="first token"):
        packed_row([torch.tensor([1, 2])], [torch.tensor([True, True])])


def test_bfloat16_compute_stays_close_and_keeps_float32_gradients() -> None:
    model = models()[0]
    sequences = [torch.randint(0, 19, (n,)) for n in (9, 5)]
    wanted = [torch.tensor([i > 0 for i in range(n)]) for n in (9, 5)]
    exact, _ = TokenLogprobs(model)(packed_row(sequences, wanted))
    near, entropy = TokenLogprobs(model, torch.bfloat16)(packed_row(sequences, wanted))
    near.sum().backward()
    assert near.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(near, exact, atol=0.05, rtol=0.05)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


SIZES: dict[str, Any] = {
    "vocab_size": 19,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    # Logits between some tenths and some units, so that a factor and a cap have an effect.
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SCALED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gemma2": (Gemma2ForCausalLM, Gemma2Config, {"head_dim": 8, "final_logit_softcapping": 2.0}),
    "gemma3": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {"head_dim": 8, "final_logit_softcapping": 2.0, "sliding_window": 4},
    ),
    "granite": (GraniteForCausalLM, GraniteConfig, {"logits_scaling": 0.3}),
    "cohere": (CohereForCausalLM, CohereConfig, {"logit_scale": 2.5}),
    "nanochat": (NanoChatForCausalLM, NanoChatConfig, {"final_logit_softcapping": 2.0}),
}


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "top_k"])
@pytest.mark.parametrize("name", SCALED)
def test_scaled_and_capped_logits_are_the_models_own_with_gradients(name: str, cut: bool) -> None:
    kind, config, extra = SCALED[name]
    torch.manual_seed(0)
    model = kind(config(**SIZES | extra, attn_implementation="eager")).double().eval()
    sequences = [torch.randint(3, 19, (n,)) for n in (9, 4, 7)]
    wanted = [torch.tensor([i > 0 for i in range(n)]) for n in (9, 4, 7)]
    targets = torch.cat([s[1:] for s in sequences])
    mask = None
    if cut:
        # Each token's own id and two others; one id in the second rows, and none.
        mask = torch.stack([targets, (targets + 5) % 19, (targets + 11) % 19], 1).int()
        mask[1::2, 2] = -1
    logits = torch.cat([model(s[None], use_cache=False).logits[0, :-1] for s in sequences]) / 0.7
    if mask is not None:
        kept = torch.zeros_like(logits, dtype=torch.bool)
        for row, ids in zip(kept, mask.tolist(), strict=True):
            row[[i for i in ids if i >= 0]] = True
        logits = logits.masked_fill(~kept, -1e4)
    every = logits.log_softmax(-1)
    expected = every.gather(1, targets[:, None]).squeeze(1), -(every.exp() * every).sum(1)
    use_packed_attention(model)

    found = TokenLogprobs(model)(packed_row(sequences, wanted, "cpu", mask), 0.7)

    assert other_logits(model) is None
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    weights = list(model.parameters())
    pull = torch.randn(len(targets), dtype=torch.float64)
    ours, theirs = (
        torch.autograd.grad((a - 0.3 * b) @ pull, weights, allow_unused=True)
        for a, b in (found, expected)
    )
    for grad, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(grad, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rows", [(3, 4), (100, 100)])
def test_chunks_of_capped_logits_have_the_gradient_of_the_whole(rows: tuple[int, int]) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    targets, pull = torch.randint(0, 11, (10,)), torch.randn(10, dtype=torch.float64)
    capped = 1.5 * torch.tanh(3 * hidden @ weight.T / 1.5) / 0.7
    every = capped.log_softmax(-1)
    expected = every.gather(1, targets[:, None]).squeeze(1) @ pull - (every.exp() * every).sum()

    logprobs, entropy = head_logprobs(
        hidden, weight, None, targets, 0.7, None, *rows, LogitScale(3.0, 1.5)
    )

    loss = logprobs @ pull + entropy.sum()
    torch.testing.assert_close(loss, expected)
    for grad, other in zip(
        torch.autograd.grad(loss, [hidden, weight]),
        torch.autograd.grad(expected, [hidden, weight]),
        strict=True,
    ):
        torch.testing.assert_close(grad, other)


def test_a_head_whose_logits_the_learner_cannot_make_is_refused_with_that_sentence() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    assert other_logits(model) is None
    # A model whose config claims a factor on its logits that it does not apply.
    model.config.logit_scale = 2.0
    reason = other_logits(model)
    assert reason is not None
    assert reason.startswith("LlamaForCausalLM makes other logits of its output head")
