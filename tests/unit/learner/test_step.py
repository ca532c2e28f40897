"""The gradient of a batch does not depend on its cut, and equals the formula's."""

import math

import pytest
import torch

from learner.batch.samples import TrainingSample
from learner.distributed import Ranks
from learner.metrics.loss_metrics import Tally
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.model.reference_policies import Copies, PolicyCopy
from learner.objective.compose import Objective
from learner.optim.optimizers import Optimizers
from learner.step import accumulate_gradients, set_logprobs, train_batch
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import (
    Aggregation,
    ConstantLength,
    GSPOLoss,
    Loss,
    PPOLoss,
    PromptMean,
    RecomputeProximal,
    ReferenceKL,
    ReinforceLoss,
    SequenceMean,
    TokenMean,
)
from services.contracts.config.optimizer import AdamW
from tests.unit.learner.policies import random_samples, state_of, tiny_model

ALONE = Ranks(0, 1, torch.device("cpu"))


def objective(**algorithm: object) -> Objective:
    return Objective(Algorithm.model_validate(algorithm), temperature=0.8, max_tokens=12)


def gradients(goal: Objective, budget: int, permute: bool = False) -> dict[str, torch.Tensor]:
    model = tiny_model().model
    samples = random_samples(groups=5, per_group=4)
    if permute:
        samples = samples[::-1]
    accumulate_gradients(TokenLogprobs(model), samples, goal, MicroBatches(ALONE, budget))
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    scale = max(float(grad.abs().max()) for grad in a.values())
    for name, grad in a.items():
        torch.testing.assert_close(b[name], grad, atol=1e-5 * scale, rtol=1e-5)


AGGREGATIONS: list[Aggregation] = [
    TokenMean(),
    SequenceMean(type="sequence_mean"),
    PromptMean(type="prompt_mean"),
    ConstantLength(type="constant"),
]
LOSSES: list[Loss] = [PPOLoss(), ReinforceLoss(type="reinforce"), GSPOLoss(type="gspo")]


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=lambda c: c.type)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda c: c.type)
def test_the_token_budget_does_not_change_the_gradient(
    loss: Loss, aggregation: Aggregation
) -> None:
    goal = objective(loss=loss, aggregation=aggregation)
    whole = gradients(goal, budget=10_000)
    assert_same(whole, gradients(goal, budget=25))
    assert_same(whole, gradients(goal, budget=60, permute=True))


def test_the_gradient_is_that_of_the_formula_in_float64() -> None:
    goal = objective(loss=PPOLoss(epsilon_low=0.1, epsilon_high=0.15))
    samples = [sample for sample in random_samples(groups=3, per_group=3) if sample.trains]
    model = tiny_model().model.double()
    total = torch.zeros((), dtype=torch.float64)
    for sample in samples:
        logits = model(sample.tokens[None], use_cache=False).logits[0] / 0.8
        every = logits[:-1].log_softmax(-1).gather(1, sample.tokens[1:, None]).squeeze(1)
        rho = (every[sample.loss_mask[1:]] - sample.sampler_logprobs.double()).exp()
        a = sample.advantage
        total = total - torch.minimum(rho * a, rho.clamp(0.9, 1.15) * a).sum()
    tokens = sum(len(sample.sampler_logprobs) for sample in samples)
    (total / tokens).backward()
    expected = {name: p.grad.float() for name, p in model.named_parameters()}

    trained = tiny_model().model
    accumulate_gradients(
        TokenLogprobs(trained), random_samples(groups=3, per_group=3), goal, MicroBatches(ALONE, 40)
    )
    assert_same(expected, {name: p.grad for name, p in trained.named_parameters()})


