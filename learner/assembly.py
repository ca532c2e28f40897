"""Assemble the training state that a run starts or resumes from."""

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from headrace.config_keys import CRITIC as CRITIC_PATH
from headrace.config_keys import REFERENCE, TEACHER, text_at
from learner.checkpoints.checkpoint_reader import (
    check_listed,
    load_copy,
    load_optimizer,
    load_random_state,
)
from learner.checkpoints.checkpoint_retention import clear
from learner.checkpoints.checkpoint_writer import CRITIC, CRITIC_OPTIMIZER
from learner.checkpoints.resume_point import read_checkpoint
from learner.distributed import Ranks
from learner.environment import RunEnvironment
from learner.errors import UnusableModel
from learner.model.compiling import compiles, make_trainable
from learner.model.loading.lora import PolicyFolders, base_of, check_files, load_policy
from learner.model.loading.model_loader import (
    LoadedModel,
    load_critic,
    name_ends,
    unfit,
    with_dtype,
)
from learner.model.loading.scratch import make_model, train_merges
from learner.model.moe.routing import policy_routing
from learner.model.pass_plan import PassPlan, agreed_plan, known_model
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import check_sharing
from learner.model.passes.packing_check import mixes_sequences
from learner.model.placement.offload import Offload, offloads, place, present
from learner.model.placement.parallel import gathered, is_sharded, shard
from learner.model.reference_policies import CopiedPolicy, Scorers, load_copies, load_reference
from learner.model.value_model import TokenValues, TrainedCritic
from learner.objective.value_loss import Moments
from learner.optim.optimizers import Optimizers, check_optimizer
from learner.sft_data.row_texts import texts
from learner.slices import RankPart
from learner.state import TrainingProgress, TrainingState
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.model import BPETokenizer, PretrainedModel, ScratchModel
from services.contracts.config.objective.critic import Critic as CriticConfig
from services.contracts.config.objective.supervised import DPO
from services.contracts.records import RunRecord
from services.contracts.rows.rendering import use_template
from services.estimate.inputs import Model, known_workers
from services.estimate.model_shape import scratch_shape
from services.models.path import run_named
from services.runtime.logs import get_logger
from services.volume import Volume

log = get_logger(__name__)

Config = RLConfig | SFTConfig
CHECKPOINT = re.compile(r"/(runs/[^/]+/checkpoints/[^/]+)$")
C = TypeVar("C", RLConfig, SFTConfig)


def prepare(record: RunRecord, config: Config, environment: RunEnvironment) -> TrainingState:
    """Return model, optimizers and progress: from the run's current checkpoint, else from its
    model. All ranks call this together. Raises UnusableModel, UnusableCheckpoint, UnusableDevice,
    DamagedFile, RunCannotGoOn."""
    ranks = environment.ranks
    saved = read_checkpoint(record, ranks, environment.store, environment.volume)
    start = ranks.together(lambda: find_start(record, config, environment, saved))
    ranks.together(lambda: check_base(start, ranks))
    model = config.model
    if isinstance(model, ScratchModel) and start.folder is None:
        start = replace(start, merges=trained_merges(config, model, environment))
    plan = agreed_plan(
        start.config,
        ranks,
        lambda: described(start, environment),
        lambda: known_workers(environment.store.workers()),
    )
    if ranks.size > 1:
        log.info("ranks share the training", parallel=plan.parallel)
    state = ranks.together(lambda: assemble(start, plan, environment))
    if plan.sharded:
        check_sharded(state)
    return state


def shared_in_words(plan: PassPlan, ranks: Ranks) -> str:
    rows = f", of which {ranks.context.size} share each micro-batch" if ranks.context else ""
    return f"{plan.parallel} on {ranks.size} ranks{rows}"


def check_sharded(state: TrainingState) -> None:
    """Raise UnusableModel if a sharded model computes something that cannot be trained. Called on
    every rank, because the check takes a pass. All ranks get the same result."""
    if why := gathered(state.policy, partial(unfit, state.loaded.model)):
        raise UnusableModel(f"model {state.progress.base_model}: {why}")
    if (critic := state.critic) and is_sharded(critic.values):
        with present(critic.offloaded_weights, changed=False):
            why = gathered(critic.values, partial(mixes_sequences, critic.model))
        if why:
            raise UnusableModel(f"the critic's model: {why}")


@dataclass(frozen=True)
class RunStart:
    config: Config
    """The config, with the type that the run has already published, if any."""
    folders: PolicyFolders
    progress: TrainingProgress
    merges: str = ""
    """The tokenizer that the run has trained, if any."""

    @property
    def folder(self) -> Path | None:
        """The checkpoint, if there is one."""
        return self.folders.checkpoint


