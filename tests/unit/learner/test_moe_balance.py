"""The terms that keep experts in use: their values, their gradients, and their independence of the
cut of a batch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from learner.batch.samples import TrainingSample
from learner.batch.sft_rows import Example
from learner.distributed import Ranks
from learner.metrics.loss_metrics import Tally
from learner.model.moe.routing import Routed, Routing
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.model.passes.moe_balance import (
    RouterLoss,
    RouterTally,
    computed_counts,
    recorded_counts,
)
from learner.objective.compose import Objective
from learner.optim.optimizers import Optimizers
from learner.sft import backward
from learner.step import accumulate_gradients, train_batch
from learner.supervised_loss import LikelihoodLoss
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.optimizer import AdamW
from tests.unit.learner.experts import EXPERTS, LAYERS, USED, recorded, tiny_mixture
from tests.unit.learner.policies import random_samples, state_of
from tests.unit.learner.threads import assert_same_gradients, mean_gradients
from tests.unit.learner.unigrams import ALONE

GROUPS = 4
MODEL = tiny_mixture()
PLAIN = Objective(Algorithm(), temperature=0.8, max_tokens=12)


def one_token(routing: Routing, *, replayed: bool = False) -> Routed:
    """A token in two routers, which give the experts 1/2, 1/4, 1/8 and 1/8 with logits that are 2
    larger than these logarithms. Both send it to the first two experts, but would have chosen 0 and
    2."""
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64).log() + 2
    layers = len(routing.layers)
    routing.routed = Routed(
        logits.expand(layers, 1, EXPERTS).clone().requires_grad_(),
        torch.tensor([[[0, 1]]]).expand(layers, 1, USED),
        torch.tensor([[[0, 2]]]).expand(layers, 1, USED),
        torch.tensor([replayed]),
    )
    return routing.routed


def test_the_auxiliary_loss_is_even_shares_times_probabilities() -> None:
    routing = Routing(tiny_mixture(), aux_weight=0.1)
    routed = one_token(routing)
    # Two tokens through two routers: this one, and another one that took experts 1 and 3. f = ½ (1,
    # 2, 0, 1) and this token's half of P = ½ (½, ¼, ⅛, ⅛). E·Σ f·P = 4·½·½·(½ + 2·¼ + ⅛).
    terms = RouterLoss(routing, tokens=2, counts=torch.tensor([2.0, 4.0, 0.0, 2.0]))
    loss = terms.loss()
    assert loss.item() == pytest.approx(0.1 * 1.125)
    loss.backward()
    # 4 · f_e/n · p_j·(1[e = j] − p_e): p_j·(f_j − Σ f·p), with Σ f·p = 9/16 and n = 2·2.
    chances, shares = (0.5, 0.25, 0.125, 0.125), (0.5, 1, 0, 0.5)
    slopes = [p * (f - 9 / 16) for p, f in zip(chances, shares, strict=True)]
    assert routed.logits.grad is not None
    for layer in range(2):
        assert routed.logits.grad[layer, 0].tolist() == pytest.approx([0.1 * s for s in slopes])


def test_the_router_z_loss_is_the_square_of_what_softmax_divides_by() -> None:
    routing = Routing(tiny_mixture(), z_weight=0.1)
    routed = one_token(routing)
    # logsumexp is 2 for both routers. This token adds half, because there are two tokens.
    loss = RouterLoss(routing, tokens=2, counts=torch.zeros(EXPERTS)).loss()
    assert loss.item() == pytest.approx(0.1 * 4 / 2)
    loss.backward()
    # d/dx = 2·logsumexp·p / (routers · tokens).
    assert routed.logits.grad is not None
    expected = [0.1 * 2 * 2 * p / 4 for p in (0.5, 0.25, 0.125, 0.125)]
    assert routed.logits.grad[0, 0].tolist() == pytest.approx(expected)


def test_router_metrics_ignore_the_weights_and_the_router_loss_uses_them() -> None:
    routing = Routing(tiny_mixture())
    tally = RouterTally(routing)
    tally.add(one_token(routing), torch.tensor(0.25))
    tally.add(one_token(routing, replayed=True), torch.tensor(0.5))
    assert tally.metrics(ALONE) == {
        # f = (1, 1, 0, 0): 4·(½ + ¼).
        "router/aux_loss": pytest.approx(3),
        "router/z_loss": pytest.approx(4),
        "router/loss": pytest.approx(0.75),
        # Two experts take everything. An even share would be 2/4 each.
        "router/load_max": pytest.approx(2),
        "router/idle": pytest.approx(0.5),
        "router/replayed": pytest.approx(0.5),
        # 0 and 1 were taken where the router chose 0 and 2.
        "router/agreement": pytest.approx(0.5),
    }
    assert RouterTally(routing).metrics(ALONE) == {}


def batch(replayed: bool) -> list[TrainingSample]:
    samples = random_samples(GROUPS, per_group=3)
    return [recorded(s, i) if replayed else s for i, s in enumerate(samples)]


def gradients(
    shares: Sequence[Sequence[TrainingSample]],
    budget: int = 10_000,
    aux: float = 0.5,
    z: float = 0.05,
    tallies: list[Tally] | None = None,
) -> dict[str, torch.Tensor]:
    """The gradients that DDP computes from the ranks, each rank training one of `shares`."""

    def one(ranks: Ranks) -> dict[str, torch.Tensor]:
        # Ranks are threads here, which share one random generator.
        model = tiny_mixture()
        model.load_state_dict(MODEL.state_dict())
        routing = Routing(model, aux, z)
        tally = Tally(routing)
        policy = TokenLogprobs(model, routing=routing)
        accumulate_gradients(
            policy, list(shares[ranks.rank]), PLAIN, MicroBatches(ranks, budget), tally
        )
        if tallies is not None:
            tallies.append(tally)
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    return mean_gradients(len(shares), one)


def padded(sample: TrainingSample, extra: int) -> TrainingSample:
    """The sample with `extra` tokens after it that are not in the loss."""
    experts = sample.experts
    if experts is not None:
        experts = torch.cat([experts, torch.zeros(extra, LAYERS, USED, dtype=torch.int16)])
    return replace(
        sample,
        tokens=torch.cat([sample.tokens, torch.full((extra,), 5)]),
        loss_mask=torch.cat([sample.loss_mask, torch.zeros(extra, dtype=torch.bool)]),
        experts=experts,
    )


@pytest.mark.parametrize("replayed", [False, True], ids=["own", "replayed"])
@settings(max_examples=8, deadline=None)
@given(
    dealt=st.lists(st.integers(0, 2), min_size=3 * GROUPS, max_size=3 * GROUPS),
    budget=st.integers(20, 120),
    extra=st.integers(0, 3),
    order=st.randoms(use_true_random=False),
)
def test_ranks_cuts_order_and_padding_do_not_change_the_gradient(
    replayed: bool, dealt: list[int], budget: int, extra: int, order: Any
) -> None:
    whole = gradients([batch(replayed)])
    samples = [padded(sample, extra) for sample in batch(replayed)]
    order.shuffle(samples)
    # Samples of one group may be on any ranks. A rank without samples takes part in all sums.
    shares: list[list[TrainingSample]] = [[] for _ in range(max(dealt) + 1)]
    for rank, sample in zip(dealt, samples, strict=True):
        shares[rank].append(sample)
    assert_same_gradients(whole, gradients(shares, budget))


def supervised(shares: Sequence[Sequence[TrainingSample]], budget: int) -> dict[str, torch.Tensor]:
    """The same as `gradients`, for supervised examples."""

    def one(ranks: Ranks) -> dict[str, torch.Tensor]:
        model = tiny_mixture()
        model.load_state_dict(MODEL.state_dict())
        policy = TokenLogprobs(model, routing=Routing(model, 0.5, 0.05))
        examples = [Example(s.tokens, s.loss_mask) for s in shares[ranks.rank]]
        backward(policy, LikelihoodLoss(examples, 1, ranks), MicroBatches(ranks, budget))
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    return mean_gradients(len(shares), one)


def test_supervised_training_balances_routers_whatever_the_cut() -> None:
    samples = [sample for sample in batch(replayed=False) if sample.trains]
    whole = supervised([samples], 10_000)
    assert_same_gradients(whole, supervised([samples[:3], samples[3:], []], 30))
    # Both terms, plus −log π.
    model = tiny_mixture()
    plain = TokenLogprobs(model)
    examples = [Example(s.tokens, s.loss_mask) for s in samples]
    backward(plain, LikelihoodLoss(examples, 1, ALONE), MicroBatches(ALONE, 10_000))
    expected, _ = expected_terms(samples, 0.5, 0.05)
    added = dict(expected.named_parameters())
    largest = max(float(grad.abs().max()) for grad in whole.values())
    for name, parameter in model.named_parameters():
        both = parameter.grad + (0 if added[name].grad is None else added[name].grad)
        torch.testing.assert_close(whole[name], both, rtol=0, atol=1e-6 * largest)


def expected_terms(samples: list[TrainingSample], aux: float, z: float) -> tuple[Any, torch.Tensor]:
    """A model with the gradient of both terms, with transformers' own router logits, sample by
    sample, and its function for the auxiliary loss."""
    model = tiny_mixture()
    model.config.output_router_logits = True
    said: list[tuple[torch.Tensor, ...]] = []
    for sample in samples:
        # Every token whose successor is in the loss.
        places = sample.loss_mask.nonzero().squeeze(1) - 1
        logits = model(sample.tokens[None], use_cache=False).router_logits
        said.append(tuple(layer[places] for layer in logits))
    layers = tuple(torch.cat(each) for each in zip(*said, strict=True))
    by_transformers = load_balancing_loss_func(layers, EXPERTS, USED)
    every = torch.cat(layers)
    taken = nn_one_hot(every.topk(USED).indices)
    balance = EXPERTS * (taken.mean(0) * every.softmax(-1).mean(0)).sum()
    torch.testing.assert_close(balance.float(), by_transformers, rtol=1e-5, atol=0)
    (aux * balance + z * every.logsumexp(-1).square().mean()).backward()
    return model, balance.detach()


def nn_one_hot(experts: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.one_hot(experts, EXPERTS).sum(-2).double()


def test_both_router_terms_have_the_gradients_of_their_formulas() -> None:
    samples = batch(replayed=False)
    seen: list[Tally] = []
    without = gradients([samples], aux=0.0, z=0.0)
    both = gradients([samples], budget=40, tallies=seen)
    trained = [sample for sample in samples if sample.trains]
    model, value = expected_terms(trained, 0.5, 0.05)
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert any("mlp.gate" in name for name in expected)
    largest = max(float(grad.abs().max()) for grad in expected.values())
    for name, grad in expected.items():
        added = both[name] - without[name]
        torch.testing.assert_close(added, grad, rtol=0, atol=2e-6 * max(largest, 1.0))
    found = seen[0].metrics(ALONE)
    assert found["router/aux_loss"] == pytest.approx(float(value), rel=1e-6)
    # For any cut, it is both terms with their weights.
    weighted = 0.5 * found["router/aux_loss"] + 0.05 * found["router/z_loss"]
    assert found["router/loss"] == pytest.approx(weighted, rel=1e-6)


def test_the_total_loss_of_a_step_is_the_mean_over_minibatches_with_the_terms() -> None:
    first, second = batch(replayed=False)[:4], batch(replayed=False)[4:]
    wanted = []
    for part in (first, second):
        seen: list[Tally] = []
        gradients([part], tallies=seen)
        wanted.append(seen[0].metrics(ALONE)["router/loss"])
    model = tiny_mixture()
    model.load_state_dict(MODEL.state_dict())
    policy = TokenLogprobs(model, routing=Routing(model, aux_weight=0.5, z_weight=0.05))
    goal = replace(PLAIN, algorithm=Algorithm(minibatches=2))
    # Updates too small to change what the second minibatch computes.
    state = state_of(policy, Optimizers(model, AdamW(lr=1e-30)))
    found = train_batch(state, [first, second], goal, MicroBatches(ALONE, 1000), lambda _: 1.0)
    assert found["router/loss"] == pytest.approx(sum(wanted) / 2, rel=1e-5)
    assert found["train/total_loss"] == found["train/loss"] + found["router/loss"]


def test_the_terms_are_no_part_of_the_loss_that_is_logged() -> None:
    losses = []
    for weight in (0.0, 10.0):
        seen: list[Tally] = []
        gradients([batch(replayed=False)], aux=weight, z=weight, tallies=seen)
        losses.append(seen[0].metrics(ALONE)["train/loss"])
    assert losses[0] == losses[1]


def test_recorded_experts_are_counted_without_a_pass_of_the_model() -> None:
    passes = {}
    for replayed in (False, True):
        model = tiny_mixture()
        calls: list[Any] = []
        model.base_model.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        policy = TokenLogprobs(model, routing=Routing(model, aux_weight=0.1))
        accumulate_gradients(policy, batch(replayed), PLAIN, MicroBatches(ALONE, 10_000))
        passes[replayed] = len(calls)
    assert passes == {False: 2, True: 1}
    # And to the same numbers.
    samples = [sample for sample in batch(replayed=True) if sample.trains]
    routing = policy.routing
    assert routing is not None
    found = recorded_counts(samples, routing)
    assert found is not None
    rows = list(MicroBatches(ALONE, 50).forward(policy, samples))
    assert found.tolist() == computed_counts(policy, routing, rows).tolist()


@pytest.mark.parametrize("replayed", [False, True], ids=["own", "replayed"])
def test_a_masked_answer_has_no_part_in_the_router_terms(replayed: bool) -> None:
    samples = batch(replayed)
    before = gradients([samples])
    masked = [sample for sample in samples if not sample.trains]
    for sample in masked:
        sample.tokens = sample.tokens.flip(0)
        if sample.experts is not None:
            sample.experts = sample.experts.flip(0)
    after = gradients([samples])
    without = gradients([[sample for sample in samples if sample.trains]])
    assert masked
    for name in before:
        assert torch.equal(before[name], after[name])
        assert torch.equal(before[name], without[name])