@pytest.mark.parametrize("proximal", ["sampler", "recompute"])
def test_reinforce_is_weighed_by_the_truncated_policy_over_the_sampler(proximal: str) -> None:
    # −min(sg(π)/μ, C)·A·log π: without a ratio, the proximal policy plays no part.
    goal = objective(
        loss=ReinforceLoss(type="reinforce"),
        proximal={"type": proximal},
        correction={"type": "truncate", "cap": 1.1},
    )
    samples = [sample for sample in random_samples(groups=3, per_group=3) if sample.trains]
    model = tiny_model().model.double()
    total = torch.zeros((), dtype=torch.float64)
    cut = 0
    for sample in samples:
        logits = model(sample.tokens[None], use_cache=False).logits[0] / 0.8
        every = logits[:-1].log_softmax(-1).gather(1, sample.tokens[1:, None]).squeeze(1)
        logprobs = every[sample.loss_mask[1:]]
        weight = (logprobs.detach() - sample.sampler_logprobs.double()).exp()
        cut += int((weight > 1.1).sum())
        total = total - (weight.clamp(max=1.1) * sample.advantage * logprobs).sum()
    assert cut
    (total / sum(len(sample.sampler_logprobs) for sample in samples)).backward()
    expected = {name: p.grad.float() for name, p in model.named_parameters()}

    trained = tiny_model().model
    given = random_samples(groups=3, per_group=3)
    for sample in given:
        if proximal == "recompute":
            sample.proximal_logprobs = torch.full_like(sample.sampler_logprobs, -7.0)
    accumulate_gradients(TokenLogprobs(trained), given, goal, MicroBatches(ALONE, 40))
    assert_same(expected, {name: p.grad for name, p in trained.named_parameters()})


def test_a_batch_without_anything_to_train_has_gradient_zero() -> None:
    model = tiny_model().model
    samples = random_samples(groups=2, per_group=1)  # The only sample of each group is masked.
    accumulate_gradients(TokenLogprobs(model), samples, objective(), MicroBatches(ALONE, 100))
    assert all(float(p.grad.abs().max()) == 0 for p in model.parameters())


def own_logprobs(temperature: float) -> list[TrainingSample]:
    """Samples whose sampler is the tiny model itself, at the trained version."""
    samples = [sample for sample in random_samples(groups=3, per_group=3) if sample.trains]
    policy = TokenLogprobs(tiny_model().model)
    set_logprobs(samples, temperature, MicroBatches(ALONE, 1000), policy, "sampler_logprobs")
    for sample in samples:
        sample.staleness.zero_()
    return samples


def test_at_equal_versions_the_mismatch_is_zero_and_every_ratio_is_one() -> None:
    samples = own_logprobs(0.8)
    tally = Tally(unchanged=True)
    policy = TokenLogprobs(tiny_model().model)
    accumulate_gradients(policy, samples, objective(), MicroBatches(ALONE, 50), tally)
    metrics = tally.metrics(ALONE)
    assert metrics["mismatch/logprob_max"] == pytest.approx(0, abs=1e-5)
    assert metrics["mismatch/kl"] == pytest.approx(0, abs=1e-9)
    assert metrics["mismatch/sampler_kl"] == pytest.approx(0, abs=1e-9)
    assert metrics["train/ratio_mean"] == pytest.approx(1)
    assert metrics["train/ess"] == pytest.approx(1)
    assert metrics["train/clip_low"] == metrics["train/clip_high"] == 0
    assert tally.sums[0] == sum(len(s.sampler_logprobs) for s in samples)


def test_sampler_and_policy_are_compared_even_if_all_tokens_are_stale() -> None:
    samples = own_logprobs(0.8)
    for sample in samples:
        sample.staleness += 1
        sample.sampler_logprobs = sample.sampler_logprobs - math.log(2)
    tally = Tally(unchanged=True)
    policy = TokenLogprobs(tiny_model().model)
    accumulate_gradients(policy, samples, objective(), MicroBatches(ALONE, 50), tally)
    metrics = tally.metrics(ALONE)
    assert "mismatch/kl" not in metrics
    # d = log μ − log π = −log 2: e^(−d) + d − 1 = 2 − log 2 − 1.
    assert metrics["mismatch/sampler_kl"] == pytest.approx(1 - math.log(2), abs=1e-4)


def test_an_answer_interrupted_by_a_weight_update_does_not_count_in_the_mismatch() -> None:
    samples = own_logprobs(0.8)
    interrupted = samples[0]
    # Its last token was sampled under the trained version, over older keys and values.
    interrupted.staleness = torch.ones_like(interrupted.staleness)
    interrupted.staleness[-1] = 0
    interrupted.sampler_logprobs = interrupted.sampler_logprobs - 0.1
    tally = Tally(unchanged=True)
    policy = TokenLogprobs(tiny_model().model)
    accumulate_gradients(policy, samples, objective(), MicroBatches(ALONE, 50), tally)
    metrics = tally.metrics(ALONE)
    assert metrics["mismatch/logprob_max"] == pytest.approx(0, abs=1e-5)
    assert metrics["mismatch/sampler_kl"] > 1e-5
    assert metrics["mismatch/sampler_logprob_max"] == pytest.approx(0.1, abs=1e-4)


