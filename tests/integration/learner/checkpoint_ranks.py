"""A rank of a learner that resumes from one checkpoint, makes another before it trains, and one
more after an update. Its state has a policy with experts, a critic, a moving reference, and the
state of both optimizers.

`checkpoint_ranks.py FROM TO TRAINED`: folders. FROM does not exist for the first learner, whose
state is made up.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch
from transformers import PreTrainedModel

from learner.checkpoints.captured import capture, part_of
from learner.checkpoints.checkpoint_reader import load_copy, load_optimizer, verify
from learner.checkpoints.checkpoint_writer import (
    CRITIC,
    CRITIC_OPTIMIZER,
    WrittenPart,
    complete,
    write_part,
)
from learner.distributed import Ranks, start_ranks, stop_ranks
from learner.model.loading.model_loader import LoadedModel, load_critic, load_model
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.placement.parallel import shard
from learner.model.reference_policies import Copies, Following, PolicyCopy
from learner.model.value_model import TokenValues, TrainedCritic
from learner.objective.value_loss import Moments
from learner.optim.optimizers import Optimizers
from learner.slices import RankPart, rows_of
from learner.state import TrainingProgress, TrainingState
from services.contracts.config.model import PretrainedModel
from services.contracts.config.objective.critic import Critic as CriticConfig
from services.contracts.config.optimizer import AdamW, MuonAdamW
from tests.unit.learner.experts import tiny_mixture
from tests.unit.learner.policies import tiny_critic, tiny_model


@dataclass(frozen=True)
class Models:
    policy: LoadedModel
    critic: PreTrainedModel
    reference: PreTrainedModel


def made_up() -> Models:
    policy = LoadedModel(tiny_mixture().float(), tiny_model().tokenizer, torch.float32)
    return Models(policy, tiny_critic(), tiny_mixture(seed=1).float())


def read_from(folder: Path, ranks: Ranks) -> Models:
    config = PretrainedModel(path=str(folder))
    sharing = ranks if ranks.size > 1 else None
    policy, reference = (load_model(str(folder), config, sharing=sharing) for _ in range(2))
    critic = load_critic(str(folder / CRITIC), config, policy.model, sharing=sharing)
    return Models(policy, critic, reference.model)


def prepared(models: Models, ranks: Ranks) -> TrainingState:
    policy, values = TokenLogprobs(models.policy.model), TokenValues(models.critic)
    reference = TokenLogprobs(models.reference.requires_grad_(False))
    if ranks.size > 1:
        for passes in (policy, values, reference):
            shard(passes, passes.model, None, ranks)
    optimizers = Optimizers(models.policy.model, MuonAdamW(type="muon"))
    of_critic = Optimizers(models.critic, AdamW())
    return TrainingState(
        models.policy,
        policy,
        optimizers,
        TrainingProgress("r", 0, 0, [("a", 0)], "base"),
        TrainedCritic(models.critic, values, of_critic, CriticConfig(), Moments()),
        Copies(PolicyCopy(reference, Following())),
    )


def update(state: TrainingState, seed: int) -> None:
    """Do an update with made-up gradients."""
    assert state.critic is not None
    for optimizers in (state.optimizers, state.critic.optimizers):
        generator = torch.Generator().manual_seed(seed)
        for parameter in optimizers.names:
            whole = torch.randn(parameter.shape, generator=generator)
            parameter.grad = rows_of(whole, parameter)
        optimizers.step()


def write(state: TrainingState, folder: Path, ranks: Ranks) -> None:
    """Write a checkpoint of the state to `folder`, by all ranks."""
    state.progress = replace(state.progress, step=int(folder.name.split("-")[1]))
    captured = capture(state, part_of(state, ranks))
    written = ranks.gather(msgspec.json.encode(write_part(folder.parent, captured)))
    if ranks.first:
        parts = [msgspec.json.decode(each, type=WrittenPart) for each in written]
        assert complete(folder.parent, captured, parts, lambda: None) == folder


def main() -> None:
    before, after, trained = map(Path, sys.argv[1:])
    ranks = start_ranks()
    if before.exists():
        state = prepared(read_from(before, ranks), ranks)
        state.progress = verify(before, RankPart(ranks.rank, ranks.size))
        load_optimizer(before, state.optimizers)
        assert state.critic is not None
        load_optimizer(before, state.critic.optimizers, CRITIC_OPTIMIZER)
        assert state.copies.reference is not None
        load_copy(before, "reference", state.copies.reference.parameters)
    else:
        state = prepared(made_up(), ranks)
        update(state, 0)
    write(state, after, ranks)
    update(state, 1)
    write(state, trained, ranks)
    ranks.sum([0.0])
    stop_ranks(ranks)


if __name__ == "__main__":
    main()
