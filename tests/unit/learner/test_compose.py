"""The composed objective: identities between objectives, and when a batch stops."""

import math
from typing import Any

import pytest
import torch

from learner.batch.samples import TrainingSample
from learner.batch.token_advantages import penalties
from learner.model.passes.microbatches import MicroBatches
from learner.objective.compose import Objective, composed_loss
from learner.objective.losses import Tokens
from learner.optim.optimizers import Optimizers
from learner.step import train_batch
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.optimizer import AdamW
from tests.unit.learner.policies import logs, state_of, tensor, tiny_model, trajectory_group
from tests.unit.learner.threads import on_ranks
from tests.unit.learner.unigrams import ALONE, Unigrams, prepared, trained

FULL = {"type": "truncate", "cap": 1e30}


def objective(**algorithm: Any) -> Objective:
    return Objective(Algorithm.model_validate(algorithm), temperature=1.0, max_tokens=12)


def samples(goal: Objective) -> list[TrainingSample]:
    return prepared([trajectory_group([1.0, 0.0, 0.5]), trajectory_group([0.0, 2.0])], goal)


def same(a: tuple[float, torch.Tensor], b: tuple[float, torch.Tensor]) -> bool:
    assert a[1].abs().max() > 1e-3
    return a[0] == pytest.approx(b[0], rel=1e-12) and torch.allclose(a[1], b[1], rtol=1e-12)


@pytest.mark.parametrize("loss", ["ppo", "gspo", "cispo", "sequence_ppo", "sapo"])
@pytest.mark.parametrize("correction", [FULL, {"type": "mask"}, {"type": "none"}])
def test_decoupled_with_the_sampler_as_proximal_policy_is_the_plain_objective(
    loss: str, correction: dict[str, Any]
) -> None:
    # Far from the clips, which at their defaults take every gradient of so small a batch.
    wide = {"epsilon_low": 0.9, "epsilon_high": 5.0} if loss in ("gspo", "sequence_ppo") else {}
    plain = objective(loss={"type": loss, **wide})
    decoupled = objective(
        loss={"type": loss, **wide}, proximal={"type": "recompute"}, correction=correction
    )
    given = samples(decoupled)
    for sample in given:
        sample.proximal_logprobs = sample.sampler_logprobs.clone()
    assert same(trained(given, decoupled), trained(samples(plain), plain))


def test_truncation_without_a_cap_is_full_importance_weighting() -> None:
    # sg(π_prox/μ)·(π/π_prox)·A has gradient (π/μ)·A·∇log π, and so has sg(π/μ)·A·log π.
    wide = {"type": "ppo", "epsilon_low": 1.0, "epsilon_high": 1e9}
    decoupled = objective(loss=wide, proximal={"type": "recompute"}, correction=FULL)
    given = samples(decoupled)
    policy = Unigrams()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for sample in given:
        p = policy.logits.log_softmax(0)[sample.tokens[sample.loss_mask]]
        total = total - ((p - sample.sampler_logprobs.double()).exp() * sample.advantage).sum()
        count += len(p)
    (expected,) = torch.autograd.grad(total / count, policy.logits)
    assert torch.allclose(trained(given, decoupled)[1], expected, rtol=1e-12)
    reinforce = objective(loss={"type": "reinforce"}, correction=FULL)
    assert torch.allclose(trained(samples(reinforce), reinforce)[1], expected, rtol=1e-12)


def test_loglinear_with_fresh_tokens_is_the_plain_objective() -> None:
    plain, between = objective(), objective(proximal={"type": "loglinear"}, correction=FULL)
    fresh = samples(between)
    for sample in fresh:
        sample.staleness.zero_()
    assert same(trained(fresh, between), trained(samples(plain), plain))
    # With stale tokens (the first token of each answer is 2 versions back) it differs.
    assert not same(trained(samples(between), between), trained(samples(plain), plain))


def test_the_entropy_bonus_adds_its_gradient_and_no_other() -> None:
    plain, with_bonus = objective(), objective(entropy_bonus=0.5)
    policy = Unigrams()
    every = policy.logits.log_softmax(0)
    # The same entropy at every token, so its token mean is itself.
    entropy = -(every.exp() * every).sum()
    (slope,) = torch.autograd.grad(entropy, policy.logits)
    before, after = trained(samples(plain), plain), trained(samples(with_bonus), with_bonus)
    assert after[0] == pytest.approx(before[0] - 0.5 * entropy.item(), rel=1e-12)
    assert torch.allclose(after[1], before[1] - 0.5 * slope, rtol=1e-9)


def test_a_correction_weighs_the_policy_loss_and_neither_the_kl_nor_the_entropy() -> None:
    goal = objective(
        proximal={"type": "recompute"},
        correction={"type": "mask", "low": 0.5, "high": 2.0},
        kl={"type": "k2", "beta": 0.5},
        entropy_bonus=0.25,
    )
    # w is 4, which leaves the first token out, and 1.5; π/π_prox is 1.1; d is log 2 and −log 3.
    proximal = logs(0.4, 0.3)
    tokens = Tokens(
        logprobs=proximal + math.log(1.1),
        proximal=proximal,
        sampler=proximal - logs(4, 1.5),
        advantages=tensor(2, -1),
        sequence=torch.tensor([0, 0]),
        n=1,
        reference=proximal + math.log(1.1) - logs(2, 1 / 3),
    )
    composed = composed_loss(goal.algorithm, goal.beta, tokens, entropy=tensor(3, 4))
    expected = [
        0.5 * math.log(2) ** 2 / 2 - 0.25 * 3,
        1.5 * 1.1 + 0.5 * math.log(3) ** 2 / 2 - 0.25 * 4,
    ]
    assert composed.loss.tolist() == pytest.approx(expected, rel=1e-12)


