"""The training state that a run starts or resumes from."""

from dataclasses import replace
from pathlib import Path

import torch

from learner.distributed import Ranks
from learner.model.compiling import make_trainable
from learner.model.loading import load_critic, with_dtype
from learner.model.logprobs import TokenLogprobs
from learner.model.lora import load_policy
from learner.model.moe_routing import policy_routing
from learner.model.offload import Offload, place
from learner.model.references import load_copies
from learner.model.value_model import Critic, TokenValues
from learner.objective.value_loss import Moments
from learner.optim.optimizers import Optimizers, check_in_backward
from learner.persist.checkpoint import (
    CRITIC,
    CRITIC_OPTIMIZER,
    load_copy,
    load_optimizer,
    load_random_state,
    verify,
)
from learner.state import Progress, TrainingState
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig
from services.contracts.config.critic import Critic as CriticConfig
from services.contracts.records import RunRecord
from services.runtime.logs import get_logger
from services.volume import Volume

log = get_logger(__name__)


def prepare(
    record: RunRecord, config: RLConfig, ranks: Ranks, store: RunStore, volume: Volume
) -> TrainingState:
    """Model, optimizers and progress: from the run's current checkpoint, else from its model.
    Raises UnusableModel, UnusableCheckpoint, UnusableDevice, DamagedFile, RunCannotGoOn."""
    seed = config.training.seed
    torch.manual_seed(seed + ranks.rank)
    base = store.model_path(config.model.path, volume)
    # All lineages, not those of the checkpoint: a start that died before its first one has left
    # groups behind, too.
    lineages = store.lineages()
    folder = None if record.checkpoint is None else volume.path(record.checkpoint)
    progress = Progress(record.id, 0, 0, lineages, base)
    if folder is not None:
        progress = replace(verify(folder), run=record.id, lineages=lineages)
        log.info("resuming", run=record.id, step=progress.step, checkpoint=folder.name)
    own = volume.path(f"runs/{record.id}/model")
    model = with_dtype(config.model, own)
    loaded = load_policy(model, base, own, folder, seed, ranks.device)
    # The reference and the lagged copy compute in the type of the policy.
    dtype = str(loaded.publish_dtype).removeprefix("torch.")
    config = config.model_copy(update={"model": model.model_copy(update={"dtype": dtype})})
    make_trainable(loaded.model, config.training)
    check_in_backward(config.optimizer, "optimizer", ranks)
    optimizers = Optimizers(loaded.model, config.optimizer)
    routing = policy_routing(loaded.model, config.algorithm.router)
    policy = TokenLogprobs(loaded.model, loaded.autocast, routing)
    start = str(folder) if folder else progress.base_model
    copies = load_copies(config, ranks, progress.base_model, start, policy)
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
            load_copy(folder, name, copy.weights)
        load_optimizer(folder, optimizers)
        # Last: a model that is loaded may draw random numbers.
        load_random_state(folder)
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
    model = load_critic(path, config.model, state.loaded.model, where.device)
    make_trainable(model, config.training)
    check_in_backward(critic.optimizer, "algorithm.critic.optimizer", ranks)
    optimizers = Optimizers(model, critic.optimizer)
    if folder:
        load_optimizer(folder, optimizers, CRITIC_OPTIMIZER)
    values = TokenValues(model, state.loaded.autocast)
    offloads: tuple[Offload, ...] = ()
    if where.offload:
        offloads = (Offload(model.parameters), Offload(lambda: optimizers.state().values()))
    moments = Moments(*state.progress.critic_moments)
    return Critic(model, values, optimizers, critic, moments, offloads)
