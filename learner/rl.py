"""Reinforcement learning of one policy: the training script, to be read top to bottom.

Each step: next batch -> fetch -> train -> publish -> checkpoint -> report. Rank 0 coordinates: it
collects a batch of groups and records its plan. Every rank fetches its own samples and trains. Then
rank 0 publishes the new version, and makes a checkpoint now and then. If the model is sharded, the
other ranks contribute their slices to versions and write their parts of checkpoints.

Two invariants hold at every line: a version is published only from weights that a recorded plan led
to, and groups are acknowledged only by the commit of a checkpoint that was trained on them.
"""

import threading
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace

import msgspec

from learner.assembly import prepare
from learner.batch.minibatches import cut
from learner.batch.samples import TrainingSample, group_reward, group_samples
from learner.batch.staleness import Ancestry
from learner.coordinate.coordinator import Coordinator
from learner.coordinate.crash_limit import CrashLimit
from learner.coordinate.follower import RankFollower
from learner.coordinate.ranks import next_command, share_gradients, take_over
from learner.distributed import Ranks
from learner.errors import UnreadableGroups
from learner.gpu_turns import TrainingGPU, training_gpu
from learner.model.value_model import TrainedCritic
from learner.objective.baselines import Baselines, GroupReward
from learner.objective.compose import Objective
from learner.objective.kl import adapted_beta
from learner.optim.schedules import lr_share
from learner.report.reward_metrics import outcome_sums
from learner.report.sample_log import PER_STEP, Picked, pick
from learner.state import TrainingProgress, TrainingState
from learner.step import train_batch
from learner.store.commands import Command, GroupShare
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import NoKL, RunningMean
from services.contracts.groups.trajectory import TrajectoryGroup
from services.contracts.groups.trajectory import decode as decode_group
from services.contracts.records import RunRecord
from services.contracts.schema import SchemaMismatch
from services.volume import Volume


def train_rl(
    record: RunRecord,
    config: RLConfig,
    ranks: Ranks,
    store: RunStore,
    volume: Volume,
    stop: threading.Event,
    crash_limit: CrashLimit,
) -> str:
    """Train `record` to its end. Returns the kind of the command that ended it.

    Raises, with a user-readable reason: UnusableModel, UnusableCheckpoint, DamagedFile, Fenced.
    """

    def ends() -> bool:
        return stop.is_set() or store.cancelled()

    with training_gpu(config, ranks, volume.root, ends) as gpu:
        return train_on(gpu, record, config, ranks, store, volume, stop, crash_limit)


def train_on(
    gpu: TrainingGPU,
    record: RunRecord,
    config: RLConfig,
    ranks: Ranks,
    store: RunStore,
    volume: Volume,
    stop: threading.Event,
    crash_limit: CrashLimit,
) -> str:
    """Train `record` on `gpu`. See `train_rl`."""
    ranks = ranks.sharing_rows(config.training.context_parallel)
    record = take_over(ranks, store)
    max_steps = record.max_steps
    if max_steps is None:
        raise ValueError(f"run {record.id} has no max_steps: submit it again")
    if not gpu.take():
        return "cancel" if store.cancelled() else "yield"
    state = prepare(record, config, ranks, store, volume)
    share_gradients(state, ranks)
    coordinator: Coordinator | RankFollower
    if ranks.first:
        coordinator = Coordinator(config, max_steps, ranks, store, volume, state, stop, gpu)
    else:
        coordinator = RankFollower(config, ranks, store, volume, state, stop)
    try:
        coordinator.begin()
        while True:
            command = next_command(coordinator, ranks, crash_limit)
            if command.kind != "train":
                break
            try:
                batch = fetch(command, config, ranks, store, state.progress)
            except UnreadableGroups as error:
                coordinator.requeue(command.step, error.reasons)
                continue
            metrics = train(state, batch, config, ranks, max_steps)
            coordinator.publish()
            coordinator.checkpoint()
            coordinator.report(metrics, batch.outcomes, batch.picked)
        return coordinator.end(command, crash_limit)
    finally:
        coordinator.close()


@dataclass(frozen=True)
class RankBatch:
    """This rank's share of a batch."""

    minibatches: list[list[TrainingSample]]
    """Samples of each minibatch, pass after pass."""
    outcomes: dict[str, float]
    """Sums over all ranks (`outcome_sums`)."""
    picked: list[Picked]
    """Completions for the log, on rank 0."""
    baselines: Baselines
    """The running means including this batch."""
    compared: dict[str, float]
    """Metrics of the running means before this batch; empty without `running_mean`."""


def read_group(store: RunStore, share: GroupShare, stored: bytes | None) -> TrajectoryGroup:
    """Read the group of a share. `stored`: the stream's value, its payload or a reference to it.
    Raises ValueError if the payload is missing or damaged, SchemaMismatch, GatewayAway."""
    if stored is None:
        raise ValueError("its payload is not in the stream")
    group = decode_group(store.payload(stored))
    if group.samples != share.of:
        raise ValueError(f"it has {group.samples} samples, its entry in the stream says {share.of}")
    # With 16 answers of 32k tokens these are 200 MB, and other ranks need most of it.
    group.keep_experts(share.samples)
    return group


