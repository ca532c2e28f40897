"""The gradient of a batch does not depend on its dealing to ranks, cut, order or padding, and
masked tokens have no gradient. With a transformer, in float64."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.batch.samples import TrainingSample
from learner.batch.token_advantages import set_returns
from learner.distributed import Ranks
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.objective.compose import Objective
from learner.objective.value_loss import Scale
from learner.step import accumulate_gradients
from services.contracts.config.objective.algorithm import Algorithm
from tests.unit.learner.policies import random_samples, tiny_model
from tests.unit.learner.threads import assert_same_gradients, mean_gradients
from tests.unit.learner.unigrams import ALONE, near

GROUPS = 5
MODEL = tiny_model().model.double()
OBJECTIVES: dict[str, dict[str, Any]] = {
    "ppo, truncated, k3+, entropy": {
        "loss": {"type": "ppo", "dual_clip": 3.0},
        "proximal": {"type": "recompute"},
        "correction": {"type": "truncate", "level": "sequence"},
        "kl": {"type": "k3+", "beta": 0.1},
        "entropy_bonus": 0.01,
    },
    "sequence_ppo over sequences, masked": {
        "loss": {"type": "sequence_ppo"},
        "aggregation": {"type": "sequence_mean"},
        "proximal": {"type": "recompute"},
        "correction": {"type": "mask", "low": 0.8, "high": 1.5},
    },
    "gspo over chunks, off-policy mask": {
        "loss": {"type": "gspo", "epsilon_low": 0.1, "epsilon_high": 0.1},
        "aggregation": {"type": "prompt_mean", "chunk": 2},
        "correction": {"type": "off_policy_sequence_mask", "delta": 0.05},
    },
    "global whitening, KL in the reward, sapo, loglinear": {
        "advantage": {"type": "global_whiten", "gamma": 0.9},
        "loss": {"type": "sapo"},
        "proximal": {"type": "loglinear"},
        "kl": {"type": "k1_in_reward", "beta": 0.5},
    },
    "dppo over prompts": {
        "loss": {"type": "dppo", "delta": 0.01, "tau": 0.1},
        "aggregation": {"type": "prompt_mean"},
    },
    "a critic, whitening, KL in the reward": {
        "advantage": {"type": "gae", "lambda": 0.9, "bootstrap_truncated": True},
        "critic": {},
        "proximal": {"type": "recompute"},
        "kl": {"type": "k1_in_reward", "beta": 0.5},
    },
    "a critic, whitening of groups, the score at the end": {
        "advantage": {"type": "gae", "whiten": "group", "score_at": "end"},
        "critic": {},
    },
    "ppo over what top-k kept, entropy": {
        "proximal": {"type": "loglinear"},
        "entropy_bonus": 0.01,
    },
    "cispo over a constant": {
        "loss": {"type": "cispo", "absolute_cap": 1.2},
        "aggregation": {"type": "constant"},
    },
}


def objective(name: str) -> Objective:
    return Objective(Algorithm.model_validate(OBJECTIVES[name]), temperature=0.8, max_tokens=12)


def batch(name: str) -> list[TrainingSample]:
    """Samples of five groups, near the model's. The last of each group is masked."""
    goal = objective(name)
    samples = random_samples(GROUPS, per_group=4)
    for number, sample in enumerate(samples):
        if not sample.trains:
            continue
        if "kept" in name:
            # As many other ids as the sample's number says, in addition to the token itself.
            among = torch.arange(2 + sample.number)
            sample.sampling_mask = (
                (sample.tokens[sample.loss_mask][:, None] + among).remainder(20).int()
            )
        if goal.algorithm.proximal.type == "recompute":
            sample.proximal_logprobs = near(sample.sampler_logprobs, 100 + number, 0.1)
        if goal.algorithm.kl.type != "none":
            sample.reference_logprobs = near(sample.sampler_logprobs, 200 + number, 0.1)
        if goal.algorithm.critic is not None:
            sample.values = near(torch.zeros(len(sample.sampler_logprobs) + 1), 300 + number)
            sample.truncated = number % 3 == 0
    return samples


