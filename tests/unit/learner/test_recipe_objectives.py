"""Each recipe's objective, composed by the learner, equals its formula written out here; so do the
targets of its critic, if it has one.

Two groups of 10 and 3 answers. One answer was truncated, one has a missing reward, and every second
token is a tool's. Everything in float64, loss and gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import pytest
import torch

from learner.batch.samples import TrainingSample
from learner.model.passes.microbatches import MicroBatches
from learner.model.value_model import accumulate_value_gradients, learn_scale
from learner.objective.compose import Objective
from recipes import find_recipe, list_recipes, merged
from services.contracts.config import RLConfig, parse_config
from services.contracts.groups.trajectory import TrajectoryGroup
from tests.unit.learner.policies import trajectory_group
from tests.unit.learner.tables import Table, table_critic
from tests.unit.learner.unigrams import ALONE, VOCABULARY, Unigrams, prepared, trained

REWARDS: list[list[float | None]] = [
    [1.0, 0.0, 0.0, 1.5, -0.5, 0.0, 1.0, 0.0, 0.25, 1.0],
    [0.0, None, 2.0],
]
ENDS = [["stop"] * 4 + ["length"] + ["stop"] * 5, ["stop"] * 3]
MAX_TOKENS = 12


@dataclass
class Answer:
    """One trained answer, as the formulas need it. Log-probabilities [k] in float64."""

    p: torch.Tensor
    """log π, with gradient."""
    mu: torch.Tensor
    prox: torch.Tensor
    ref: torch.Tensor
    score: float
    """Its reward."""
    others: list[float]
    """Rewards of the other answers of its group."""
    length: int
    """All its tokens, in the loss or not."""
    group: int
    number: int
    values: torch.Tensor
    """[k + 1] values of the critic before the update."""
    tokens: list[int]
    """Prompt and answer."""
    places: list[int]
    """Indices of the tokens in the loss."""

    @property
    def all(self) -> list[float]:
        """Rewards of its group."""
        return [self.score, *self.others]


def zscore(answer: Answer) -> float:
    return (answer.score - fmean(answer.all)) / (stdev(answer.all) + 1e-6)


def ppo(ratio: torch.Tensor, a: float, low: float, high: float) -> torch.Tensor:
    return -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)


def tokens(answers: list[Answer]) -> int:
    return sum(len(answer.p) for answer in answers)


def grpo(answers: list[Answer]) -> torch.Tensor:
    parts = [ppo((x.p - x.mu).exp(), zscore(x), 0.2, 0.28).sum() for x in answers]
    return torch.stack(parts).sum() / tokens(answers)


def dr_grpo(answers: list[Answer]) -> torch.Tensor:
    parts = [ppo((x.p - x.mu).exp(), x.score - fmean(x.all), 0.2, 0.2).sum() for x in answers]
    return torch.stack(parts).sum() / (len(answers) * MAX_TOKENS)


def dapo(answers: list[Answer]) -> torch.Tensor:
    def penalised(x: Answer) -> float:
        # Answers of a group have 2, 3, … tokens; the buffer of 512 begins at 12 − 512 = −500.
        every = {o.number: o for o in answers if o.group == x.group}
        # A reward of 0 is −1, and of 1 is 1.
        scores = [2 * o.score - 1 - (o.length + 500) / 512 for o in every.values()]
        own = 2 * x.score - 1 - (x.length + 500) / 512
        return (own - fmean(scores)) / (stdev(scores) + 1e-6)

    parts = [
        ((x.prox - x.mu).exp().clamp(max=2) * ppo((x.p - x.prox).exp(), penalised(x), 0.2, 0.28))
        for x in answers
    ]
    return torch.cat(parts).sum() / tokens(answers)


def gspo(answers: list[Answer]) -> torch.Tensor:
    # The sequence form: one ratio and one loss per answer.
    parts = [ppo((x.p - x.prox).mean().exp(), zscore(x), 3e-4, 4e-4) for x in answers]
    return torch.stack(parts).mean()


def cispo(answers: list[Answer]) -> torch.Tensor:
    parts = [-(x.p - x.mu).detach().exp().clamp(0, 5) * zscore(x) * x.p for x in answers]
    return torch.cat(parts).sum() / tokens(answers)


def rloo(answers: list[Answer]) -> torch.Tensor:
    parts = [
        -(x.p - x.mu).detach().exp().clamp(max=2) * (x.score - fmean(x.others)) * x.p
        for x in answers
    ]
    return torch.cat(parts).sum() / (len(answers) * MAX_TOKENS)


def reinforce_pp(answers: list[Answer]) -> torch.Tensor:
    # G_t = r − β Σ from t on of (log π_prox − log π_ref), then whitened over all tokens.
    returns = [
        [x.score - 0.01 * float((x.prox - x.ref)[t:].sum()) for t in range(len(x.p))]
        for x in answers
    ]
    every = [g for one in returns for g in one]
    mean, scale = fmean(every), stdev(every) + 1e-6
    parts = [
        ppo((x.p[t] - x.prox[t]).exp(), (g - mean) / scale, 0.2, 0.2)
        for x, one in zip(answers, returns, strict=True)
        for t, g in enumerate(one)
    ]
    return torch.stack(parts).sum() / len(every)


def icepop(answers: list[Answer]) -> torch.Tensor:
    parts = []
    for x in answers:
        w = (x.prox - x.mu).exp()
        w = torch.where((w < 0.5) | (w > 5), torch.zeros_like(w), w)
        parts.append(w * ppo((x.p - x.prox).exp(), zscore(x), 0.2, 0.2))
    return torch.cat(parts).sum() / tokens(answers)


def nanochat_grpo(answers: list[Answer]) -> torch.Tensor:
    # Chunks: answers 0 to 7 and 8 to 9 of group 0, and group 1.
    means = []
    for group, first in ((0, 0), (0, 8), (1, 0)):
        chunk = [x for x in answers if x.group == group and 0 <= x.number - first < 8]
        parts = [-(x.score - fmean(x.all)) * x.p for x in chunk]
        means.append(torch.cat(parts).mean())
    return torch.stack(means).mean()


def discounted(
    x: Answer, score: float, beta: float, decay: float, after: float = 0.0
) -> torch.Tensor:
    """A_t = Σ_l decay^(l−t) δ_l, where each token earns −β·k1, and the last one the score; `after`
    is the value after the last."""
    rewards = -beta * (x.prox - x.ref)
    rewards[-1] += score
    value = x.values[:-1]
    delta = rewards + torch.cat([value[1:], torch.tensor([after], dtype=torch.float64)]) - value
    k = len(delta)
    parts = [sum(decay ** (j - t) * float(delta[j]) for j in range(t, k)) for t in range(k)]
    return torch.tensor(parts, dtype=torch.float64)


# No answer has the 19 tokens that torchtune wants: every score is −3. The score comes after the
# last token, as a step without a token; a truncated answer gets no score there.
def torchtune_advantages(x: Answer) -> torch.Tensor:
    if ENDS[x.group][x.number] == "length":
        return discounted(x, -3.0, 0.01, 0.95)
    nothing = torch.zeros(1, dtype=torch.float64)
    one_more = replace(
        x,
        prox=torch.cat([x.prox, nothing]),
        ref=torch.cat([x.ref, nothing]),
        values=torch.cat([x.values, nothing]),
    )
    return discounted(one_more, -3.0, 0.01, 0.95)


# A reward of 0 is a score of −1, and of 1 of 1. The value after a truncated answer is that at its
# last token.
def areal_advantages(x: Answer) -> torch.Tensor:
    """With the KL against π_prox, which is μ in the synchronous recipe."""
    truncated = ENDS[x.group][x.number] == "length"
    return discounted(x, 2 * x.score - 1, 0.1, 1.0, float(x.values[-1]) if truncated else 0.0)


def over_tokens(answers: list[Answer], of: Callable[[Answer], torch.Tensor]) -> torch.Tensor:
    return torch.cat([of(x) for x in answers])


def torchtune_ppo(answers: list[Answer]) -> torch.Tensor:
    a = over_tokens(answers, lambda x: torchtune_advantages(x)[: len(x.p)])
    white = (a - a.mean()) / (a.std() + 1e-6) + a.mean()
    rho = over_tokens(answers, lambda x: (x.p - x.prox).exp())
    return -torch.minimum(rho * white, rho.clamp(0.8, 1.2) * white).mean()


def areal_ppo_code(answers: list[Answer]) -> torch.Tensor:
    a = over_tokens(answers, areal_advantages)
    white = (a - a.mean()) / (a.std() + 1e-6)
    rho = over_tokens(answers, lambda x: (x.p - x.mu).exp())
    return -torch.minimum(rho * white, rho.clamp(0.8, 1.2) * white).mean()


def areal_ppo_code_async(answers: list[Answer]) -> torch.Tensor:
    a = over_tokens(answers, areal_advantages)
    white = (a - a.mean()) / (a.std() + 1e-6)
    rho = over_tokens(answers, lambda x: (x.p - x.prox).exp())
    w = over_tokens(answers, lambda x: (x.prox - x.mu).exp())
    kept = torch.where(w > 5, torch.zeros_like(w), w)
    return -(kept * torch.minimum(rho * white, rho.clamp(0.8, 1.2) * white)).mean()


def minimind_ppo(answers: list[Answer]) -> torch.Tensor:
    # The sequence form: one ratio, one advantage and one loss per answer.
    parts = [
        ppo((x.p - x.prox).sum().exp(), x.score - float(x.values[-1]), 0.1, 0.1)
        + 0.02 * ((x.p - x.ref) ** 2 / 2).sum()
        for x in answers
    ]
    return torch.stack(parts).mean()


def torchtune_critic(answers: list[Answer], table: torch.Tensor) -> torch.Tensor:
    # It is asked before each token in the loss, and after the last token of an ended answer.
    asked = [
        table[token]
        for x in answers
        for token in (
            *(x.tokens[place - 1] for place in x.places),
            *(x.tokens[-1:] if ENDS[x.group][x.number] == "stop" else ()),
        )
    ]
    said = torch.stack(asked)
    before = over_tokens(answers, lambda x: x.values[: len(torchtune_advantages(x))])
    target = over_tokens(answers, torchtune_advantages) + before
    near = torch.maximum(torch.minimum(said, before + 0.2), before - 0.2)
    return 0.1 * 0.5 * torch.maximum((said - target) ** 2, (near - target) ** 2).mean()


def areal_critic(answers: list[Answer], table: torch.Tensor) -> torch.Tensor:
    said = torch.stack([table[x.tokens[place - 1]] for x in answers for place in x.places])
    before = over_tokens(answers, lambda x: x.values[:-1])
    returns = over_tokens(answers, areal_advantages) + before
    # After its first batch the moving mean and deviation are the batch's own.
    target = ((returns - returns.mean()) / returns.std(correction=0)).clamp(-5, 5)
    near = torch.maximum(torch.minimum(said, before + 0.2), before - 0.2)
    return 0.5 * torch.maximum((said - target) ** 2, (near - target) ** 2).mean()


def minimind_critic(answers: list[Answer], table: torch.Tensor) -> torch.Tensor:
    # It is asked once, at the end; vf_coef 0.5 of the mean squared error.
    return 0.5 * torch.stack([(table[x.tokens[-1]] - x.score) ** 2 for x in answers]).mean()


CRITICS: dict[str, Callable[[list[Answer], torch.Tensor], torch.Tensor]] = {
    "torchtune_ppo": torchtune_critic,
    "areal_ppo_code": areal_critic,
    "areal_ppo_code_async": areal_critic,
    "minimind_ppo": minimind_critic,
}


def live(answers: list[Answer]) -> torch.Tensor:
    # Against a running mean of 0.
    parts = [
        ((x.prox - x.mu).exp().clamp(max=2) * ppo((x.p - x.prox).exp(), x.score, 0.2, 0.2)).sum()
        for x in answers
    ]
    return torch.stack(parts).sum() / tokens(answers)


def demo_agent_spo(answers: list[Answer]) -> torch.Tensor:
    # Against a running mean of 0.
    parts = [ppo((x.p - x.mu).exp(), x.score, 0.2, 0.2).sum() for x in answers]
    return torch.stack(parts).sum() / tokens(answers)


FORMULAS: dict[str, Callable[[list[Answer]], torch.Tensor]] = {
    "grpo": grpo,
    "live": live,
    "demo_agent_spo": demo_agent_spo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "icepop": icepop,
    "nanochat_grpo": nanochat_grpo,
    "torchtune_ppo": torchtune_ppo,
    "areal_ppo_code": areal_ppo_code,
    "areal_ppo_code_async": areal_ppo_code_async,
    "minimind_ppo": minimind_ppo,
}


def groups() -> list[TrajectoryGroup]:
    made = []
    for task, (rewards, ends) in enumerate(zip(REWARDS, ENDS, strict=True)):
        group = trajectory_group(rewards, task=task, finish_reasons=ends)
        # Tokens of different answers differ, so that their gradients do.
        group.tokens = (group.tokens * 7 + 3) % VOCABULARY
        made.append(group)
    return made


def test_every_recipe_of_reinforcement_learning_has_its_formula_here() -> None:
    names = {r.name for r in list_recipes() if r.config.get("type", "rl") == "rl"}
    # Recipes of the demo and of the quick start are grpo with other sizes. test_distillation has
    # the recipe without rewards.
    same = {"demo_grpo", "smollm2_gsm8k"}
    assert names - same - {"distillation"} == set(FORMULAS)


def recipe(name: str) -> Objective:
    data = {} if name == "live" else {"dataset": "d"}
    given = {"model": {"path": "org/model"}, "data": data, "evaluation": None}
    config = parse_config(merged(find_recipe(name).config, given))
    assert isinstance(config, RLConfig)
    return Objective(config.algorithm, config.sampling.temperature, MAX_TOKENS)


def answers_of(samples: list[TrainingSample], policy: Unigrams, temperature: float) -> list[Answer]:
    """The answers that have a reward, under `policy`."""
    answers = []
    for sample in samples:
        rewards = REWARDS[sample.task]
        score = rewards[sample.number]
        if score is None:
            continue
        p = (policy.logits / temperature).log_softmax(0)[sample.tokens[sample.loss_mask]]
        mu = sample.sampler_logprobs.double()
        unused = torch.full_like(mu, torch.nan)
        answers.append(
            Answer(
                p=p,
                mu=mu,
                prox=mu if sample.proximal_logprobs is None else sample.proximal_logprobs,
                ref=unused if sample.reference_logprobs is None else sample.reference_logprobs,
                score=score,
                others=[r for i, r in enumerate(rewards) if i != sample.number and r is not None],
                length=sample.number + 2,
                group=sample.task,
                number=sample.number,
                values=unused if sample.values is None else sample.values,
                tokens=sample.tokens.tolist(),
                places=sample.loss_mask.nonzero().squeeze(1).tolist(),
            )
        )
    return answers


@pytest.mark.parametrize("name", FORMULAS)
def test_the_composed_objective_is_the_formula(name: str) -> None:
    objective = recipe(name)
    samples = prepared(groups(), objective, objective.temperature)
    policy = Unigrams()
    expected = FORMULAS[name](answers_of(samples, policy, objective.temperature))
    expected.backward()
    assert policy.logits.grad is not None

    loss, gradient = trained(samples, objective)

    assert loss == pytest.approx(expected.item(), rel=1e-10)
    torch.testing.assert_close(gradient, policy.logits.grad, rtol=1e-9, atol=1e-12)


def test_every_recipe_with_a_critic_has_its_formula_here() -> None:
    assert {name for name in FORMULAS if recipe(name).algorithm.critic} == set(CRITICS)


@pytest.mark.parametrize("name", CRITICS)
def test_what_the_critic_learns_is_the_formula(name: str) -> None:
    objective = recipe(name)
    algorithm = objective.algorithm
    assert algorithm.critic is not None
    samples = prepared(groups(), objective, objective.temperature)
    answers = answers_of(samples, Unigrams(), objective.temperature)
    table = Table().said
    expected = CRITICS[name](answers, table)
    (slope,) = torch.autograd.grad(expected, table)
    critic = table_critic(algorithm.critic)

    learn_scale(critic, [sample for sample in samples if sample.trains], algorithm, ALONE)
    loss, _, _ = accumulate_value_gradients(
        critic, samples, algorithm, MicroBatches(ALONE, 30)
    ).tolist()

    assert loss == pytest.approx(expected.item(), rel=1e-10)
    assert isinstance(critic.values, Table)
    assert critic.values.said.grad is not None
    torch.testing.assert_close(critic.values.said.grad, slope, rtol=1e-9, atol=1e-12)
