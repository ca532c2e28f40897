"""Nothing within a step reads a value from the device: on torch's device without data a read fails.
Measurements are read once, at the step's end."""

from typing import Any

import pytest
import torch
from transformers import AttentionInterface, PreTrainedModel

from learner.metrics.loss_metrics import Tally
from learner.model.moe.routing import Routed, Routing
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.model.passes.moe_balance import RouterTally
from learner.model.value_model import TokenValues, TrainedCritic, accumulate_value_gradients
from learner.objective.compose import Objective
from learner.objective.value_loss import Moments
from learner.optim.optimizers import Optimizers
from learner.step import accumulate_gradients
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.critic import Critic as CriticConfig
from services.contracts.config.optimizer import AdamW
from tests.unit.learner.experts import tiny_mixture
from tests.unit.learner.policies import random_samples, tiny_critic, tiny_model
from tests.unit.learner.unigrams import ALONE


def same_sizes(
    module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, **_: Any
) -> tuple[torch.Tensor, None]:
    """Stands in for attention, whose kernels need data: the query plus nothing."""
    return (q + 0 * (k.sum() + v.sum())).transpose(1, 2), None


def without_data(model: PreTrainedModel) -> PreTrainedModel:
    AttentionInterface.register("same_sizes", same_sizes)
    model.set_attn_implementation("same_sizes")
    return model.to("meta")


@pytest.mark.parametrize("kind", ["whole vocabulary", "top-k"])
def test_backward_passes_and_their_measures_wait_for_nothing(kind: str) -> None:
    model = without_data(tiny_model().model)
    samples = random_samples(groups=3, per_group=3)
    for sample in samples:
        sample.reference_logprobs = sample.sampler_logprobs - 0.1
        if kind == "top-k":
            among = torch.arange(3)
            sample.sampling_mask = (sample.tokens[sample.loss_mask][:, None] + among).int()
    goal = Objective(
        Algorithm.model_validate(
            {
                "kl": {"type": "k3", "beta": 0.1},
                "proximal": {"type": "loglinear"},
                "entropy_bonus": 0.01,
            }
        ),
        0.8,
        12,
    )
    tally = Tally(unchanged=True)

    accumulate_gradients(TokenLogprobs(model), samples, goal, MicroBatches(ALONE, 40), tally)

    assert all(p.grad is not None for n, p in model.named_parameters() if "embed" not in n)
    assert tally.sums.device.type == tally.maxima.device.type == "meta"
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        tally.metrics(ALONE)


def test_measures_of_routers_wait_for_nothing() -> None:
    routing = Routing(tiny_mixture())
    layers, experts = len(routing.layers), routing.experts
    taken = torch.zeros(layers, 5, routing.used, dtype=torch.int64, device="meta")
    logits = torch.zeros(layers, 5, experts, device="meta")
    tally = RouterTally(routing)

    routed = Routed(logits, taken, taken, torch.zeros(5, dtype=torch.bool, device="meta"))
    tally.add(routed, torch.zeros((), device="meta"))

    assert tally.sums.device.type == tally.taken.device.type == "meta"


def test_the_critics_backward_passes_wait_for_nothing() -> None:
    model = without_data(tiny_critic())
    critic = TrainedCritic(
        model, TokenValues(model), Optimizers(model, AdamW()), CriticConfig(), Moments()
    )
    samples = [sample for sample in random_samples(groups=3, per_group=3) if sample.trains]
    for sample in samples:
        k = len(sample.sampler_logprobs)
        sample.values, sample.returns = torch.zeros(k + 1), torch.linspace(0, 1, k)
    algorithm = Algorithm.model_validate({"advantage": {"type": "gae"}, "critic": {}})

    # The first value that is read is the sum of all passes.
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        accumulate_value_gradients(critic, samples, algorithm, MicroBatches(ALONE, 40))

    assert all(p.grad is not None for n, p in model.named_parameters() if "embed" not in n)
