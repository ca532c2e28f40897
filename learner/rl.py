"""Reinforcement learning of one policy: the training script, to be read top to bottom.

Each step: rank 0 collects a batch of groups and records its plan; every rank fetches its own
share, trains, and goes on; rank 0 publishes the new version on a thread, and now and then has
another make a checkpoint and commit it (`lead`). Two invariants hold at every line: a version is
published only from weights that a recorded plan led to, and groups are acknowledged only by the
commit of a checkpoint that holds what they taught.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from learner import orders
from learner.adapters import load_policy
from learner.batch import Sample, group_samples
from learner.checkpoint import (
    CRITIC,
    TrainingState,
    load_critic_optimizer,
    load_optimizer,
    verify,
)
from learner.compiling import compile_blocks
from learner.copies import load_copies
from learner.crashes import Crashes
from learner.critic import Critic, TokenValues
from learner.distributed import Ranks
from learner.kl import adapted_beta
from learner.lead import Lead
from learner.link import RunLink
from learner.logprobs import TokenLogprobs
from learner.models import LoadedModel, load_critic
from learner.objective import Objective
from learner.optimizers import Optimizers, check_in_backward
from learner.orders import Order
from learner.outcomes import outcome_sums
from learner.placement import Offload, place, present
from learner.routing import policy_routing
from learner.samples import Picked, pick
from learner.schedules import lr_share
from learner.staleness import Ancestry
from learner.step import train_batch
from learner.trainee import Trainee
from learner.values import Moments
from services.contracts.config import RLConfig
from services.contracts.config.algorithm import Algorithm
from services.contracts.config.critic import Critic as CriticConfig
from services.contracts.config.terms import NoKL
from services.contracts.config.training import Training
from services.contracts.records import RunRecord
from services.contracts.trajectory import decode
from services.logs import get_logger
from services.volume import Volume

log = get_logger(__name__)


def train_rl(
    record: RunRecord,
    config: RLConfig,
    ranks: Ranks,
    link: RunLink,
    volume: Volume,
    stop: threading.Event,
    crashes: Crashes,
) -> str:
    """Train `record` to its end. Returns the kind of the order that ended it.

    Raises what the message of says why: UnusableModel, UnusableCheckpoint, DamagedFile, Fenced.
    """
    record = take_over(ranks, link)
    max_steps = record.max_steps
    if max_steps is None:
        raise ValueError(f"run {record.id} has no max_steps: submit it again")
    trainee = ranks.together(lambda: prepare(record, config, ranks, link, volume))
    if ranks.size > 1:
        trainee.policy = DistributedDataParallel(trainee.policy, forward_sync_buffers=False)
        if trainee.critic:
            with present(trainee.critic.offloads, changed=False):
                values = DistributedDataParallel(trainee.critic.values, forward_sync_buffers=False)
            trainee.critic.values = values
    lead = (
        Lead(config, max_steps, ranks, link, volume, trainee, stop, crashes)
        if ranks.first
        else None
    )
    # All that rank 0 alone does between two batches, so that the others hear of it where it fails.
    turn: Callable[[], Order] | None = lead.begin if lead else None
    try:
        while (order := told(ranks, turn, crashes)).kind == "train":
            began = time.monotonic()
            minibatches, outcomes, picked = fetch(order, config, ranks, link, trainee.state)
            metrics = train(trainee, minibatches, config, ranks, max_steps)
            trainee.state = advanced(trainee.state, config, metrics, trainee.critic)
            trainee.copies.after_step(trainee.state.step, trainee.loaded.model)
            if lead:
                turn = partial(lead.after_step, metrics, outcomes, picked, began, time.monotonic())
        return lead.end(order) if lead else order.kind
    finally:
        if lead:
            lead.close()


def take_over(ranks: Ranks, link: RunLink) -> RunRecord:
    """Take the run over (rank 0) and read where it stands: on every rank what no earlier learner
    can change any more."""
    message = ranks.told(
        (lambda: link.acquire().model_dump_json().encode()) if ranks.first else None
    )
    return RunRecord.model_validate_json(message)


def told(ranks: Ranks, turn: Callable[[], Order] | None, crashes: Crashes) -> Order:
    """What rank 0's `turn` returns, on every rank."""
    if turn is None:
        crashes.resting()
    order = orders.decode(ranks.told((lambda: orders.encode(turn())) if turn else None))
    if order.kind == "train":
        crashes.working(order.step)
    return order


def prepare(
    record: RunRecord,
    config: RLConfig,
    ranks: Ranks,
    link: RunLink,
    volume: Volume,
) -> Trainee:
    """Model, optimizer and state: from the run's current checkpoint, else from its model."""
    torch.manual_seed(config.training.seed + ranks.rank)
    base = link.model_path(config.model.path, volume)
    if record.checkpoint is None:
        folder = None
        state = TrainingState(record.id, 0, 0, 0, link.lineages(), base)
    else:
        folder = volume.path(record.checkpoint)
        # All lineages, not those of the checkpoint: a start that died before its first one has
        # left groups behind, too.
        state = replace(verify(folder), run=record.id, lineages=link.lineages())
        log.info("resuming", run=record.id, step=state.step, checkpoint=folder.name)
    own = volume.path(f"runs/{record.id}/model")
    seed = config.training.seed
    loaded = load_policy(config.model, base, own, folder, seed, ranks.device)
    make_trainable(loaded.model, config.training)
    check_in_backward(config.optimizer, "optimizer", ranks)
    optimizers = Optimizers(loaded.model, config.optimizer)
    routing = policy_routing(loaded.model, config.algorithm.router)
    policy = TokenLogprobs(loaded.model, loaded.autocast, routing)
    copies = load_copies(config, ranks, folder, state, policy)
    critic = None
    if config.algorithm.critic is not None:
        path = config.algorithm.critic.path
        start = link.model_path(path, volume, "algorithm.critic.path") if path else state.base_model
        critic = prepare_critic(
            config, config.algorithm.critic, ranks, loaded, start, folder, state
        )
    if folder is not None:
        # Last: with it comes the random state, which a model that is loaded may draw from.
        load_optimizer(folder, optimizers)
    return Trainee(loaded, policy, optimizers, state, critic, copies)