def test_recomputed_proximal_makes_the_ratio_one_whatever_the_sampler() -> None:
    model = tiny_model()
    goal = objective(proximal=RecomputeProximal(type="recompute"))
    metrics = train_batch(
        state_of(TokenLogprobs(model.model), Optimizers(model.model, AdamW(lr=1e-3))),
        [random_samples(groups=3, per_group=3)],
        goal,
        MicroBatches(ALONE, 60),
        lambda _: 1.0,
    )
    assert metrics["train/ratio_mean"] == pytest.approx(1, abs=1e-6)
    assert metrics["train/ratio_max"] == pytest.approx(1, abs=1e-5)


def test_a_reference_adds_a_gradient_only_if_it_differs_from_the_policy() -> None:
    goal = objective(kl=ReferenceKL(type="k3", beta=0.5), loss=ReinforceLoss(type="reinforce"))
    kls = []
    for seed in (0, 1):
        model = tiny_model()
        metrics = train_batch(
            state_of(
                model,
                Optimizers(model.model, AdamW(lr=1e-3)),
                Copies(reference=PolicyCopy(TokenLogprobs(tiny_model(seed).model))),
            ),
            [random_samples(groups=3, per_group=3)],
            goal,
            MicroBatches(ALONE, 60),
            lambda _: 1.0,
        )
        kls.append(metrics["train/kl"])
    assert kls[0] == pytest.approx(0, abs=1e-9)
    assert kls[1] > 1e-4


def test_every_minibatch_of_every_epoch_is_one_optimizer_step() -> None:
    model = tiny_model()
    rates: list[int] = []

    def rate(number: int) -> float:
        rates.append(number)
        return 1.0

    parts = [random_samples(groups=2, per_group=3, seed=seed) for seed in (0, 1, 2)]
    train_batch(
        state_of(TokenLogprobs(model.model), Optimizers(model.model, AdamW(lr=1e-3))),
        [*parts, *parts],
        objective(minibatches=3, epochs_per_batch=2),
        MicroBatches(ALONE, 60),
        rate,
    )
    assert rates == [0, 1, 2, 3, 4, 5]


def test_a_batch_that_is_stopped_leaves_neither_an_update_nor_a_gradient() -> None:
    model = tiny_model()
    before = {name: p.detach().clone() for name, p in model.model.named_parameters()}
    metrics = train_batch(
        state_of(TokenLogprobs(model.model), Optimizers(model.model, AdamW(lr=1.0))),
        [random_samples(groups=3, per_group=3)],
        objective(early_stop_kl=1e-6),
        MicroBatches(ALONE, 60),
        lambda _: 1.0,
    )
    assert metrics["train/updates"] == 0
    for name, parameter in model.model.named_parameters():
        assert parameter.grad is None
        assert torch.equal(parameter, before[name])


def test_samples_keep_the_log_probabilities_and_entropies_of_the_first_pass() -> None:
    loaded = tiny_model()
    policy = TokenLogprobs(loaded.model)
    samples = random_samples(groups=4, per_group=3)
    trained = [sample for sample in samples if sample.trains]
    batches = MicroBatches(ALONE, 40)
    set_logprobs(trained, 0.8, batches, policy, "reference_logprobs")
    before = [sample.reference_logprobs for sample in trained]
    parts = [samples[:6], samples[6:]]
    goal = objective(minibatches=2, epochs_per_batch=2)
    state = state_of(policy, Optimizers(loaded.model, AdamW(lr=1e-2)))

    train_batch(state, [*parts, *reversed(parts)], goal, batches, lambda _: 1.0)

    gaps = []
    for sample, logprobs in zip(trained, before, strict=True):
        assert sample.learner_logprobs is not None
        assert sample.entropy is not None
        assert logprobs is not None
        assert bool((sample.entropy > 0).all())
        assert len(sample.entropy) == len(sample.sampler_logprobs)
        gaps.append(float((sample.learner_logprobs - logprobs).abs().max()))
    # The second minibatch was first passed after one update.
    first = sum(sample.trains for sample in parts[0])
    assert max(gaps[:first]) < 1e-5
    assert min(gaps[first:]) > 1e-4
    masked = [sample for sample in samples if not sample.trains]
    assert masked
    assert all(sample.learner_logprobs is None for sample in masked)
