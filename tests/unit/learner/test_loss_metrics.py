"""A step's metrics, by hand: ratios, clips, KLs and the loss, and the tokens that each covers."""

import math
from typing import Any

import pytest
import torch

from learner.batch.samples import TrainingSample
from learner.model.passes.microbatches import MicroBatches
from learner.objective.compose import Objective, composed_loss
from learner.objective.losses import Tokens
from learner.optim.optimizers import Optimizers
from learner.step import train_batch
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.optimizer import AdamW
from tests.unit.learner.policies import logs, state_of, tensor, tiny_model, trajectory_group
from tests.unit.learner.unigrams import ALONE, Unigrams, prepared


def objective(**algorithm: Any) -> Objective:
    mean = {"advantage": {"type": "group_mean"}, **algorithm}
    return Objective(Algorithm.model_validate(mean), temperature=1.0, max_tokens=12)


def two_answers(
    goal: Objective, *ratios: float, distance: tuple[float, ...] = ()
) -> list[TrainingSample]:
    """One answer with one token in the loss and A = ½, and one with two tokens and A = −½, all of
    the trained version. π/μ and, if there is a reference, log π − log π_ref are given."""
    samples = prepared([trajectory_group([1.0, 0.0])], goal)
    own = Unigrams().logits.detach().log_softmax(0)
    taken = 0
    for sample in samples:
        here = slice(taken, taken + len(sample.sampler_logprobs))
        policy = own[sample.tokens[sample.loss_mask]]
        sample.sampler_logprobs = (policy - logs(*ratios)[here]).float()
        if distance:
            sample.reference_logprobs = policy - tensor(*distance)[here]
        sample.staleness.zero_()
        taken = here.stop
    return samples


def measured(goal: Objective, *minibatches: list[TrainingSample]) -> dict[str, float]:
    """Metrics of a step that leaves the policy unchanged: its optimizer moves another model."""
    others = Optimizers(tiny_model().model, AdamW())
    passes = list(minibatches) * goal.algorithm.epochs_per_batch
    state = state_of(Unigrams().float(), others)
    return train_batch(state, passes, goal, MicroBatches(ALONE, 100), lambda _: 1.0)


def test_ratios_and_what_clips_and_corrections_did_are_shares_of_the_tokens() -> None:
    goal = objective(correction={"type": "mask", "low": 0.3, "high": 5.0})
    found = measured(goal, two_answers(goal, 2.0, 0.5, 0.25))
    # The first is clipped from above, the others from below, and the last is left out.
    # −1.2·½, .8·½ and nothing, over three tokens.
    assert found["train/loss"] == pytest.approx((-0.6 + 0.4) / 3, rel=1e-5)
    assert found["train/clip_high"] == pytest.approx(1 / 3)
    assert found["train/clip_low"] == pytest.approx(2 / 3)
    assert found["train/corrected_low"] == pytest.approx(1 / 3)
    assert found["train/corrected_high"] == 0
    assert found["train/ratio_mean"] == pytest.approx(2.75 / 3, rel=1e-5)
    assert found["train/ratio_max"] == pytest.approx(2, rel=1e-5)
    # (Σρ)²/(N·Σρ²).
    assert found["train/ess"] == pytest.approx(2.75**2 / (3 * (4 + 0.25 + 0.0625)), rel=1e-5)
    every = Unigrams().logits.detach().log_softmax(0)
    assert found["train/entropy"] == pytest.approx(float(-(every.exp() * every).sum()), rel=1e-5)


def test_corrections_count_too_large_and_too_small_ratios_apart() -> None:
    goal = objective(correction={"type": "mask", "low": 0.3, "high": 1.5})
    found = measured(goal, two_answers(goal, 2.0, 0.5, 1.75))
    assert found["train/corrected_low"] == 0
    assert found["train/corrected_high"] == pytest.approx(2 / 3)


def test_the_kl_to_the_reference_is_a_mean_over_tokens_and_a_sum_over_each_answer() -> None:
    goal = objective(kl={"type": "k2", "beta": 0.1})
    found = measured(goal, two_answers(goal, 1.0, 1.0, 1.0, distance=(1.0, 2.0, 0.0)))
    assert found["train/kl"] == pytest.approx((0.5 + 2) / 3, rel=1e-4)
    assert found["train/kl_per_sample"] == pytest.approx((0.5 + 2) / 2, rel=1e-4)
    # −½ + ½ + ½, and β of the KL.
    assert found["train/loss"] == pytest.approx((0.5 + 0.1 * 2.5) / 3, rel=1e-4)