def gradients(
    goal: Objective, shares: Sequence[Sequence[TrainingSample]], budget: int = 10_000
) -> dict[str, torch.Tensor]:
    """The gradients that DDP computes from the ranks, each rank training one of `shares`."""

    def one(ranks: Ranks) -> dict[str, torch.Tensor]:
        model = tiny_model().model.double()
        model.load_state_dict(MODEL.state_dict())
        mine = list(shares[ranks.rank])
        set_returns([sample for sample in mine if sample.trains], goal, ranks.sum_named, Scale())
        accumulate_gradients(TokenLogprobs(model), mine, goal, MicroBatches(ranks, budget))
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    return mean_gradients(len(shares), one)


def padded(sample: TrainingSample, extra: int) -> TrainingSample:
    """The sample with `extra` tokens after it that are not in the loss."""
    return replace(
        sample,
        tokens=torch.cat([sample.tokens, torch.full((extra,), 5)]),
        loss_mask=torch.cat([sample.loss_mask, torch.zeros(extra, dtype=torch.bool)]),
    )


@pytest.mark.parametrize("name", OBJECTIVES)
@settings(max_examples=12, deadline=None)
@given(
    dealt=st.lists(st.integers(0, 2), min_size=4 * GROUPS, max_size=4 * GROUPS),
    budget=st.integers(20, 120),
    extra=st.integers(0, 3),
    order=st.randoms(use_true_random=False),
)
def test_ranks_cuts_order_and_padding_do_not_change_the_gradient(
    name: str, dealt: list[int], budget: int, extra: int, order: Any
) -> None:
    goal = objective(name)
    whole = gradients(goal, [batch(name)])
    samples = [padded(sample, extra) for sample in batch(name)]
    order.shuffle(samples)
    # Samples of one group may be on any ranks. A rank without samples takes part in all sums.
    shares: list[list[TrainingSample]] = [[] for _ in range(max(dealt) + 1)]
    for rank, sample in zip(dealt, samples, strict=True):
        shares[rank].append(sample)
    assert_same_gradients(whole, gradients(goal, shares, budget))


def with_a_tool(sample: TrainingSample) -> TrainingSample:
    """The third token of the completion is a tool's."""
    first = int(sample.loss_mask.nonzero()[0])
    loss_mask = sample.loss_mask.clone()
    loss_mask[first + 2] = False
    keep = torch.arange(len(sample.sampler_logprobs)) != 2
    return replace(
        sample,
        loss_mask=loss_mask,
        sampler_logprobs=sample.sampler_logprobs[keep],
        staleness=sample.staleness[keep],
    )


def test_only_the_predictors_of_tokens_in_the_loss_have_a_gradient() -> None:
    goal = Objective(Algorithm.model_validate({"entropy_bonus": 0.1}), 1.0, 12)
    sample = next(s for s in random_samples(1, 4) if len(s.sampler_logprobs) >= 4)
    sample = padded(with_a_tool(sample), 3)
    model = tiny_model().model.double()
    seen: list[torch.Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        seen.append(output.last_hidden_state)

    model.base_model.register_forward_hook(keep)
    accumulate_gradients(TokenLogprobs(model), [sample], goal, MicroBatches(ALONE, 1000))
    (hidden,) = seen
    assert hidden.grad is not None
    has_gradient = (hidden.grad[0] != 0).any(1)
    # A position predicts the next token. All other positions (prompt, tool, padding) have exactly
    # no gradient.
    expected = torch.cat([sample.loss_mask[1:], torch.tensor([False])])
    assert not expected[-4:].any()
    assert has_gradient.tolist() == expected.tolist()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_masked_answer_has_no_gradient_whatever_is_in_it(name: str) -> None:
    goal = objective(name)
    samples = batch(name)
    masked = [sample for sample in samples if not sample.trains]
    before = gradients(goal, [samples])
    for sample in masked:
        sample.tokens = sample.tokens.flip(0)
        sample.advantage = 1e6
    after = gradients(goal, [samples])
    without = gradients(goal, [[sample for sample in samples if sample.trains]])
    assert masked
    assert all(
        torch.equal(before[n], after[n]) and torch.equal(before[n], without[n]) for n in before
    )
