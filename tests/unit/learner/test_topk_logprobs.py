"""Log-probabilities over the ids that top-k and top-p left: the softmax of their logits alone."""

from math import log
from typing import Any

import pytest
import torch

from learner.batch.samples import TrainingSample, group_samples, token_staleness
from learner.batch.staleness import Ancestry
from learner.model.head.output_head import head_logprobs
from learner.model.head.topk_logprobs import padded, topk_logprobs
from learner.model.passes.logprobs import TokenLogprobs, packed_row
from learner.model.passes.microbatches import MicroBatches
from learner.model.reference_policies import Copies, PolicyCopy
from learner.objective.compose import Objective
from learner.optim.optimizers import Optimizers
from learner.step import train_batch
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.optimizer import AdamW
from services.contracts.groups.sampling_mask import SamplingMask
from tests.unit.learner.policies import random_samples, state_of, tiny_model, trajectory_group
from tests.unit.learner.unigrams import ALONE

# Logits of three tokens are ln 1, ln 2 and ln 6.
WEIGHT = torch.tensor([[log(1.0)], [log(2.0)], [log(6.0)]], dtype=torch.float64)
ONE = torch.ones(1, 1, dtype=torch.float64)


def of_one(target: int, *kept: int, temperature: float = 1.0) -> tuple[float, float]:
    """Probability and entropy of `target` among `kept`."""
    logprobs, entropy = topk_logprobs(
        ONE, WEIGHT, None, torch.tensor([target]), torch.tensor([kept]), temperature
    )
    return float(logprobs.exp()), float(entropy)


def test_a_probability_is_over_the_sampling_mask_alone() -> None:
    assert of_one(1, 0, 1, 2)[0] == pytest.approx(2 / 9)
    assert of_one(1, 1, 2)[0] == pytest.approx(2 / 8)
    assert of_one(1, 0, 1, -1)[0] == pytest.approx(2 / 3)
    assert of_one(1, 1, -1, -1)[0] == 1
    # Halved logits: √2 and √6.
    assert of_one(1, 1, 2, temperature=2)[0] == pytest.approx(1 / (1 + 3**0.5))


