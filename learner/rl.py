"""Reinforcement learning of one policy: the training script, to be read top to bottom.

Each step: next batch -> fetch -> train -> publish -> checkpoint -> report. Rank 0 coordinates: it
collects a batch of groups and records its plan. Every rank fetches its own samples and trains. Then
rank 0 publishes the new version, and makes a checkpoint now and then. If the model is sharded, the
other ranks contribute their slices to versions and write their parts of checkpoints.

Two invariants hold at every line: a version is published only from weights that a recorded plan led
to, and groups are acknowledged only by the commit of a checkpoint that was trained on them.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from itertools import chain

import msgspec

from learner.assembly import prepare
from learner.batch.packing import minibatches
from learner.batch.samples import TrainingSample, group_reward, group_samples, token_staleness
from learner.batch.staleness import Ancestry
from learner.coordinate.coordinator import Coordinator
from learner.coordinate.crash_limit import CrashLimit
from learner.coordinate.run_rank import RunRank, share_gradients, take_over
from learner.distributed import Ranks
from learner.environment import RunEnvironment
from learner.errors import UnreadableGroups
from learner.metrics.reward_metrics import outcome_sums
from learner.metrics.rollout_rows import TrainedGroup
from learner.model.passes.microbatches import MicroBatches
from learner.model.value_model import TrainedCritic
from learner.objective.baselines import Baselines, GroupReward
from learner.objective.compose import Objective
from learner.objective.kl import adapted_beta
from learner.optim.schedules import lr_share
from learner.shared_gpu import TrainingGPU, training_gpu
from learner.state import TrainingProgress, TrainingState
from learner.step import train_batch
from learner.store.commands import Command, GroupShare
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import NoKL, RunningMean
from services.contracts.groups.trajectory import TrajectoryGroup
from services.contracts.groups.trajectory import decode as decode_group
from services.contracts.schema import SchemaMismatch


def train_rl(config: RLConfig, environment: RunEnvironment, crash_limit: CrashLimit) -> str:
    """Train the run to its end. Returns the kind of the command that ended it.

    Raises, with a user-readable reason: UnusableModel, UnusableCheckpoint, DamagedFile, Fenced.
    """
    root = environment.volume.root
    with training_gpu(config, environment.ranks, root, lambda: environment.should_end) as gpu:
        return train_on(gpu, config, environment, crash_limit)


def train_on(
    gpu: TrainingGPU, config: RLConfig, environment: RunEnvironment, crash_limit: CrashLimit
) -> str:
    """Train the run on `gpu`. See `train_rl`."""
    ranks = environment.ranks.sharing_rows(config.training.context_parallel)
    environment = replace(environment, ranks=ranks)
    record = take_over(ranks, environment.store)
    max_steps = record.max_steps
    if max_steps is None:
        raise ValueError(f"run {record.id} has no max_steps: submit it again")
    if not gpu.take():
        return environment.early_end
    state = prepare(record, config, environment)
    share_gradients(state, ranks)
    rank: RunRank
    if ranks.first:
        rank = Coordinator(config, max_steps, environment, state, gpu)
    else:
        rank = RunRank(config, environment, state)
    try:
        rank.begin()
        while True:
            command = rank.await_command(crash_limit)
            if command.kind != "train":
                break
            try:
                batch = fetch(command, config, ranks, environment.store, state.progress)
            except UnreadableGroups as error:
                rank.requeue(command.step, error.reasons)
                continue
            metrics = train(state, batch, config, ranks, command)
            rank.publish()
            rank.checkpoint()
            rank.keep_rollouts(batch.groups, batch.outcomes["row_tokens"])
            rank.report(metrics, batch.outcomes)
        return rank.end(command, crash_limit)
    finally:
        rank.close()


@dataclass(frozen=True)
class RankBatch:
    minibatches: list[list[TrainingSample]]
    """Samples of each minibatch, pass after pass."""
    outcomes: dict[str, float]
    """Sums over all ranks (`outcome_sums`)."""
    groups: list[TrainedGroup]
    """This rank's answers by group."""
    baselines: Baselines
    """The running means including this batch."""
    compared: dict[str, float]
    """Metrics of the running means before this batch; empty without `running_mean`."""


