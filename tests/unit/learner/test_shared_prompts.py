"""Samples that share prompts, and turns of conversations, train exactly as if they did not
share."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

from learner.batch.samples import TrainingSample
from learner.batch.sft_rows import Example
from learner.model.attention.packed import use_packed_attention
from learner.model.moe.routing import Routing
from learner.model.passes import families
from learner.model.passes.families import sharing_of
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.model.reference_policies import Copies, PolicyCopy
from learner.model.value_model import TokenValues, TrainedCritic
from learner.objective.compose import Objective
from learner.objective.value_loss import Moments
from learner.optim.optimizers import Optimizers
from learner.sft import backward
from learner.step import train_batch
from learner.supervised_loss import LikelihoodLoss
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.critic import Critic as CriticConfig
from services.contracts.config.optimizer import AdamW
from tests.unit.learner.experts import recorded, tiny_mixture
from tests.unit.learner.policies import random_samples, state_of, tiny_critic, tiny_model
from tests.unit.learner.test_invariance import OBJECTIVES
from tests.unit.learner.unigrams import ALONE

SHAPE: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "pad_token_id": 0,
}
GQA = {**SHAPE, "num_key_value_heads": 2, "head_dim": 8}
WINDOWED = Qwen3Config(**GQA, use_sliding_window=True, sliding_window=5, max_window_layers=1)


class ExactNorm(nn.Module):
    """A norm that does not round to float32 in between, as transformers' norms do."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight: nn.Parameter = norm.weight
        self.epsilon: float = norm.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.square().mean(-1, keepdim=True).add(self.epsilon).rsqrt()
        scaled: torch.Tensor = self.weight * x * scale
        return scaled


def exact(model: PreTrainedModel) -> PreTrainedModel:
    """Convert the whole model to float64."""
    model = model.double()
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, ExactNorm(module))
    return model


