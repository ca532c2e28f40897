"""A critic next to the policy: the places that it values, what trains it, and what does not."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.batch.samples import TrainingSample
from learner.distributed import Ranks
from learner.model.passes.microbatches import MicroBatches
from learner.model.value_model import (
    TokenValues,
    TrainedCritic,
    accumulate_value_gradients,
    learn_scale,
    set_values,
    train_critic,
)
from learner.objective.compose import Objective
from learner.objective.value_loss import Moments, Scale
from learner.optim.optimizers import Optimizers
from learner.step import train_batch
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.critic import Critic as CriticConfig
from services.contracts.config.optimizer import AdamW
from tests.unit.learner.policies import random_samples, state_of, tensor, tiny_critic, tiny_model
from tests.unit.learner.tables import Table, table_critic
from tests.unit.learner.threads import assert_same_gradients, mean_gradients, on_ranks
from tests.unit.learner.unigrams import ALONE, near

GROUPS = 5
GAE = Algorithm.model_validate({"advantage": {"type": "gae"}, "critic": {}})
AT_THE_END = Algorithm.model_validate({"advantage": {"type": "sequence_value"}, "critic": {}})


MODEL = tiny_critic().double()


def critic(config: dict[str, Any] | None = None, lr: float = 1e-2) -> TrainedCritic:
    """A transformer with a fixed random head, in float64."""
    model = deepcopy(MODEL)
    given = CriticConfig.model_validate(config or {})
    return TrainedCritic(
        model, TokenValues(model), Optimizers(model, AdamW(lr=lr)), given, Moments()
    )


def batch(algorithm: Algorithm) -> list[TrainingSample]:
    """Samples of five groups, the critic's values of them, and returns near the values."""
    samples = random_samples(GROUPS, per_group=4)
    for number, sample in enumerate(samples):
        k = len(sample.sampler_logprobs)
        said = torch.zeros(k + 1, dtype=torch.float64)
        sample.values = near(said, 300 + number)
        learned = 1 if algorithm is AT_THE_END else k
        sample.returns = near(torch.zeros(learned, dtype=torch.float64), 400 + number, 1.0)
    return samples


def gradients(
    algorithm: Algorithm, shares: Sequence[Sequence[TrainingSample]], budget: int = 10_000
) -> dict[str, torch.Tensor]:
    """The gradients that DDP computes from the ranks, each rank training one of `shares`. Returns
    are in units over all ranks."""

    def one(ranks: Ranks) -> dict[str, torch.Tensor]:
        mine = list(shares[ranks.rank])
        trained = critic({"normalisation": {"type": "exponential"}})
        learn_scale(trained, [sample for sample in mine if sample.trains], algorithm, ranks)
        accumulate_value_gradients(trained, mine, algorithm, MicroBatches(ranks, budget))
        return {n: p.grad for n, p in trained.model.named_parameters() if p.grad is not None}

    return mean_gradients(len(shares), one)


@pytest.mark.parametrize("algorithm", [GAE, AT_THE_END], ids=lambda a: a.advantage.type)
@settings(max_examples=8, deadline=None)
@given(
    dealt=st.lists(st.integers(0, 2), min_size=4 * GROUPS, max_size=4 * GROUPS),
    budget=st.integers(20, 120),
    extra=st.integers(0, 3),
    order=st.randoms(use_true_random=False),
)
def test_ranks_cuts_order_and_padding_do_not_change_the_gradient(
    algorithm: Algorithm, dealt: list[int], budget: int, extra: int, order: Any
) -> None:
    whole = gradients(algorithm, [batch(algorithm)])
    samples = batch(algorithm)
    if algorithm is GAE:
        samples = [followed(sample, extra) for sample in samples]
    order.shuffle(samples)
    # Samples of one group may be on any ranks. A rank without samples takes part in all sums.
    shares: list[list[TrainingSample]] = [[] for _ in range(max(dealt) + 1)]
    for rank, sample in zip(dealt, samples, strict=True):
        shares[rank].append(sample)
    assert_same_gradients(whole, gradients(algorithm, shares, budget))


def followed(sample: TrainingSample, extra: int) -> TrainingSample:
    """The sample with `extra` tokens after it that are not in the loss."""
    return replace(
        sample,
        tokens=torch.cat([sample.tokens, torch.full((extra,), 5)]),
        loss_mask=torch.cat([sample.loss_mask, torch.zeros(extra, dtype=torch.bool)]),
    )