def read_groups(
    store: RunStore, minibatches: list[list[GroupShare]], ranks: Ranks
) -> list[list[TrajectoryGroup]]:
    """Read the groups of this rank's shares. All ranks call this together, so that no rank waits
    for a rank that cannot read its share. Raises UnreadableGroups on all ranks, SchemaMismatch,
    GatewayAway."""
    unreadable: dict[int, str] = {}
    found: list[list[TrajectoryGroup]] = []
    for shares in minibatches:
        found.append([])
        positions = [share.position for share in shares]
        payloads = store.call(store.trajectories.payloads, positions)
        for share, stored in zip(shares, payloads, strict=True):
            try:
                found[-1].append(read_group(store, share, stored))
            except SchemaMismatch:
                raise
            except ValueError as error:
                unreadable[share.position] = f"the group of task {share.position}: {error}"
    for message in ranks.gather(msgspec.msgpack.encode(unreadable)):
        unreadable |= msgspec.msgpack.decode(message, type=dict[int, str])
    if unreadable:
        raise UnreadableGroups(unreadable)
    return found


def fetch(
    command: Command, config: RLConfig, ranks: Ranks, store: RunStore, progress: TrainingProgress
) -> RankBatch:
    """Fetch this rank's samples of each minibatch of each pass, from the groups that `command`
    names. Advantages come from whole groups. One rank counts a group in the metrics. Raises as
    `read_groups` does."""
    ancestry, algorithm = Ancestry(tuple(progress.lineages)), config.algorithm
    longest = {name: one.sampling.max_tokens for name, one in config.datasets.items()}
    version = command.step - 1
    minibatches: list[list[TrainingSample]] = []
    groups: list[TrajectoryGroup] = []
    counted: list[TrajectoryGroup] = []
    own: dict[int, list[TrainingSample]] = {}
    everything: list[TrainingSample] = []
    mine = [shares[ranks.part] for shares in command.minibatches]
    parts = read_groups(store, mine, ranks)

    def limit(group: TrajectoryGroup) -> int:
        # The run may have had another mixture before it was resumed.
        return longest.get(group.header.dataset, config.sampling.max_tokens)

    batch: list[GroupReward] = []
    if isinstance(algorithm.advantage, RunningMean):
        read = [
            pair for pairs in zip(mine, parts, strict=True) for pair in zip(*pairs, strict=True)
        ]
        batch = earned_by_all(
            {share.position: group_reward(one, algorithm, limit(one)) for share, one in read}, ranks
        )
    before = progress.baselines.begun(batch)
    for shares, part in zip(mine, parts, strict=True):
        minibatches.append([])
        for share, group in zip(shares, part, strict=True):
            # All samples of the group, because the log shows any of them, on whatever rank they
            # train.
            dealt = {*share.samples}
            of_group = group_samples(
                group,
                algorithm,
                limit(group),
                ancestry,
                version,
                len(groups),
                dealt,
                before.of(group.header.prompt_key),
            )
            # The samples have their own copies.
            group.keep_experts(())
            own[share.position] = [sample for sample in of_group if sample.number in dealt]
            minibatches[-1] += own[share.position]
            everything += of_group
            groups.append(group)
            if share.counts:
                counted.append(group)
    for number in range(1, algorithm.epochs_per_batch):
        minibatches += later_pass(command, own, config, number)
    sums = outcome_sums(counted, algorithm.samples_per_prompt)
    lengths = [len(sample.tokens) for part in own.values() for sample in part if sample.trains]
    sums["row_tokens"] = float(sum(lengths))
    sums["row_tokens_squared"] = float(sum(length * length for length in lengths))
    picked = pick(groups, everything, command.step, PER_STEP if ranks.first else 0)
    after, compared = progress.baselines, {}
    if isinstance(algorithm.advantage, RunningMean):
        after, compared = before.after(batch, algorithm.advantage.decay), before.metrics(batch)
    return RankBatch(minibatches, ranks.sum_named(sums), picked, after, compared)


def earned_by_all(own: Mapping[int, GroupReward | None], ranks: Ranks) -> list[GroupReward]:
    """Return the rewards of all groups of the batch, in the order of their tasks. `own`: rewards of
    this rank's groups, by task. The result is the same on every rank."""
    found: dict[int, GroupReward | None] = {}
    for message in ranks.gather(msgspec.msgpack.encode(own)):
        found |= msgspec.msgpack.decode(message, type=dict[int, GroupReward | None])
    return [one for _, one in sorted(found.items()) if one is not None]


def later_pass(
    command: Command, own: dict[int, list[TrainingSample]], config: RLConfig, number: int
) -> list[list[TrainingSample]]:
    """Return this rank's samples of each minibatch of pass `number`: the samples of the first pass
    (`own`, by task), in newly cut minibatches."""
    positions = {share.position for part in command.minibatches for r in part for share in r}
    parts = len(command.minibatches)
    return [
        [sample for position in part for sample in own.get(position, [])]
        for part in cut(sorted(positions), parts, config.training.seed, command.step, number)
    ]


def train(
    state: TrainingState, batch: RankBatch, config: RLConfig, ranks: Ranks, max_steps: int
) -> dict[str, float]:
    """Do the batch's optimizer steps, and advance `state` by one step. Returns metrics."""
    algorithm, step = config.algorithm, state.progress.step
    updates = algorithm.minibatches * algorithm.epochs_per_batch
    metrics = train_batch(
        state,
        batch.minibatches,
        objective_of(config, state.progress),
        config.training.tokens_per_microbatch,
        ranks,
        lambda update: lr_share(config.schedule, step, max_steps, update, updates),
    )
    progress = advanced(state.progress, config, metrics, state.critic)
    state.progress = replace(progress, baselines=batch.baselines)
    state.copies.after_step(state.progress.step, state.loaded.model)
    return metrics | batch.compared


def objective_of(config: RLConfig, progress: TrainingProgress) -> Objective:
    """Return the objective of the next batch."""
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
    """Return the progress after one more batch with these `metrics`."""
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
