"""Chunked log-probabilities are log_softmax; packed rows are separate sequences."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from learner.distributed import USER_ERRORS
from learner.model.logprobs import TokenLogprobs, head_logprobs, packed_row
from learner.model.packed_attention import use_packed_attention


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


@pytest.mark.parametrize("name", ["final_logit_softcapping", "logit_scale", "logits_scaling"])
def test_a_head_that_scales_its_logits_ends_the_run_with_that_sentence(name: str) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=8, num_hidden_layers=1, **sizes))
    setattr(model.config, name, 2.0)
    with pytest.raises(USER_ERRORS, match=rf"LlamaForCausalLM scales its logits \({name}\)"):
        TokenLogprobs(model)