@dataclass(frozen=True)
class FetchedGroup:
    """A group with samples that this rank trains."""

    share: GroupShare
    group: TrajectoryGroup
    max_tokens: int
    """The longest completion allowed in the group's dataset."""


def read_group(store: RunStore, share: GroupShare, stored: bytes | None) -> TrajectoryGroup:
    """Read the group of a share. `stored`: the stream's value, its payload or a reference to it.
    Raises ValueError if the payload is missing or damaged, SchemaMismatch, GatewayAway."""
    if stored is None:
        raise ValueError("its payload is not in the stream")
    group = decode_group(store.payload(stored))
    if group.samples != share.of:
        raise ValueError(f"it has {group.samples} samples, its entry in the stream says {share.of}")
    # With 16 answers of 32k tokens the experts take 200 MB, mostly for samples of other ranks.
    group.keep_experts(share.samples)
    return group


def read_groups(
    command: Command, config: RLConfig, ranks: Ranks, store: RunStore
) -> list[list[FetchedGroup]]:
    """Read the groups of this rank's shares, by minibatch. All ranks call this together, so that no
    rank waits for a rank that cannot read its share. Raises UnreadableGroups on all ranks,
    SchemaMismatch, GatewayAway."""
    longest = {name: dataset.sampling.max_tokens for name, dataset in config.datasets.items()}
    unreadable: dict[int, str] = {}
    minibatches: list[list[FetchedGroup]] = []
    for shares in (by_rank[ranks.part] for by_rank in command.minibatches):
        minibatches.append([])
        payloads = store.call(store.trajectories.payloads, [share.position for share in shares])
        for share, stored in zip(shares, payloads, strict=True):
            try:
                group = read_group(store, share, stored)
            except SchemaMismatch:
                raise
            except ValueError as error:
                unreadable[share.position] = f"the group of task {share.position}: {error}"
                continue
            # The run may have had another mixture before it was resumed.
            max_tokens = longest.get(group.header.dataset, config.sampling.max_tokens)
            minibatches[-1].append(FetchedGroup(share, group, max_tokens))
    for message in ranks.gather(msgspec.msgpack.encode(unreadable)):
        unreadable |= msgspec.msgpack.decode(message, type=dict[int, str])
    if unreadable:
        raise UnreadableGroups(unreadable)
    return minibatches


def fetch(
    command: Command, config: RLConfig, ranks: Ranks, store: RunStore, progress: TrainingProgress
) -> RankBatch:
    """Fetch this rank's samples of each minibatch of each pass, from the groups that `command`
    names. Raises as `read_groups` does."""
    algorithm, advantage = config.algorithm, config.algorithm.advantage
    minibatches = read_groups(command, config, ranks, store)
    fetched = list(chain.from_iterable(minibatches))
    rewards = batch_rewards(fetched, algorithm, ranks)
    baselines = progress.baselines.begun(rewards)
    ancestry, version = Ancestry(tuple(progress.lineages)), command.step - 1
    samples = {
        each.share.position: group_samples(
            each.group,
            algorithm,
            each.max_tokens,
            token_staleness(each.group, ancestry, version),
            {*each.share.samples},
            baselines.of(each.group.header.prompt_key),
        )
        for each in fetched
    }
    trained = {}
    for each in fetched:
        # The samples have their own copies.
        each.group.keep_experts(())
        position, numbers = each.share.position, {*each.share.samples}
        trained[position] = [sample for sample in samples[position] if sample.number in numbers]
    passes = [
        [sample for each in part for sample in trained[each.share.position]] for part in minibatches
    ]
    for number in range(1, algorithm.epochs_per_batch):
        passes += later_pass(command, trained, config, number)
    groups = [
        TrainedGroup(each.group, trained[each.share.position], each.share.samples)
        for each in fetched
    ]
    outcomes = ranks.sum_named(batch_sums(fetched, trained, algorithm))
    if not isinstance(advantage, RunningMean):
        return RankBatch(passes, outcomes, groups, progress.baselines, {})
    after = baselines.after(rewards, advantage.decay)
    return RankBatch(passes, outcomes, groups, after, baselines.metrics(rewards))