def test_the_measured_kl_in_the_reward_is_the_proximal_policys() -> None:
    goal = objective(
        advantage={"type": "global_whiten"},
        proximal={"type": "recompute"},
        kl={"type": "k1_in_reward"},
    )
    zeros, place = tensor(0, 0), torch.tensor([0, 0])
    tokens = Tokens(logs(2, 2), logs(3, 5), zeros, zeros, place, 1, reference=logs(4, 4))
    found = composed_loss(goal.algorithm, goal.beta, tokens, entropy=zeros)
    assert found.kl.tolist() == pytest.approx([math.log(3 / 4), math.log(5 / 4)])
    assert found.loss.tolist() == [0.0, 0.0]


def test_the_mismatch_is_the_kl_of_the_sampler_to_the_policy_on_answers_of_its_own_version() -> (
    None
):
    goal = objective()
    samples = two_answers(goal, 2.0, 0.5, 0.25)
    samples[1].staleness += 1
    found = measured(goal, samples)
    # k3 of KL(μ ‖ π), d = −log ρ: ρ − log ρ − 1.
    each = [r - math.log(r) - 1 for r in (2.0, 0.5, 0.25)]
    assert found["mismatch/kl"] == pytest.approx(each[0], rel=1e-4)
    assert found["mismatch/logprob_max"] == pytest.approx(math.log(2), rel=1e-5)
    assert found["mismatch/sampler_kl"] == pytest.approx(sum(each) / 3, rel=1e-4)
    assert found["mismatch/sampler_logprob_max"] == pytest.approx(math.log(4), rel=1e-5)
    assert found["train/proximal_kl"] == pytest.approx(sum(each) / 3, rel=1e-4)


@pytest.mark.parametrize("bound", [{}, {"early_stop_ratio": 100.0}], ids=["all", "unless too far"])
def test_only_first_passes_count_and_for_the_mismatch_only_the_one_before_any_update(
    bound: dict[str, float],
) -> None:
    goal = objective(minibatches=2, epochs_per_batch=2, **bound)
    first, second = two_answers(goal, 1.1, 1.1, 1.1), two_answers(goal, 1.0, 1.0, 4.0)
    found = measured(goal, first, second)
    # (−.55 + 1.1)/3, and (−.5 + .5 + 2)/3.
    assert found["train/loss"] == pytest.approx((0.55 + 2) / 3 / 2, rel=1e-4)
    assert found["train/ratio_mean"] == pytest.approx((3.3 + 6) / 6, rel=1e-5)
    assert found["train/ratio_max"] == pytest.approx(4, rel=1e-5)
    assert found["mismatch/sampler_logprob_max"] == pytest.approx(math.log(1.1), rel=1e-4)
    assert found["train/updates"] == 4


def test_a_kl_per_sample_is_summed_over_each_and_averaged_over_them() -> None:
    kl = {"type": "k1", "beta": 0.5}
    losses = []
    for per in ("token", "sample"):
        goal = objective(kl=kl | {"per": per})
        samples = two_answers(goal, 1.0, 1.0, 1.0, distance=(1.0, 2.0, 5.0))
        losses.append(measured(goal, samples)["train/loss"])
    # 8 nats in three tokens, or in two answers.
    assert losses[1] - losses[0] == pytest.approx(0.5 * (8 / 2 - 8 / 3), rel=1e-5)


def test_conversations_of_one_session_are_one_sample_of_the_kl() -> None:
    goal = objective(kl={"type": "k2", "beta": 0.1, "per": "sample"})
    samples = two_answers(goal, 1.0, 1.0, 1.0, distance=(1.0, 2.0, 0.0))
    # A session that branches is several samples here, and its first sample counts.
    samples[1].number, samples[1].first = samples[0].number, False
    assert measured(goal, samples)["train/kl_per_sample"] == pytest.approx(0.5 + 2, rel=1e-4)


def test_the_loss_of_a_batch_that_ended_early_covers_its_seen_minibatches() -> None:
    goal = objective(minibatches=3, early_stop_ratio=1.5)
    parts = [two_answers(goal, *ratios) for ratios in ((1, 1, 1), (1, 1, 4), (1, 1, 1))]
    found = measured(goal, *parts)
    assert found["train/updates"] == 1
    assert found["train/loss"] == pytest.approx((0.5 + 2) / 3 / 2, rel=1e-4)
