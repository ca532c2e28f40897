"""The gradient of whole objectives equals that of the formulas in docs/algorithms.md, written
down again in plain torch: answer by answer, on one rank, without packing, chunks or precomputed
counts."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from learner.batch.samples import TrainingSample
from learner.batch.sft_rows import Example
from learner.distributed import Ranks
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.objective.compose import Objective
from learner.sft import backward
from learner.step import accumulate_gradients
from learner.supervised_loss import LikelihoodLoss
from services.contracts.config.objective.algorithm import Algorithm
from tests.unit.learner.policies import random_samples, tiny_model
from tests.unit.learner.threads import assert_same_gradients, mean_gradients

TEMPERATURE, MAX_TOKENS, GROUPS, PER_GROUP = 0.7, 12, 4, 4

Tokens = list[tuple[TrainingSample, torch.Tensor, torch.Tensor]]
"""log π and the entropy of its tokens, for each trained answer."""


def answers() -> list[TrainingSample]:
    """Answers of all groups, each token chosen from a few others. The last of a group has no
    loss."""
    samples = random_samples(GROUPS, PER_GROUP, seed=3)
    for number, sample in enumerate(samples):
        if sample.trains:
            generator = torch.Generator().manual_seed(number)
            noise = torch.randn(len(sample.sampler_logprobs), generator=generator)
            chosen = sample.tokens[sample.loss_mask][:, None]
            sample.sampling_mask = (chosen + torch.arange(3 + number % 3)).remainder(20).int()
            sample.sampler_logprobs = -1.4 + 0.2 * noise
            sample.reference_logprobs = sample.sampler_logprobs + 0.3 * noise.flip(0)
            sample.proximal_logprobs = None
    return samples


def plain(model: Any, samples: list[TrainingSample]) -> Tokens:
    """Log-probabilities from the model's own logits, with all other ids at −∞."""
    found = []
    for sample in samples:
        if not sample.trains:
            continue
        logits = model(sample.tokens[None], use_cache=False).logits[0, :-1] / TEMPERATURE
        logits = logits[sample.loss_mask[1:]]
        assert sample.sampling_mask is not None
        kept = torch.zeros_like(logits, dtype=torch.bool)
        for row, ids in zip(kept, sample.sampling_mask.tolist(), strict=True):
            row[[one for one in ids if one >= 0]] = True
        chances = logits.masked_fill(~kept, -torch.inf).softmax(-1)
        own = chances.gather(1, sample.tokens[sample.loss_mask][:, None]).squeeze(1).log()
        entropy = -torch.where(kept, chances * chances.clamp(min=1e-300).log(), 0.0).sum(1)
        found.append((sample, own, entropy))
    return found


def ppo(rho: torch.Tensor, a: float, low: float, high: float) -> torch.Tensor:
    return -torch.minimum(rho * a, rho.clamp(1 - low, 1 + high) * a)


def ratio(sample: TrainingSample, own: torch.Tensor) -> torch.Tensor:
    return (own - sample.sampler_logprobs.double()).exp()


def away(sample: TrainingSample, own: torch.Tensor) -> torch.Tensor:
    """d of the KL."""
    assert sample.reference_logprobs is not None
    return own - sample.reference_logprobs.double()


def grpo(tokens: Tokens) -> torch.Tensor:
    """ppo, averaged over each answer, then over answers; plus k3, minus entropy."""
    each = [
        (ppo(ratio(s, own), s.advantage, 0.2, 0.25) - 0.02 * entropy).mean()
        + 0.1 * ((-away(s, own)).exp() + away(s, own) - 1).mean()
        for s, own, entropy in tokens
    ]
    return torch.stack(each).mean()


def dr_grpo(tokens: Tokens) -> torch.Tensor:
    """Every answer is divided by the longest length allowed."""
    each = [ppo(ratio(s, own), s.advantage, 0.2, 0.2).sum() for s, own, _ in tokens]
    return torch.stack(each).sum() / (len(each) * MAX_TOKENS)


def gspo(tokens: Tokens) -> torch.Tensor:
    """The ratio of an answer is the geometric mean: each of its tokens changes the whole ratio."""
    each = []
    for s, own, _ in tokens:
        rho = (own - s.sampler_logprobs.double()).mean().exp()
        each.append(ppo(rho, s.advantage, 0.02, 0.03))
    return torch.stack(each).mean()


def summed_kl(tokens: Tokens) -> torch.Tensor:
    """Tokens count equally. The KL is summed over an answer and averaged over answers."""
    policy = torch.cat([ppo(ratio(s, own), s.advantage, 0.2, 0.2) for s, own, _ in tokens])
    kl = torch.stack([(away(s, own).square() / 2).sum() for s, own, _ in tokens])
    return policy.mean() + 0.05 * kl.mean()


def masked_prompts(tokens: Tokens) -> torch.Tensor:
    """Each prompt is a mean over the tokens of its answers. Answers whose geometric mean of π/μ is
    out of bounds count in it, and are not trained."""
    each, masked = [], 0
    for group in range(GROUPS):
        own_answers = [(s, own) for s, own, _ in tokens if s.task == group]
        length = sum(len(own) for _, own in own_answers)
        total = torch.zeros((), dtype=torch.float64)
        for s, own in own_answers:
            if 0.9 <= float(ratio(s, own.detach()).log().mean().exp()) <= 1.1:
                total = total + ppo(ratio(s, own), s.advantage, 0.2, 0.2).sum()
            else:
                masked += 1
        each.append(total / length)
    assert 0 < masked < len(tokens)
    return torch.stack(each).mean()


