"""Small models, groups and samples that the learner's tests share."""

from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForSequenceClassification

from learner.batch.samples import TrainingSample
from learner.model.attention.packed import use_packed_attention
from learner.model.loading.model_loader import LoadedModel
from learner.model.loading.scratch import make_model
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.reference_policies import Copies
from learner.model.value_model import TrainedCritic
from learner.objective.losses import Tokens
from learner.optim.optimizers import Optimizers
from learner.state import TrainingProgress, TrainingState
from services.contracts.config.model import ScratchModel
from services.contracts.groups.trajectory import GroupHeader, TrajectoryGroup

TINY = ScratchModel(
    source="scratch", hidden_size=32, layers=2, heads=2, intermediate_size=48, max_length=64
)


def tiny_model(seed: int = 0) -> LoadedModel:
    return make_model(TINY, seed)


def tiny_critic(labels: int = 1) -> LlamaForSequenceClassification:
    """A model of the tiny one's sizes with another head, random all over."""
    config = tiny_model().model.config.to_dict()
    unlabelled = {k: v for k, v in config.items() if k not in ("id2label", "label2id")}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        critic = LlamaForSequenceClassification(LlamaConfig(**unlabelled, num_labels=labels))
    use_packed_attention(critic)
    return critic


def state_of(
    policy: nn.Module | LoadedModel,
    optimizers: Optimizers,
    copies: Copies | None = None,
    critic: TrainedCritic | None = None,
    progress: TrainingProgress | None = None,
) -> TrainingState:
    """The training state around a policy, before the first step unless `progress` is given."""
    if isinstance(policy, LoadedModel):
        loaded, policy = policy, TokenLogprobs(policy.model, policy.autocast)
    else:
        loaded = LoadedModel(getattr(policy, "model", policy), None, torch.float32)
    progress = progress or TrainingProgress("r", 0, 0, [("a", 0)], "base")
    return TrainingState(loaded, policy, optimizers, progress, critic, copies or Copies())


def logs(*ratios: float) -> torch.Tensor:
    """Logarithms [k] of `ratios`, in float64."""
    return torch.tensor(ratios, dtype=torch.float64).log()


def tensor(*values: float) -> torch.Tensor:
    """`values` [k] in float64."""
    return torch.tensor(values, dtype=torch.float64)


def against_one(
    logprobs: torch.Tensor, advantages: tuple[float, ...], sequences: tuple[int, ...] = ()
) -> Tokens:
    """Tokens at π_prox = μ = 1, of one sequence unless `sequences` says which."""
    zeros = torch.zeros_like(logprobs).detach()
    place = torch.tensor(sequences or (0,) * len(advantages))
    return Tokens(logprobs, zeros, zeros, tensor(*advantages), place, int(place.max()) + 1)


def random_samples(groups: int, per_group: int, seed: int = 0) -> list[TrainingSample]:
    """Samples of random lengths, with log-probabilities near an untrained model's. The last of each
    group is masked."""
    generator = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    samples = []
    for group in range(groups):
        prompt = integer(2, 9)
        lengths = [integer(1, 12) for _ in range(per_group)]
        for number, length in enumerate(lengths):
            loss_mask = torch.zeros(prompt + length, dtype=torch.bool)
            loss_mask[prompt:] = number != per_group - 1
            k = int(loss_mask.sum())
            samples.append(
                TrainingSample(
                    tokens=torch.randint(4, 20, (prompt + length,), generator=generator),
                    loss_mask=loss_mask,
                    sampler_logprobs=-3.0 + 0.2 * torch.randn(k, generator=generator),
                    staleness=torch.randint(0, 2, (k,), generator=generator),
                    advantage=float(torch.randn(1, generator=generator)),
                    task=group,
                    number=number,
                    group_lengths=(*lengths[:-1], 0),
                )
            )
    return samples


def trajectory_group(rewards: list[float | None], **header: Any) -> TrajectoryGroup:
    """A group of task 5 with prompt [1, 7], whose sample i has the i + 2 tokens 10, 11, … The
    second token of each sample is not the policy's. The first was sampled at a:1, the others at
    a:2."""
    n = len(rewards)
    lengths = np.arange(2, 2 + n)
    spans = []
    for i, length in enumerate(lengths):
        spans += [[i, 0, 1, 0]] + ([[i, 2, length, 1]] if length > 2 else [])
    mask = np.concatenate([np.arange(length) != 1 for length in lengths])
    return TrajectoryGroup(
        header=msgspec.structs.replace(
            GroupHeader(
                run="r",
                task=5,
                attempt="x",
                worker="w",
                row=3,
                lineage="a",
                tags=["a:1", "a:2"],
                finish_reasons=["stop"] * n,
                statuses=["correct"] * n,
                rewards=rewards,
            ),
            **header,
        ),
        prompt_tokens=np.array([1, 7]),
        lengths=lengths,
        tokens=np.concatenate([np.arange(10, 10 + length) for length in lengths]),
        loss_mask=mask,
        logprobs=(-0.1 * np.arange(1, lengths.sum() + 1) * mask).astype(np.float32),
        spans=np.array(spans),
    )