def batch_sums(
    fetched: Sequence[FetchedGroup], trained: dict[int, list[TrainingSample]], algorithm: Algorithm
) -> dict[str, float]:
    """Return this rank's sums over the batch. One rank counts a group."""
    counted = [each.group for each in fetched if each.share.counts]
    sums = outcome_sums(counted, algorithm.samples_per_prompt)
    lengths = [len(sample.tokens) for part in trained.values() for sample in part if sample.trains]
    sums["row_tokens"] = float(sum(lengths))
    sums["row_tokens_squared"] = float(sum(length * length for length in lengths))
    return sums


def batch_rewards(
    fetched: Sequence[FetchedGroup], algorithm: Algorithm, ranks: Ranks
) -> list[GroupReward]:
    """Return the rewards of all groups of the batch, in the order of their tasks, the same on every
    rank. Return no rewards without `running_mean`. `fetched`: this rank's groups."""
    if not isinstance(algorithm.advantage, RunningMean):
        return []
    rewards: dict[int, GroupReward | None] = {
        each.share.position: group_reward(each.group, algorithm, each.max_tokens)
        for each in fetched
    }
    for message in ranks.gather(msgspec.msgpack.encode(rewards)):
        rewards |= msgspec.msgpack.decode(message, type=dict[int, GroupReward | None])
    return [reward for _, reward in sorted(rewards.items()) if reward is not None]


def later_pass(
    command: Command, trained: dict[int, list[TrainingSample]], config: RLConfig, number: int
) -> list[list[TrainingSample]]:
    """Return this rank's samples of each minibatch of pass `number`: the samples of the first pass
    (`trained`, by task), in newly cut minibatches."""
    positions = {share.position for part in command.minibatches for r in part for share in r}
    parts = len(command.minibatches)
    return [
        [sample for position in part for sample in trained.get(position, [])]
        for part in minibatches(
            sorted(positions), parts, config.training.seed, command.step, number
        )
    ]


def train(
    state: TrainingState, batch: RankBatch, config: RLConfig, ranks: Ranks, command: Command
) -> dict[str, float]:
    """Do the batch's optimizer steps, and advance `state` by one step. Returns metrics."""
    algorithm, step = config.algorithm, state.progress.step
    updates = algorithm.minibatches * algorithm.epochs_per_batch
    if command.lr is not None:
        state.optimizers.set_peak(command.lr)
    metrics = train_batch(
        state,
        batch.minibatches,
        objective_of(config, state.progress),
        MicroBatches(ranks, config.training.tokens_per_microbatch),
        lambda update: lr_share(config.schedule, step, command.max_steps, update, updates),
    )
    progress = advanced(state.progress, config, metrics, state.critic)
    state.progress = replace(progress, baselines=batch.baselines)
    state.copies.after_step(state.progress.step, state.loaded.model)
    return metrics | batch.compared


def objective_of(config: RLConfig, progress: TrainingProgress) -> Objective:
    return Objective(
        config.algorithm,
        config.sampling.temperature,
        config.max_tokens,
        beta_so_far(progress, config.algorithm),
    )


def beta_so_far(progress: TrainingProgress, algorithm: Algorithm) -> float | None:
    """Return the adapted beta, or None if the adaptation has not begun."""
    kl = algorithm.kl
    return None if isinstance(kl, NoKL) or progress.kl_beta_from != kl.beta else progress.kl_beta


def advanced(
    progress: TrainingProgress,
    config: RLConfig,
    metrics: dict[str, float],
    critic: TrainedCritic | None = None,
) -> TrainingProgress:
    algorithm = config.algorithm
    samples = algorithm.prompts_per_step * algorithm.samples_per_prompt
    beta, beta_from = progress.kl_beta, progress.kl_beta_from
    adaptive = None if isinstance(algorithm.kl, NoKL) else algorithm.kl.adaptive
    # The metric is missing if no sample was trained.
    if adaptive and not isinstance(algorithm.kl, NoKL) and "train/kl_per_sample" in metrics:
        kl = metrics["train/kl" if adaptive.per == "token" else "train/kl_per_sample"]
        beta = adapted_beta(adaptive, metrics["train/kl_beta"], kl, samples)
        beta_from = algorithm.kl.beta
    return replace(
        progress,
        step=progress.step + 1,
        version=progress.version + 1,
        kl_beta=beta,
        kl_beta_from=beta_from,
        critic_moments=astuple(critic.moments) if critic else progress.critic_moments,
    )