def find_start(
    record: RunRecord,
    config: Config,
    environment: RunEnvironment,
    saved: tuple[Path, TrainingProgress] | None,
) -> RunStart:
    """Find the run's model and its progress. Raises as `prepare` does."""
    ranks, store, volume = environment.ranks, environment.store, environment.volume
    torch.manual_seed(config.training.seed + ranks.rank)
    # All lineages, not only the checkpoint's: a start that died before its first checkpoint has
    # left groups too. A lineage after this start's own is a successor's, whose files must not be
    # touched.
    lineages = store.lineages()
    lineages = lineages[: [name for name, _ in lineages].index(store.lineage) + 1]
    if ranks.first:
        clear(volume.path(f"runs/{record.id}/checkpoints"), lineages, store.lineage)
    folder: Path | None = None
    if saved is None:
        base = ""
        if isinstance(config.model, PretrainedModel):
            base = store.model_path(config.model.path, volume)
            if run_named(config.model.path) is not None:
                check_listed(Path(base), RankPart(ranks.rank, ranks.size))
        progress = TrainingProgress(record.id, 0, 0, lineages, base)
    else:
        # The config's model may be missing by now, or be another checkpoint of that run.
        folder, progress = saved
        progress = gone_on(progress, record.id)
        base = found_again(progress.base_model, volume)
        progress = replace(progress, lineages=lineages, base_model=base)
        log.info("resuming", run=record.id, step=progress.step, checkpoint=folder.name)
    folders = PolicyFolders(base, volume.path(f"runs/{record.id}/model"), folder)
    if isinstance(config.model, PretrainedModel):
        model = with_dtype(config.model, folders.run)
        config = config.model_copy(update={"model": model})
    return RunStart(config, folders, progress)


def found_again(base: str, volume: Volume) -> str:
    """Return the path of the model that a run started from, given the path in its checkpoint.
    Another run's checkpoint is looked up where the data volume is mounted now."""
    named = CHECKPOINT.search(base)
    if named is None or Path(base).exists():
        return base
    moved = volume.path(named[1])
    return str(moved) if moved.exists() else base


def check_base(start: RunStart, ranks: Ranks) -> None:
    """Verify the base of adapters. Each rank reads some of its files. Raises UnusableModel,
    DamagedFile, RunCannotGoOn."""
    model = start.config.model
    if not isinstance(model, PretrainedModel) or model.lora is None:
        return
    check_files(Path(base_of(model, start.folders)), RankPart(ranks.rank, ranks.size))


def gone_on(progress: TrainingProgress, run: str) -> TrainingProgress:
    """Return `progress` of a checkpoint as progress of `run`. If another run wrote the checkpoint,
    patience begins anew, because the other run may have ended by it."""
    supervised = progress.supervised
    if supervised is not None and progress.run != run:
        supervised = replace(supervised, since_best=0)
    return replace(progress, run=run, supervised=supervised)


def trained_merges(config: Config, model: ScratchModel, environment: RunEnvironment) -> str:
    """Return the tokenizer that the run trains on its rows, or '' if it trains none. Rank 0 trains
    it: a dataset may have grown by the time another rank reads it."""
    tokenizer = model.tokenizer
    if not isinstance(tokenizer, BPETokenizer) or not isinstance(config, SFTConfig):
        return ""
    train = partial(train_merges, tokenizer)
    store, volume = environment.store, environment.volume
    merges = environment.ranks.from_first(lambda: train(texts(config, store, volume)).encode())
    return merges.decode()


def described(start: RunStart, environment: RunEnvironment) -> Model | None:
    """Describe the models that training starts from, for the estimate."""
    config = start.config
    if isinstance(config.model, ScratchModel):
        return Model(scratch_shape(config.model), half=True)
    another = None
    if isinstance(config, RLConfig) and (critic := config.algorithm.critic) and critic.path:
        another = critic_path(critic, start, environment)
    scorers = Scorers()
    if isinstance(config, RLConfig):
        scorers = find_scorers(config, environment)
    path = str(start.folder or start.folders.start)
    return known_model(path, config.model, another, scorers.teacher, scorers.reference)


def critic_path(critic: CriticConfig, start: RunStart, environment: RunEnvironment) -> str:
    if start.folder is not None:
        return str(start.folder / CRITIC)
    if critic.path is None:
        return start.progress.base_model
    return environment.store.model_path(critic.path, environment.volume, CRITIC_PATH)


def find_scorers(config: RLConfig, environment: RunEnvironment) -> Scorers:
    """Return the paths of the teacher and of a separate reference, if the learner loads them."""
    raw = config.model_dump()

    def path_of(key: str) -> str | None:
        path = text_at(raw, key)
        if path is None:
            return None
        return environment.store.model_path(path, environment.volume, key)

    return Scorers(path_of(TEACHER), path_of(REFERENCE))


