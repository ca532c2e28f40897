"""The training state that a run starts or resumes from."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from learner.distributed import Ranks
from learner.model.compiling import make_trainable
from learner.model.folders import UnusableModel
from learner.model.loading import load_critic, model_numbers, unfit, with_dtype
from learner.model.logprobs import TokenLogprobs
from learner.model.lora import load_policy
from learner.model.moe_routing import policy_routing
from learner.model.offload import Offload, offloads, place, present
from learner.model.packing_check import mixes_sequences
from learner.model.parallel import (
    agreed_parallel,
    gathered,
    is_sharded,
    shard,
)
from learner.model.references import load_copies
from learner.model.value_model import Critic, TokenValues
from learner.objective.value_loss import Moments
from learner.optim.optimizers import Optimizers, check_optimizer
from learner.persist.checkpoint import CRITIC, CRITIC_OPTIMIZER
from learner.persist.checkpoint_reader import (
    load_copy,
    load_optimizer,
    load_random_state,
    verify,
)
from learner.slices import Part
from learner.state import Progress, TrainingState
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig
from services.contracts.config.copies import LaggedProximal
from services.contracts.config.critic import Critic as CriticConfig
from services.contracts.config.terms import NoKL
from services.contracts.records import RunRecord
from services.estimate.training import bytes_unsharded
from services.runtime.logs import get_logger
from services.volume import Volume

log = get_logger(__name__)


def prepare(
    record: RunRecord, config: RLConfig, ranks: Ranks, store: RunStore, volume: Volume
) -> TrainingState:
    """Model, optimizers and progress: from the run's current checkpoint, else from its model. All
    ranks prepare together. Raises UnusableModel, UnusableCheckpoint, UnusableDevice, DamagedFile,
    RunCannotGoOn."""
    start = ranks.together(lambda: find_start(record, config, ranks, store, volume))
    needed = partial(bytes_needed, start)
    sharded = agreed_parallel(config.training.parallel, needed, ranks) == "fsdp"
    if ranks.size > 1:
        log.info("ranks share the training", parallel="fsdp" if sharded else "ddp")
    state = ranks.together(lambda: assemble(start, ranks, sharded, store, volume))
    if sharded:
        check_sharded(state)
    return state


def check_sharded(state: TrainingState) -> None:
    """Raise UnusableModel where what a sharded model computes cannot be trained. On every rank: it
    takes a pass, and all find the same."""
    if why := gathered(state.policy, partial(unfit, state.loaded.model)):
        raise UnusableModel(f"model {state.progress.base_model}: {why}")
    if (critic := state.critic) and is_sharded(critic.values):
        with present(critic.offloaded_weights, changed=False):
            why = gathered(critic.values, partial(mixes_sequences, critic.model))
        if why:
            raise UnusableModel(f"the critic's model: {why}")


@dataclass(frozen=True)
class Start:
    """What a run goes on from."""

    config: RLConfig
    base: str
    """The model that the config names."""
    own: Path
    """The run's model folder, which may not exist yet."""
    progress: Progress
    folder: Path | None
    """The checkpoint, if there is one."""


def find_start(
    record: RunRecord, config: RLConfig, ranks: Ranks, store: RunStore, volume: Volume
) -> Start:
    """Where the run's model is, and how far the run is. Raises as `prepare` does."""
    torch.manual_seed(config.training.seed + ranks.rank)
    base = store.model_path(config.model.path, volume)
    # All lineages, not those of the checkpoint: a start that died before its first one has left
    # groups behind, too.
    lineages = store.lineages()
    folder = None if record.checkpoint is None else volume.path(record.checkpoint)
    progress = Progress(record.id, 0, 0, lineages, base)
    if folder is not None:
        progress = replace(
            verify(folder, Part(ranks.rank, ranks.size)), run=record.id, lineages=lineages
        )
        log.info("resuming", run=record.id, step=progress.step, checkpoint=folder.name)
    return Start(config, base, volume.path(f"runs/{record.id}/model"), progress, folder)