def test_the_adapted_beta_counts_only_while_beta_is_adaptive() -> None:
    fixed = Algorithm.model_validate({"kl": {"type": "k3", "beta": 0.1}})
    adaptive = Algorithm.model_validate({"kl": {"type": "k3", "beta": 0.1, "adaptive": {}}})
    assert Objective(Algorithm(), 1.0, 12, adapted_beta=0.7).beta == 0.0
    assert Objective(fixed, 1.0, 12, adapted_beta=0.7).beta == 0.1
    assert Objective(adaptive, 1.0, 12).beta == 0.1
    assert Objective(adaptive, 1.0, 12, adapted_beta=0.7).beta == 0.7


def test_the_kl_in_the_reward_is_taken_from_the_proximal_policy() -> None:
    goal = objective(
        advantage={"type": "global_whiten"},
        proximal={"type": "recompute"},
        kl={"type": "k1_in_reward", "beta": 0.5},
    )
    sample = samples(goal)[0]
    sample.proximal_logprobs = torch.tensor([-1.0])
    sample.reference_logprobs = torch.tensor([-3.0])
    assert penalties(sample, goal).tolist() == [1.0]
    sample.proximal_logprobs = None
    sample.sampler_logprobs = torch.tensor([-2.0])
    assert penalties(sample, goal).tolist() == [0.5]


def metrics(goal: Objective, minibatches: list[list[TrainingSample]]) -> dict[str, float]:
    """Metrics of a batch that hardly moves the policy."""
    optimizers = Optimizers(tiny_model().model, AdamW(lr=1.0))
    policy = Unigrams().float()
    passes = minibatches * goal.algorithm.epochs_per_batch
    return train_batch(
        state_of(policy, optimizers), passes, goal, MicroBatches(ALONE, 100), lambda _: 1.0
    )


def parts(goal: Objective) -> list[list[TrainingSample]]:
    """Two minibatches. The trained policy has sampled the first. The second's sampler gave each
    token an eighth of its probability: ratio 8."""
    given = []
    for far, rewards in ((0.0, [1.0, 0.0, 0.5]), (math.log(8), [0.0, 2.0])):
        part = prepared([trajectory_group([*rewards])], goal)
        every = Unigrams().logits.detach().log_softmax(0)
        for sample in part:
            sample.sampler_logprobs = every[sample.tokens[sample.loss_mask]].float() - far
        given.append(part)
    return given


@pytest.mark.parametrize("bound", [{"early_stop_kl": 4.9}, {"early_stop_ratio": 7.9}])
def test_a_minibatch_beyond_the_bound_is_not_trained_and_ends_the_batch(
    bound: dict[str, float],
) -> None:
    goal = objective(minibatches=2, epochs_per_batch=3, **bound)
    # log μ − log π = −log 8: k3 is 8 − log 8 − 1 = 4.92.
    assert metrics(goal, parts(goal))["train/updates"] == 1


def test_a_bound_is_on_the_mean_over_a_minibatch() -> None:
    for bound in ({"early_stop_kl": 4.93}, {"early_stop_ratio": 8.1}):
        goal = objective(minibatches=2, epochs_per_batch=3, **bound)
        assert metrics(goal, parts(goal))["train/updates"] == 6


def test_a_batch_that_begins_beyond_the_bound_takes_no_update() -> None:
    goal = objective(early_stop_kl=0.1)
    (part, _) = parts(goal)
    for sample in part:
        sample.sampler_logprobs -= math.log(3)
    # k3 of log μ − log π = −log 3: 3 − log 3 − 1 = .901.
    found = metrics(goal, [part])
    assert found["train/proximal_kl"] == pytest.approx(2 - math.log(3), rel=1e-5)
    assert found["train/updates"] == found["train/grad_norm"] == 0


def test_all_ranks_stop_together_though_only_one_has_gone_too_far() -> None:
    goal = objective(early_stop_ratio=1.5)

    def one(ranks: Any) -> dict[str, float]:
        (part, _) = parts(goal)
        if ranks.first:
            # Ratio 4 on this rank and 1 on the other, with as many tokens: 2.5 in the mean.
            for sample in part:
                sample.sampler_logprobs -= math.log(4)
        policy = Unigrams().float()
        optimizers = Optimizers(tiny_model().model, AdamW(lr=1.0))
        return train_batch(
            state_of(policy, optimizers), [part], goal, MicroBatches(ranks, 100), lambda _: 1.0
        )

    first, second = on_ranks(2, one)
    assert first == second
    assert first["train/ratio_mean"] == pytest.approx(2.5, rel=1e-5)
    assert first["train/updates"] == 0


def test_a_batch_is_whitened_over_all_its_minibatches_before_it_is_trained() -> None:
    goal = objective(advantage={"type": "global_whiten"}, minibatches=2)
    given = samples(goal)[:2]
    for sample in given:
        sample.token_advantages = None
    metrics(goal, [[given[0]], [given[1]]])
    # One token of reward 1 and two of reward 0: mean 1/3, deviation √((4 + 1 + 1)/9 / 2) = √(1/3).
    scale = math.sqrt(1 / 3) + 1e-6
    found = [s.token_advantages.tolist() for s in given if s.token_advantages is not None]
    assert found == [
        pytest.approx([2 / 3 / scale], rel=1e-12),
        pytest.approx([-1 / 3 / scale] * 2, rel=1e-12),
    ]