def assemble(start: RunStart, plan: PassPlan, environment: RunEnvironment) -> TrainingState:
    """Load all models and build the training state. Raises as `prepare` does."""
    config, progress, folder = start.config, start.progress, start.folder
    ranks, sharded = environment.ranks, plan.sharded
    loaded = load_trained(start, ranks, sharded)
    use_template(loaded.tokenizer, config.data)
    check_sharing(loaded.model, ranks)
    name_ends(loaded)
    compiled, why = compiles(
        config.training.compile, loaded.model, ranks.device, config.training.compile_backend
    )
    plan = replace(plan, compiled=compiled)
    make_trainable(loaded.model, plan.checkpointing, compiled)
    check_optimizer(config.optimizer, "optimizer", ranks, sharded)
    if isinstance(config, SFTConfig):
        routing = policy_routing(loaded.model, config.router, "router")
    else:
        routing = policy_routing(loaded.model, config.algorithm.router)
    policy = TokenLogprobs(loaded.model, None if sharded else loaded.autocast, routing)
    if sharded:
        shard(policy, loaded.model, loaded.autocast, ranks)
    optimizers = Optimizers(loaded.model, config.optimizer)
    state = TrainingState(loaded, policy, optimizers, progress)
    state.computation = {
        "device": device_in_words(ranks),
        "activations": plan.activations,
        "compile": why,
    }
    if ranks.size > 1:
        state.computation["parallel"] = shared_in_words(plan, ranks)
    if isinstance(config, SFTConfig) and isinstance(config.objective, DPO):
        known = with_policy_dtype(config, state)
        copied = CopiedPolicy(policy, ranks, compiled)
        state.copies.reference = load_reference(known, copied, progress.base_model)
    if isinstance(config, RLConfig):
        add_models(state, config, start, plan, environment)
    if folder is not None:
        for name, copy in state.copies.moving.items():
            with copy.present(changed=True):
                load_copy(folder, name, copy.parameters)
        load_optimizer(folder, optimizers)
        # Last, because loading a model may draw random numbers.
        load_random_state(folder)
    if offloads("optimizer", config.training, ranks):
        state.offloads = (Offload(lambda: optimizers.state().values()),)
    return state


def device_in_words(ranks: Ranks) -> str:
    """Describe the ranks' devices for the run's report: `2 × NVIDIA H100, PyTorch 2.9.0`."""
    on_gpu = ranks.device.type == "cuda"
    kind = torch.cuda.get_device_name(ranks.device) if on_gpu else "rank on a CPU"
    return f"{ranks.size} × {kind}, PyTorch {torch.__version__}"


def load_trained(start: RunStart, ranks: Ranks, sharded: bool) -> LoadedModel:
    """Load the trained model: from the run's checkpoint, else as its config says."""
    config, model, folder = start.config, start.config.model, start.folder
    sharing = ranks if sharded else None
    if isinstance(model, ScratchModel):
        if folder is None:
            return make_model(model, config.training.seed, ranks.device, start.merges)
        model = PretrainedModel(path=str(folder), dtype=model.dtype)
        model = with_dtype(model, start.folders.run)
    return load_policy(model, start.folders, config.training.seed, ranks.device, sharing)


def add_models(
    state: TrainingState,
    config: RLConfig,
    start: RunStart,
    plan: PassPlan,
    environment: RunEnvironment,
) -> None:
    """Add the copies of the policy and the critic that the objective needs to `state`."""
    base, folder, policy = state.progress.base_model, start.folder, state.policy
    assert isinstance(policy, TokenLogprobs)
    config = with_policy_dtype(config, state)
    beginning = str(folder) if folder else base
    scorers = find_scorers(config, environment)
    copied = CopiedPolicy(policy, environment.ranks, plan.compiled, state.loaded.tokenizer)
    state.copies = load_copies(config, copied, base, beginning, scorers)
    if critic := config.algorithm.critic:
        path = critic_path(critic, start, environment)
        state.critic = prepare_critic(config, state, path, plan, environment.ranks)
        if folder:
            load_optimizer(folder, state.critic.optimizers, CRITIC_OPTIMIZER)


def with_policy_dtype(config: C, state: TrainingState) -> C:
    """Return `config` for copies of the policy, which compute in the policy's type."""
    dtype = state.loaded.publish_name
    return config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})


def prepare_critic(
    config: RLConfig, state: TrainingState, path: str, plan: PassPlan, ranks: Ranks
) -> TrainedCritic:
    critic = config.algorithm.critic
    assert critic is not None
    where = place("placement.critic", config.placement.critic, ranks)
    # A critic on another device is whole.
    sharded = plan.sharded and where == ranks.device
    sharing = ranks if sharded else None
    model = load_critic(
        path, config.model, state.loaded.model, where, sharing, state.loaded.autocast
    )
    check_sharing(model, ranks)
    make_trainable(model, plan.checkpointing, plan.compiled)
    check_optimizer(critic.optimizer, "algorithm.critic.optimizer", ranks, sharded)
    values = TokenValues(model, None if sharded else state.loaded.autocast)
    if sharded:
        shard(values, model, state.loaded.autocast, ranks)
    optimizers = Optimizers(model, critic.optimizer)
    moments = Moments(*state.progress.critic_moments)
    prepared = TrainedCritic(model, values, optimizers, critic, moments)
    whole = offloads("critic", config.training, ranks)
    if whole:
        prepared.offloaded_weights = (Offload(model.parameters),)
    if whole or offloads("optimizer", config.training, ranks):
        prepared.offloaded_state = (Offload(lambda: optimizers.state().values()),)
    return prepared