def decoupled(tokens: Tokens) -> torch.Tensor:
    """π_prox lies between μ and π by the token's age. Its weight against μ is capped."""
    total, cut = torch.zeros((), dtype=torch.float64), 0
    for s, own, _ in tokens:
        mu, age = s.sampler_logprobs.double(), s.staleness.double()
        proximal = mu + age / (age + 1) * (own.detach() - mu)
        weight = (proximal - mu).exp()
        cut += int((weight > 1.02).sum())
        loss = ppo((own - proximal).exp(), s.advantage, 0.2, 0.2)
        total = total + (weight.clamp(max=1.02) * loss).sum()
    assert cut
    return total / sum(len(own) for _, own, _ in tokens)


OBJECTIVES: list[tuple[Callable[[Tokens], torch.Tensor], dict[str, Any]]] = [
    (
        grpo,
        {
            "loss": {"type": "ppo", "epsilon_low": 0.2, "epsilon_high": 0.25},
            "aggregation": {"type": "sequence_mean"},
            "kl": {"type": "k3", "beta": 0.1},
            "entropy_bonus": 0.02,
        },
    ),
    (
        dr_grpo,
        {
            "advantage": {"type": "group_mean"},
            "loss": {"type": "ppo", "epsilon_low": 0.2, "epsilon_high": 0.2},
            "aggregation": {"type": "constant"},
        },
    ),
    (
        gspo,
        {
            "loss": {"type": "gspo", "epsilon_low": 0.02, "epsilon_high": 0.03},
            "aggregation": {"type": "sequence_mean"},
        },
    ),
    (
        summed_kl,
        {
            "loss": {"type": "ppo", "epsilon_low": 0.2, "epsilon_high": 0.2},
            "kl": {"type": "k2", "beta": 0.05, "per": "sample"},
        },
    ),
    (
        masked_prompts,
        {
            "loss": {"type": "ppo", "epsilon_low": 0.2, "epsilon_high": 0.2},
            "aggregation": {"type": "prompt_mean"},
            "correction": {"type": "mask", "level": "sequence", "low": 0.9, "high": 1.1},
        },
    ),
    (
        decoupled,
        {
            "loss": {"type": "ppo", "epsilon_low": 0.2, "epsilon_high": 0.2},
            "proximal": {"type": "loglinear"},
            "correction": {"type": "truncate", "cap": 1.02},
        },
    ),
]


@pytest.mark.parametrize(
    ("formula", "algorithm"), OBJECTIVES, ids=[formula.__name__ for formula, _ in OBJECTIVES]
)
def test_the_gradient_of_two_ranks_in_small_microbatches_is_that_of_the_formula(
    formula: Callable[[Tokens], torch.Tensor], algorithm: dict[str, Any]
) -> None:
    goal = Objective(Algorithm.model_validate(algorithm), TEMPERATURE, MAX_TOKENS)

    def given() -> list[TrainingSample]:
        samples = answers()
        for sample in samples:
            if goal.algorithm.kl.type == "none":
                sample.reference_logprobs = None
        return samples

    model = tiny_model().model.double()
    formula(plain(model, answers())).backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    def one(ranks: Ranks) -> dict[str, torch.Tensor]:
        trained = copy.deepcopy(model)
        trained.zero_grad()
        # Answers of a group are on both ranks, and one of them has more.
        mine = [s for i, s in enumerate(given()) if (i % 3 == 0) == ranks.first]
        accumulate_gradients(TokenLogprobs(trained), mine, goal, MicroBatches(ranks, 30))
        return {name: p.grad for name, p in trained.named_parameters() if p.grad is not None}

    assert_same_gradients(expected, mean_gradients(2, one))


def test_the_gradient_of_supervised_ranks_is_that_of_the_mean_over_all_their_tokens() -> None:
    """However unequally the tokens of a step lie on ranks and in micro-batches."""
    rows = [Example(s.tokens, s.loss_mask) for s in random_samples(GROUPS, PER_GROUP) if s.trains]
    model = tiny_model().model.double()
    every = []
    for row in rows:
        logits = model(row.tokens[None], use_cache=False).logits[0, :-1]
        own = logits.log_softmax(-1).gather(1, row.tokens[1:, None]).squeeze(1)
        every.append(own[row.loss_mask[1:]])
    loss = -torch.cat(every).mean()
    loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    def one(ranks: Ranks) -> dict[str, torch.Tensor]:
        trained = copy.deepcopy(model)
        trained.zero_grad()
        mine = rows[:2] if ranks.first else rows[2:]
        of_step = LikelihoodLoss(mine, 1, ranks)
        backward(TokenLogprobs(trained), of_step, MicroBatches(ranks, 30))
        assert of_step.metrics(["d"], ranks)["train/loss"] == pytest.approx(
            float(loss.detach()), rel=1e-9
        )
        return {name: p.grad for name, p in trained.named_parameters() if p.grad is not None}

    assert_same_gradients(expected, mean_gradients(2, one))