@pytest.mark.parametrize("algorithm", [GAE, AT_THE_END], ids=lambda a: a.advantage.type)
def test_only_the_places_that_the_critic_values_have_a_gradient(
    algorithm: Algorithm,
) -> None:
    sample = followed(max(batch(algorithm), key=lambda s: len(s.sampler_logprobs)), 2)
    # A clip would remove some gradients.
    trained = critic({"loss": {"type": "mse", "clip_range": None}})
    seen: list[torch.Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        seen.append(output.last_hidden_state)

    trained.model.base_model.register_forward_hook(keep)
    accumulate_value_gradients(trained, [sample], algorithm, MicroBatches(ALONE, 1000))
    (hidden,) = seen
    assert hidden.grad is not None
    has_gradient = (hidden.grad[0] != 0).any(1)
    # Only places before a token in the loss: never a token that only prompt or padding follow.
    expected = torch.cat([sample.loss_mask[1:], torch.tensor([False])])
    if algorithm is AT_THE_END:
        expected = torch.arange(len(sample.tokens)) == len(sample.tokens) - 1
    assert has_gradient.tolist() == expected.tolist()


def test_a_masked_answer_has_no_gradient_whatever_is_in_it() -> None:
    samples = batch(GAE)
    before = gradients(GAE, [samples])
    masked = [sample for sample in samples if not sample.trains]
    for sample in masked:
        sample.tokens = sample.tokens.flip(0)
        sample.values = tensor(1e6)
    after = gradients(GAE, [samples])
    without = gradients(GAE, [[sample for sample in samples if sample.trains]])
    assert masked
    assert all(
        torch.equal(before[n], after[n]) and torch.equal(before[n], without[n]) for n in before
    )


def test_the_critic_values_each_token_in_the_loss_and_the_last_token() -> None:
    asked = critic()
    samples = [sample for sample in random_samples(GROUPS, per_group=4) if sample.trains]
    set_values(asked, samples, MicroBatches(ALONE, 40))
    for sample in samples:
        with torch.no_grad():
            hidden = asked.model.base_model(sample.tokens[None]).last_hidden_state[0]
            everywhere = hidden @ asked.model.score.weight[0]
        wanted = sample.loss_mask.nonzero().squeeze(1)
        expected = torch.cat([everywhere[wanted - 1], everywhere[-1:]])
        assert sample.values is not None
        torch.testing.assert_close(sample.values, expected, rtol=1e-5, atol=1e-6)


def test_a_critic_with_the_score_at_the_end_learns_the_value_there_too() -> None:
    """A token and the end: ½ (V − R)² of both, over three values including a truncated answer's."""
    at_end = Algorithm.model_validate(
        {"advantage": {"type": "gae", "score_at": "end"}, "critic": {}}
    )
    ended, cut = two_answers()
    ended.returns, cut.returns = tensor(1.0, 2.0), tensor(3.0)
    table = table_critic({"loss": {"type": "mse", "clip_range": None}})
    seen = accumulate_value_gradients(table, [ended, cut], at_end, MicroBatches(ALONE, 1000))
    assert isinstance(table.values, Table)
    values = table.values.said.detach()
    said = [values[ended.tokens[2]], values[ended.tokens[-1]], values[cut.tokens[2]]]
    wanted = sum(0.5 * (float(v) - r) ** 2 for v, r in zip(said, (1.0, 2.0, 3.0), strict=True)) / 3
    assert seen[0].item() == pytest.approx(wanted, rel=1e-6)
    assert seen[2].item() == 3


def two_answers() -> list[TrainingSample]:
    """Two answers with one token in the loss each. The critic's outputs were 0 and 1, in its
    units."""
    samples = [sample for sample in random_samples(2, per_group=2) if sample.trains]
    for sample, said, learned in zip(samples, (0.0, 1.0), (1.0, 3.0), strict=True):
        sample.loss_mask = torch.arange(len(sample.tokens)) == 3
        sample.sampler_logprobs = sample.sampler_logprobs[:1]
        sample.values = tensor(said, 7.0)
        sample.returns = tensor(learned)
    return samples


def test_explained_variance_is_of_the_values_before_they_are_trained() -> None:
    # In units of 2 around −1 its values were −1 and 1, for returns 1 and 3: it missed both by 2.
    asked = table_critic({"normalisation": {"type": "average"}}, Moments(1.0, -1.0, 5.0))
    assert asked.scale == Scale(-1.0, 2.0)
    metrics = learn_scale(asked, two_answers(), GAE, ALONE)
    assert metrics == {
        "critic/value_mean": pytest.approx(0.0),
        "critic/return_mean": pytest.approx(2.0),
        "critic/explained_variance": pytest.approx(1.0),
    }
    # And now its values are −1 (twice: 1 and −3 have mean −1 and mean square 5), 1 and 3.
    assert asked.moments == Moments(3.0, 3.0, 15.0)


def test_returns_that_are_all_equal_have_no_variance_to_explain() -> None:
    samples = two_answers()
    samples[0].returns = samples[1].returns
    metrics = learn_scale(table_critic({}), samples, GAE, ALONE)
    assert "critic/explained_variance" not in metrics


def test_all_ranks_learn_the_same_scale_though_one_has_nothing() -> None:
    def one(ranks: Ranks) -> tuple[dict[str, float], Moments]:
        asked = table_critic({"normalisation": {"type": "exponential", "beta": 0.5}})
        found = learn_scale(asked, two_answers() if ranks.first else [], GAE, ranks)
        return found, asked.moments

    first, second = on_ranks(2, one)
    assert first == second
    # Half each: mean 2, mean square (1 + 9)/2.
    assert first[1] == Moments(0.5, 1.0, 2.5)


def test_a_critic_learns_its_returns() -> None:
    algorithm = Algorithm.model_validate(
        {"advantage": {"type": "gae"}, "critic": {"loss": {"clip_range": None, "type": "mse"}}}
    )
    learner = critic({"loss": {"clip_range": None, "type": "mse"}})
    explained = []
    for _ in range(30):
        samples = batch(algorithm)
        set_values(
            learner, [sample for sample in samples if sample.trains], MicroBatches(ALONE, 1000)
        )
        found = train_critic(
            learner, [samples], algorithm, MicroBatches(ALONE, 1000), lambda _: 1.0
        )
        explained.append(found["critic/explained_variance"])
    assert explained[0] < 0.2
    assert explained[-1] > 0.8


def test_a_critic_takes_a_step_for_each_minibatch_of_each_epoch_at_the_runs_schedule() -> None:
    algorithm = GAE.model_copy(update={"minibatches": 2, "epochs_per_batch": 3})
    asked: list[int] = []

    def share(number: int) -> float:
        asked.append(number)
        return 0.5

    samples = batch(algorithm)
    parts = [[s for s in samples if s.task < 2], [s for s in samples if s.task >= 2]]
    found = train_critic(critic(lr=0.02), parts * 3, algorithm, MicroBatches(ALONE, 1000), share)
    assert asked == [0, 1, 2, 3, 4, 5]
    assert found["critic/lr"] == pytest.approx(0.01)


@pytest.mark.parametrize("critic_only", [True, False])
def test_in_its_warm_up_only_the_critic_learns_and_the_policy_is_measured(
    critic_only: bool,
) -> None:
    policy, valued = tiny_model(), critic()
    valued.config = valued.config.model_copy(update={"warmup_steps": int(critic_only)})
    before = [p.detach().clone() for p in policy.model.parameters()]
    said = [p.detach().clone() for p in valued.model.parameters()]
    algorithm = GAE.model_copy(update={"epochs_per_batch": 2})
    metrics = train_batch(
        state_of(policy, Optimizers(policy.model, AdamW(lr=1e-2)), critic=valued),
        [random_samples(groups=3, per_group=3)] * 2,
        Objective(algorithm, 0.8, 12),
        MicroBatches(ALONE, 60),
        lambda _: 1.0,
    )
    after = list(policy.model.parameters())
    assert all(map(torch.equal, before, after)) == critic_only
    # Leftover gradients would be in the first update.
    assert all(parameter.grad is None for parameter in after)
    assert not all(map(torch.equal, said, valued.model.parameters()))
    assert metrics["train/updates"] == (0 if critic_only else 2)
    assert metrics["mismatch/sampler_kl"] > 0
    assert metrics["critic/grad_norm"] > 0