def make_trainable(model: PreTrainedModel, training: Training) -> None:
    """Have `model` make its passes as the config says. No dropout and no noise in routers, whatever
    its own config says: the sampler has none, and ratios would be random."""
    model.eval()
    if training.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        for module in model.modules():
            if getattr(module, "gradient_checkpointing", False):
                # transformers recomputes in training mode alone. What a block drops by itself:
                module.training = True
                vars(module).update({n: 0.0 for n, v in vars(module).items() if _drops(n, v)})
    if training.compile:
        compile_blocks(model)


def _drops(name: str, value: object) -> bool:
    return isinstance(value, float) and "drop" in name


def prepare_critic(
    config: RLConfig,
    critic: CriticConfig,
    ranks: Ranks,
    policy: LoadedModel,
    start: str,
    folder: Path | None,
    state: TrainingState,
) -> Critic:
    """The critic: from the checkpoint `folder`, else from the model at `start`."""
    where = place("placement.critic", config.placement.critic, ranks)
    path = str(folder / CRITIC) if folder else start
    model = load_critic(path, config.model, policy.model, where.device)
    make_trainable(model, config.training)
    check_in_backward(critic.optimizer, "algorithm.critic.optimizer", ranks)
    optimizers = Optimizers(model, critic.optimizer)
    if folder:
        load_critic_optimizer(folder, optimizers)
    values = TokenValues(model, policy.autocast)
    offloads: tuple[Offload, ...] = ()
    if where.offload:
        offloads = (Offload(model.parameters), Offload(lambda: optimizers.state().values()))
    return Critic(model, values, optimizers, critic, Moments(*state.critic_moments), offloads)


def fetch(
    order: Order, config: RLConfig, ranks: Ranks, link: RunLink, state: TrainingState
) -> tuple[list[list[Sample]], dict[str, float], list[Picked]]:
    """This rank's samples of each minibatch, the batch's outcome sums over all ranks, and, on the
    first one, completions to show."""
    ancestry = Ancestry(tuple(state.lineages))
    minibatches: list[list[Sample]] = []
    groups = []
    for shares in order.minibatches:
        part = [decode(blob) for blob in link.payloads(shares[ranks.rank])]
        minibatches.append(
            [
                sample
                for index, group in enumerate(part)
                for sample in group_samples(
                    group,
                    config.algorithm,
                    config.sampling.max_tokens,
                    ancestry,
                    order.step - 1,
                    index,
                )
            ]
        )
        groups += part
    sums = outcome_sums(groups, config.algorithm.samples_per_prompt)
    lengths = [len(sample.tokens) for part in minibatches for sample in part if sample.trains]
    sums["row_tokens"] = float(sum(lengths))
    sums["row_tokens_squared"] = float(sum(length * length for length in lengths))
    shown = config.training.log_samples if ranks.first else 0
    everything = [sample for part in minibatches for sample in part]
    return minibatches, ranks.sum_named(sums), pick(groups, everything, order.step, shown)


def train(
    trainee: Trainee,
    minibatches: list[list[Sample]],
    config: RLConfig,
    ranks: Ranks,
    max_steps: int,
) -> dict[str, float]:
    """The batch's optimizer steps. Returns their metrics."""
    per_batch = config.algorithm.minibatches * config.algorithm.epochs_per_batch
    taken, critic = trainee.state.optimizer_steps, trainee.critic
    return train_batch(
        trainee.policy,
        trainee.optimizers,
        minibatches,
        Objective(
            config.algorithm,
            config.sampling.temperature,
            config.sampling.max_tokens,
            beta_so_far(trainee.state, config.algorithm),
        ),
        config.training.tokens_per_microbatch,
        ranks,
        lambda i: lr_share(config.schedule, taken + i, max_steps * per_batch),
        trainee.copies,
        critic,
        critic_only=critic is not None and trainee.state.step < critic.config.warmup_steps,
    )


def beta_so_far(state: TrainingState, algorithm: Algorithm) -> float | None:
    """Where an adaptive beta has gone from the config's; None where it has yet to begin."""
    kl = algorithm.kl
    return None if isinstance(kl, NoKL) or state.kl_beta_from != kl.beta else state.kl_beta


def advanced(
    state: TrainingState,
    config: RLConfig,
    metrics: dict[str, float],
    critic: Critic | None = None,
) -> TrainingState:
    """The state after one more batch, of these `metrics`."""
    algorithm = config.algorithm
    taken = algorithm.minibatches * algorithm.epochs_per_batch
    samples = algorithm.prompts_per_step * algorithm.samples_per_prompt
    beta, beta_from = state.kl_beta, state.kl_beta_from
    kl = metrics.get("train/kl_per_sample")
    if not isinstance(algorithm.kl, NoKL) and algorithm.kl.adaptive and kl is not None:
        beta = adapted_beta(algorithm.kl.adaptive, metrics["train/kl_beta"], kl, samples)
        beta_from = algorithm.kl.beta
    return replace(
        state,
        step=state.step + 1,
        version=state.version + 1,
        # Where a batch ended early, too: the schedule counts batches, not what became of them.
        optimizer_steps=state.optimizer_steps + taken,
        kl_beta=beta,
        kl_beta_from=beta_from,
        critic_moments=astuple(critic.moments) if critic else state.critic_moments,
    )