def test_a_frozen_head_costs_neither_gradient_nor_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with LoRA. The gradient of a head of 150,000 ids would take gigabytes of float32."""
    made: list[tuple[int, ...]] = []
    zeros_like = torch.zeros_like

    def recorded(like: torch.Tensor, **options: Any) -> torch.Tensor:
        made.append(tuple(like.shape))
        return zeros_like(like, **options)

    hidden = torch.randn(4, 6, requires_grad=True)
    weight, bias = torch.randn(11, 6), torch.randn(11)
    kept = torch.arange(4 * 3).reshape(4, 3) % 11
    logprobs, _ = topk_logprobs(hidden, weight, bias, kept[:, 1].clone(), kept)
    monkeypatch.setattr(torch, "zeros_like", recorded)
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert weight.shape not in made
    assert bias.shape not in made


def test_entropy_is_over_the_sampling_mask_alone() -> None:
    # 1/4 and 3/4.
    assert of_one(2, 1, 2)[1] == pytest.approx(log(4) - 0.75 * log(3))
    assert of_one(2, 2, -1)[1] == 0


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("elements", [1, 60, 10_000])
def test_top_k_logprobs_are_log_softmax_with_the_other_ids_at_minus_infinity(
    elements: int, with_bias: bool
) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(11, dtype=torch.float64, requires_grad=True) if with_bias else None
    inputs = [t for t in (hidden, weight, bias) if t is not None]
    kept = torch.stack([torch.randperm(11)[:5] for _ in range(9)])
    targets = kept[torch.arange(9), torch.arange(9) % 3].clone()
    kept[::2, 3:] = -1
    upstream = torch.randn(9, dtype=torch.float64)

    found = topk_logprobs(hidden, weight, bias, targets, kept, 0.7, elements=elements)

    inside = (kept[:, :, None] == torch.arange(11)).any(1)
    logits = torch.nn.functional.linear(hidden, weight, bias) / 0.7
    every = logits.masked_fill(~inside, -torch.inf).log_softmax(1)
    entropy = -(every.exp() * every.masked_fill(~inside, 0)).sum(1)
    expected = every.gather(1, targets[:, None]).squeeze(1), entropy
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    # Each alone, and both in one loss.
    for a, b in ((1.0, 0.0), (0.0, 1.0), (1.0, -0.3)):
        loss, wanted = (a * pair[0] + b * pair[1] for pair in (found, expected))
        grads = torch.autograd.grad(loss @ upstream, inputs, retain_graph=True)
        right = torch.autograd.grad(wanted @ upstream, inputs, retain_graph=True)
        for grad, other in zip(grads, right, strict=True):
            torch.testing.assert_close(grad, other)


def test_a_sampling_mask_of_the_whole_vocabulary_gives_the_plain_logprobs() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(4, 6), torch.randn(11, 6)
    targets, everything = torch.tensor([0, 10, 3, 3]), torch.arange(11).expand(4, 11)
    found = topk_logprobs(hidden, weight, None, targets, everything, 0.8)
    for one, other in zip(found, head_logprobs(hidden, weight, None, targets, 0.8), strict=True):
        torch.testing.assert_close(one, other)


def test_an_id_outside_the_sampling_mask_has_no_gradient() -> None:
    weight = torch.randn(5, 3, requires_grad=True)
    logprobs, _ = topk_logprobs(
        torch.randn(1, 3), weight, None, torch.tensor([1]), torch.tensor([[1, 4, -1]])
    )
    logprobs.sum().backward()
    assert weight.grad is not None
    assert (weight.grad != 0).any(1).tolist() == [False, True, False, False, True]


def test_sampling_masks_of_different_widths_are_padded() -> None:
    narrow, wide = torch.tensor([[3]]), torch.tensor([[1, 2], [4, -1]])
    assert padded([narrow, wide]).tolist() == [[3, -1], [1, 2], [4, -1]]


def test_a_sample_holds_the_sampling_mask_of_its_tokens_in_the_loss() -> None:
    # The second token of each sample is a tool's.
    kept = SamplingMask.of([[10, 3], [], [10], [], [12, 9, 14]])
    group = trajectory_group([1.0, 0.0])
    group.sampling_mask = kept
    first, second = group_samples(
        group, Algorithm(), 9, token_staleness(group, Ancestry((("a", 0),)), 3)
    )
    assert first.sampling_mask is not None
    assert second.sampling_mask is not None
    assert first.sampling_mask.tolist() == [[3, 10, -1]]
    assert second.sampling_mask.tolist() == [[10, -1, -1], [9, 12, 14]]


def cut(samples: list[TrainingSample], model: Any, k: int) -> list[TrainingSample]:
    """`samples` as if sampled with top-k: with the likeliest ids and the token itself, and the
    token's probability among them."""
    for sample in samples:
        with torch.no_grad():
            logits = model(sample.tokens[None]).logits[0, :-1].double() / 0.8
        logits, targets = logits[sample.loss_mask[1:]], sample.tokens[sample.loss_mask]
        others = logits.scatter(1, targets[:, None], -torch.inf).topk(k - 1).indices
        sample.sampling_mask = torch.cat([others, targets[:, None]], 1).int()
        among = logits.gather(1, sample.sampling_mask.long()).log_softmax(1)
        sample.sampler_logprobs = among[:, -1].float()
        sample.staleness = torch.zeros_like(sample.staleness)
    return samples


def test_policy_proximal_and_reference_are_taken_over_the_sampling_mask() -> None:
    """All three are the sampler's model here: every ratio is 1, and every KL 0."""
    loaded = tiny_model()
    samples = cut([s for s in random_samples(3, 3) if s.trains], loaded.model, k=4)
    algorithm = Algorithm.model_validate(
        {"proximal": {"type": "recompute"}, "kl": {"type": "k3"}, "loss": {"type": "ppo"}}
    )
    metrics = train_batch(
        state_of(
            loaded,
            Optimizers(loaded.model, AdamW(lr=1e-9)),
            Copies(reference=PolicyCopy(TokenLogprobs(tiny_model().model))),
        ),
        [samples],
        Objective(algorithm, temperature=0.8, max_tokens=12),
        MicroBatches(ALONE, 60),
        lambda _: 1.0,
    )
    assert metrics["mismatch/logprob_max"] < 1e-5
    assert metrics["train/ratio_max"] == pytest.approx(1, abs=1e-5)
    assert metrics["train/kl"] == pytest.approx(0, abs=1e-6)
    # An untrained model finds all four tokens about equally likely.
    assert metrics["train/entropy"] == pytest.approx(log(4), abs=0.02)


def test_a_packed_row_carries_the_sampling_mask_to_the_model() -> None:
    model = TokenLogprobs(tiny_model().model)
    tokens, wanted = torch.tensor([1, 7, 9]), torch.tensor([False, False, True])
    alone = packed_row([tokens], [wanted], sampling_mask=torch.tensor([[9, -1]]))
    assert model(alone)[0].tolist() == [0.0]
    assert model(packed_row([tokens], [wanted]))[0].tolist()[0] < -1