def bytes_needed(start: Start) -> int:
    """What each rank would hold between two passes if nothing were sharded. Raises
    UnusableModel."""
    config = start.config
    every = model_numbers(start.base, config.model)
    trained = 0 if config.model.lora else every
    offloaded = "optimizer" in config.training.offload
    needed = bytes_unsharded(trained, every - trained, config.optimizer, offloaded)
    algorithm, placement, offload = config.algorithm, config.placement, config.training.offload
    if algorithm.critic and placement.critic == "same" and "critic" not in offload:
        needed += bytes_unsharded(every, 0, algorithm.critic.optimizer, "optimizer" in offload)
    copies = {
        "lagged": isinstance(algorithm.proximal, LaggedProximal),
        "reference": not isinstance(algorithm.kl, NoKL) and config.model.lora is None,
    }
    for name, loaded in copies.items():
        if loaded and getattr(placement, name) == "same" and name not in offload:
            needed += bytes_unsharded(0, every, config.optimizer)
    return needed


def assemble(
    start: Start, ranks: Ranks, sharded: bool, store: RunStore, volume: Volume
) -> TrainingState:
    """All that trains and is trained. Raises as `prepare` does."""
    config, progress, folder = start.config, start.progress, start.folder
    model, sharing = with_dtype(config.model, start.own), ranks if sharded else None
    seed = config.training.seed
    loaded = load_policy(model, start.base, start.own, folder, seed, ranks.device, sharing)
    # The reference and the lagged copy compute in the type of the policy.
    dtype = str(loaded.publish_dtype).removeprefix("torch.")
    config = config.model_copy(update={"model": model.model_copy(update={"dtype": dtype})})
    make_trainable(loaded.model, config.training)
    check_optimizer(config.optimizer, "optimizer", ranks, sharded)
    routing = policy_routing(loaded.model, config.algorithm.router)
    policy = TokenLogprobs(loaded.model, None if sharded else loaded.autocast, routing)
    if sharded:
        shard(policy, loaded.model, loaded.autocast, ranks)
    optimizers = Optimizers(loaded.model, config.optimizer)
    beginning = str(folder) if folder else progress.base_model
    copies = load_copies(config, ranks, progress.base_model, beginning, policy)
    state = TrainingState(loaded, policy, optimizers, progress, None, copies)
    if config.algorithm.critic is not None:
        path = config.algorithm.critic.path
        if path:
            base = store.model_path(path, volume, "algorithm.critic.path")
        else:
            base = progress.base_model
        state.critic = prepare_critic(config, config.algorithm.critic, ranks, state, base, folder)
    if folder is not None:
        for name, copy in copies.moving.items():
            with copy.present(changed=True):
                load_copy(folder, name, copy.parameters)
        load_optimizer(folder, optimizers)
        # Last: a model that is loaded may draw random numbers.
        load_random_state(folder)
    if offloads("optimizer", config.training, ranks):
        state.offloads = (Offload(lambda: optimizers.state().values()),)
    return state


def prepare_critic(
    config: RLConfig,
    critic: CriticConfig,
    ranks: Ranks,
    state: TrainingState,
    base: str,
    folder: Path | None,
) -> Critic:
    """The critic beside the policy of `state`: from the checkpoint `folder`, else from the model at
    `base`."""
    where = place("placement.critic", config.placement.critic, ranks)
    path = str(folder / CRITIC) if folder else base
    # On a device of its own it is whole.
    sharded = is_sharded(state.policy) and where == ranks.device
    sharing = ranks if sharded else None
    model = load_critic(path, config.model, state.loaded.model, where, sharing)
    make_trainable(model, config.training)
    check_optimizer(critic.optimizer, "algorithm.critic.optimizer", ranks, sharded)
    values = TokenValues(model, None if sharded else state.loaded.autocast)
    if sharded:
        shard(values, model, state.loaded.autocast, ranks)
    optimizers = Optimizers(model, critic.optimizer)
    if folder:
        load_optimizer(folder, optimizers, CRITIC_OPTIMIZER)
    moments = Moments(*state.progress.critic_moments)
    prepared = Critic(model, values, optimizers, critic, moments)
    whole = offloads("critic", config.training, ranks)
    if whole:
        prepared.offloaded_weights = (Offload(model.parameters),)
    if whole or offloads("optimizer", config.training, ranks):
        prepared.offloaded_state = (Offload(lambda: optimizers.state().values()),)
    return prepared