def conversations(groups: int = 4, per_group: int = 4) -> list[TrainingSample]:
    """Samples of groups with one prompt each. The second of each group continues from the middle of
    the first's answer, and the third equals the first."""
    samples = random_samples(groups, per_group)
    generator = torch.Generator().manual_seed(7)
    found: list[TrainingSample] = []
    for number, sample in enumerate(samples):
        if number % per_group == 0:
            prompt = torch.randint(4, 20, (9,), generator=generator)
        start = int((~sample.loss_mask).sum()) if sample.trains else 2
        tokens = torch.cat([prompt, sample.tokens[start:]])
        mask = torch.cat([torch.zeros(9, dtype=torch.bool), sample.loss_mask[start:]])
        found.append(replace(sample, tokens=tokens, loss_mask=mask))
        place = number % per_group
        if place == 1:
            first = found[-2]
            found[-1].tokens[9 : 9 + 2] = first.tokens[9 : 9 + 2][: len(tokens) - 9]
        if place == 2:
            found[-1] = replace(found[-3], number=2, advantage=sample.advantage)
    return found


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Switches sharing on for every possible prefix, or off."""

    def switch(on: bool) -> None:
        monkeypatch.setattr(families, "CPU_LEAST", 1 if on else 10**9)
        monkeypatch.setattr(families, "CPU_MERGE", 0)

    return switch


def gradients(model: nn.Module) -> torch.Tensor:
    found = [p.grad.double().flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(found)


def apart(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found.double() - right.double()).norm() / right.double().norm())


@pytest.mark.parametrize(
    ("kind", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=["float64", "float32"]
)
@pytest.mark.parametrize(
    "config",
    [LlamaConfig(**SHAPE), Qwen3Config(**GQA), WINDOWED],
    ids=["llama", "grouped_queries", "sliding_window"],
)
def test_gradients_of_shared_rows_are_those_of_separate_sequences(
    sharing: Callable[[bool], None], config: PreTrainedConfig, kind: torch.dtype, limit: float
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    use_packed_attention(model)
    model = exact(model).to(kind)
    policy = TokenLogprobs(model)
    samples = [sample for sample in conversations() if sample.trains]
    found = []
    for on in (True, False):
        sharing(on)
        model.zero_grad()
        values: dict[int, torch.Tensor] = {}
        for indices, row in MicroBatches(ALONE, 70).backward(policy, samples):
            assert (len(row.tokens) < row.sequence_tokens) == on
            logprobs, entropy = policy(row, 0.8)
            (logprobs.square().sum() + entropy.sum()).backward()
            sizes = [len(samples[i].sampler_logprobs) for i in indices]
            values |= dict(zip(indices, logprobs.detach().split(sizes), strict=True))
        found.append((torch.cat([values[i] for i in range(len(samples))]), gradients(model)))
    (logprobs, grads), (right, right_grads) = found
    assert apart(logprobs, right) < limit
    assert apart(grads, right_grads) < limit


GOALS = {
    "critic, reference, what top-k kept": OBJECTIVES["a critic, whitening, KL in the reward"],
    "recomputed, over prompts, lagged": {
        "loss": {"type": "ppo", "dual_clip": 3.0},
        "aggregation": {"type": "prompt_mean"},
        "proximal": {"type": "recompute"},
        "kl": {"type": "k3+", "beta": 0.1},
        "entropy_bonus": 0.01,
    },
}


def once(name: str, experts: bool) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """The metrics of a step, and the weights after it."""
    goal = Objective(Algorithm.model_validate(GOALS[name]), temperature=0.8, max_tokens=12)
    model = tiny_mixture() if experts else exact(tiny_model().model)
    routing = Routing(model, aux_weight=0.1, z_weight=0.1) if experts else None
    policy = TokenLogprobs(model, None, routing)
    samples = conversations()
    if "top-k" in name:
        for sample in samples:
            among = torch.arange(2 + sample.number)
            kept = sample.tokens[sample.loss_mask][:, None] + among
            sample.sampling_mask = kept.remainder(20).int()
    if experts:
        samples = [recorded(sample, sample.task) for sample in samples]
    critic = None
    if goal.algorithm.critic is not None:
        values = exact(tiny_critic())
        optimizers = Optimizers(values, AdamW(lr=1e-3, eps=1e-3))
        config = CriticConfig.model_validate({})
        critic = TrainedCritic(values, TokenValues(values), optimizers, config, Moments())
    reference = tiny_mixture(3) if experts else exact(tiny_model(3).model)
    copies = Copies(PolicyCopy(TokenLogprobs(reference)))
    # If the gradient is only rounding, a small epsilon would turn it into a step.
    optimizers = Optimizers(model, AdamW(lr=1e-3, eps=1e-3))
    state = state_of(policy, optimizers, copies, critic)
    metrics = train_batch(
        state, [samples[:8], samples[8:]], goal, MicroBatches(ALONE, 90), lambda _: 1.0
    )
    weights = {name: p.detach() for name, p in model.named_parameters()}
    if critic:
        weights |= {f"critic.{name}": p.detach() for name, p in critic.model.named_parameters()}
    return metrics, weights


@pytest.mark.parametrize(
    ("name", "experts"),
    [*((name, False) for name in GOALS), ("recomputed, over prompts, lagged", True)],
)
def test_a_step_with_shared_prompts_is_the_same_step(
    sharing: Callable[[bool], None], name: str, experts: bool
) -> None:
    sharing(False)
    right, right_weights = once(name, experts)
    assert right["train/shared_tokens"] == 0
    sharing(True)
    metrics, weights = once(name, experts)
    assert metrics.pop("train/shared_tokens") > 0.3
    right.pop("train/shared_tokens")
    # Norms and routers of the mixture compute in float32 whatever its type.
    near_enough = 1e-5 if experts else 1e-9
    assert metrics == pytest.approx(right, rel=near_enough, abs=near_enough)
    for key, weight in weights.items():
        torch.testing.assert_close(weight, right_weights[key], rtol=0, atol=near_enough)


def test_models_with_a_mask_of_their_own_never_share() -> None:
    model = AutoModelForCausalLM.from_config(Gemma2Config(**GQA, final_logit_softcapping=None))
    use_packed_attention(model)
    assert sharing_of(TokenLogprobs(model)) is None
    assert sharing_of(TokenLogprobs(tiny_model().model)) is not None


def test_long_answers_to_a_short_prompt_are_left_alone() -> None:
    config = LlamaConfig(**SHAPE | {"hidden_size": 256, "intermediate_size": 1024})
    model = AutoModelForCausalLM.from_config(config)
    use_packed_attention(model)
    sharing = sharing_of(TokenLogprobs(model))
    assert sharing is not None
    assert sharing.pays(0, 800, copies=8, behind=8 * 100)
    assert sharing.pays(0, 100, copies=8, behind=8 * 200)
    assert not sharing.pays(0, 30, copies=8, behind=8 * 8000)


def test_a_supervised_step_says_how_many_tokens_its_rows_share(
    sharing: Callable[[bool], None],
) -> None:
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE))
    use_packed_attention(model)
    prompt, mask = torch.arange(10, 16), torch.arange(9) >= 6
    rows = [Example(torch.cat([prompt, torch.tensor([i, 1, 2])]), mask) for i in (3, 4, 5)]
    counts = []
    for on in (True, False):
        sharing(on)
        loss = LikelihoodLoss(rows, 1, ALONE)
        counts.append(backward(TokenLogprobs(model), loss, MicroBatches(ALONE, 100)))
    # The prompt's six tokens twice.
    assert counts == [(27, 15), (27, 27)]
