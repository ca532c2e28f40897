"""The gradient of sessions with branches is the weighted sum of the gradients of their turns alone.
With a transformer, in float64."""

from random import Random
from typing import Any

import pytest
import torch

from learner.batch.samples import TrainingSample, group_samples, token_staleness
from learner.batch.staleness import Ancestry
from learner.model.passes import families
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.objective.compose import Objective
from learner.step import accumulate_gradients
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.groups.trajectory import TrajectoryGroup
from services.contracts.sessions import Turn, tokens_of
from tests.unit.learner.policies import tiny_model
from tests.unit.learner.test_shared_prompts import exact
from tests.unit.learner.unigrams import ALONE
from tests.unit.rollout.session_graphs import group_of, path, random_session

LONGEST = 12
MODEL = exact(tiny_model().model)
REWARDS = [0.0, 1.0, 0.5]


def objective(aggregation: str) -> Objective:
    algorithm = {
        "advantage": {"type": "group_mean"},
        "aggregation": {"type": aggregation},
        "loss": {"type": "ppo"},
        "entropy_bonus": 0.01,
    }
    return Objective(Algorithm.model_validate(algorithm), temperature=0.8, max_tokens=LONGEST)


def gradient(goal: Objective, samples: list[TrainingSample], budget: int = 10_000) -> torch.Tensor:
    MODEL.zero_grad()
    accumulate_gradients(TokenLogprobs(MODEL), samples, goal, MicroBatches(ALONE, budget))
    return torch.cat([p.grad.flatten() for p in MODEL.parameters() if p.grad is not None])


def samples_of(goal: Objective, group: TrajectoryGroup) -> list[TrainingSample]:
    return group_samples(
        group, goal.algorithm, LONGEST, token_staleness(group, Ancestry((("a", 0),)), 3)
    )


def alone(turns: list[Turn], number: int, advantage: float) -> TrainingSample:
    """One turn after everything that the policy had seen: only its tokens are in the loss."""
    tokens, sampled = tokens_of(path(turns, number)), turns[number].sampled
    mask = torch.arange(len(tokens)) >= len(tokens) - len(sampled)
    logprobs = torch.tensor([-0.1 * token for token in sampled.tolist()], dtype=torch.float32)
    return TrainingSample(
        tokens=torch.tensor(tokens),
        loss_mask=mask,
        sampler_logprobs=logprobs,
        staleness=torch.zeros(len(sampled), dtype=torch.int64),
        advantage=advantage,
        task=0,
        number=0,
        group_lengths=(len(sampled),),
    )


def token_weights(aggregation: str, lengths: list[int]) -> list[float]:
    """The weight of each token of each session, by hand."""
    trained = [length for length in lengths if length]
    match aggregation:
        case "sequence_mean":
            return [1 / (max(length, 1) * len(trained)) for length in lengths]
        case "constant":
            return [1 / (len(trained) * LONGEST)] * len(lengths)
        case _:  # one prompt
            return [1 / sum(lengths)] * len(lengths)


@pytest.mark.parametrize("shared", [True, False], ids=["prefixes once", "prefixes again"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "prompt_mean", "constant"])
def test_a_graph_has_the_gradient_of_its_turns_trained_apart(
    monkeypatch: pytest.MonkeyPatch, aggregation: str, shared: bool
) -> None:
    monkeypatch.setattr(families, "CPU_LEAST", 1 if shared else 10**9)
    monkeypatch.setattr(families, "CPU_MERGE", 0)
    goal = objective(aggregation)
    branched = 0
    for seed in range(3):
        chance = Random(seed)
        sessions = [random_session(chance) for _ in REWARDS]
        group = group_of(sessions, [*REWARDS])
        samples = samples_of(goal, group)
        branched += len(samples) - len(sessions)
        own = [[n for n, one in enumerate(turns) if not one.side] for turns in sessions]
        lengths = [
            sum(len(turns[n].sampled) for n in of) for turns, of in zip(sessions, own, strict=True)
        ]
        weights = token_weights(aggregation, lengths)
        expected: Any = 0.0
        for i, (turns, weight) in enumerate(zip(sessions, weights, strict=True)):
            for number in own[i]:
                one = alone(turns, number, REWARDS[i] - sum(REWARDS) / len(REWARDS))
                share = weight * len(one.sampler_logprobs)
                expected = expected + share * gradient(objective("token_mean"), [one])
        for budget in (10_000, 40):
            found = gradient(goal, samples, budget)
            assert float((found - expected).norm() / expected.norm()) < 1e-12
    assert branched > 3
