"""Supervised training on rows with one answer, on pairs of answers, and on plain text: the training
script, to be read top to bottom.

Each step: next rows -> train -> validate now and then -> checkpoint -> report. All ranks know the
order of the rows, and each rank reads its part of them. Rank 0 decides when the run ends. Every
checkpoint holds the position in the order, so a killed run resumes exactly.

nanochat's conversations in one packed row attend to each other. Here each conversation sees only
itself, and padding costs nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from learner.assembly import prepare
from learner.batch.cost import SequenceCost
from learner.batch.dealing import deal
from learner.batch.sft_rows import Example
from learner.batch.sft_steps import SFTStep, StepRow
from learner.coordinate.crash_limit import CrashLimit
from learner.coordinate.run_rank import RunRank, share_gradients, take_over
from learner.coordinate.sft_coordinator import SFTCoordinator
from learner.environment import RunEnvironment
from learner.metrics.sft_metrics import smoothed, time_metrics, unbiased
from learner.metrics.step_metrics import Stopwatch
from learner.model.passes.mfu import Work, sequence_cost, supervised_work
from learner.model.passes.microbatches import MicroBatches
from learner.model.passes.moe_balance import RouterTally, balance, routing_of
from learner.model.placement.offload import present
from learner.optim.schedules import lr_share
from learner.sft_data.run_rows import SupervisedRows, open_rows
from learner.state import TrainingProgress, TrainingState
from learner.store.commands import Command
from learner.supervised_loss import SupervisedLoss, loss_of, validation_metrics, validation_sums
from services.contracts.config import SFTConfig
from services.contracts.groups.group_lengths import GroupLengths


def train_sft(config: SFTConfig, environment: RunEnvironment, crash_limit: CrashLimit) -> str:
    """Train the run to its end. Returns the kind of the command that ended it.

    Raises, with a user-readable reason: UnusableModel, UnusableRow, UnusableCheckpoint,
    DamagedFile, Fenced.
    """
    ranks = environment.ranks.sharing_rows(config.training.context_parallel)
    environment = replace(environment, ranks=ranks)
    record = take_over(ranks, environment.store)
    state = prepare(record, config, environment)
    share_gradients(state, ranks)
    # Tokenising a large dataset may be killed any number of times: finished parts are kept.
    crash_limit.idle()
    rows = open_rows(config, state, environment)
    if rows is None:
        return ranks.from_first(lambda: environment.early_end.encode()).decode()
    crash_limit.busy(record.committed_step + 1)
    batches = MicroBatches(ranks, config.training.tokens_per_microbatch)
    # For pairs of answers, the reference model makes one extra pass.
    work = supervised_work(state.loaded.model, ranks, int(state.copies.reference is not None))
    run = SupervisedRun(config, rows, batches, sequence_cost(state.loaded.model), work)
    rank: RunRank
    if ranks.first:
        rank = SFTCoordinator(config, rows.max_steps, environment, state, work)
    else:
        rank = RunRank(config, environment, state)
    try:
        rank.begin()
        if rows.validation and not state.progress.step:
            rank.report(validate(run, state))
        while True:
            command = rank.await_command(crash_limit)
            if command.kind != "train":
                break
            watch = Stopwatch("rows", "training", "validation", "checkpointing")
            if command.max_steps > rows.max_steps:
                rows.steps.run_on()
            step = rows.steps.next()
            assert step is not None
            examples = rows.examples(run.dealt(step.uses))
            watch.lap("rows")
            metrics = train(run, state, command, step, examples)
            watch.lap("training")
            if rows.validation and validates(command):
                metrics |= validate(run, state)
                watch.lap("validation")
            rank.checkpoint()
            watch.lap("checkpointing")
            rank.report(metrics | time_metrics(watch.seconds), len(step.uses), step.tokens)
        return rank.end(command, crash_limit)
    finally:
        rank.close()


@dataclass(frozen=True)
class SupervisedRun:
    config: SFTConfig
    rows: SupervisedRows
    batches: MicroBatches
    cost: SequenceCost
    work: Work | None
    """None: the model's config does not name its sizes."""

    def dealt(self, uses: Sequence[StepRow]) -> list[StepRow]:
        """Return this rank's part of the rows of a step."""
        ranks = self.batches.ranks
        lengths = [GroupLengths(1, (max(use.tokens - 1, 1),)) for use in uses]
        return [uses[i] for i in deal(lengths, ranks.parts, self.cost)[ranks.part]]


def validates(command: Command) -> bool:
    """Whether a validation follows the step of a command."""
    return command.step % command.validate_every == 0 or command.step == command.max_steps


def train(
    run: SupervisedRun,
    state: TrainingState,
    command: Command,
    step: SFTStep,
    examples: list[Example],
) -> dict[str, float]:
    """Do one optimizer step on `examples`, this rank's part of `step`, and advance `state` by one
    step. Returns metrics, which are the same on every rank."""
    config, rows, batches = run.config, run.rows, run.batches
    before, names = state.progress.step, rows.names[: len(config.data.components)]
    loss = loss_of(config, state, examples, len(names), batches)
    routing = routing_of(state.policy)
    routers = RouterTally(routing) if routing else None
    if command.lr is not None:
        state.optimizers.set_peak(command.lr)
    rate = state.optimizers.set_lr(lr_share(config.schedule, before, command.max_steps))
    state.optimizers.set_momentum(before)
    given, computed = batches.ranks.sum(backward(state.policy, loss, batches, routers))
    shared = 1 - computed / max(given, 1.0)
    with present(state.offloads, changed=True):
        norm = state.optimizers.step()
    metrics = loss.metrics(names, batches.ranks)
    flops = flops_of(run.work, step, 1 - shared, loss.together) if run.work else 0.0
    state.progress = advanced(state.progress, step, metrics["train/loss"], flops)
    supervised = state.progress.supervised
    assert supervised is not None
    metrics |= {
        "train/lr": rate,
        "train/grad_norm": norm,
        "train/loss_smoothed": unbiased(supervised.smoothed, before + 1),
        "train/epoch": step.done / rows.epoch_rows,
        "train/tokens": float(supervised.tokens),
        "train/shared_tokens": shared,
        "data/skipped_rows": float(step.skipped),
        "data/cropped": step.lost / max(step.lost + step.tokens, 1),
    }
    if config.packing:
        metrics["data/padded"] = step.padded / config.packing.tokens_per_step
    if run.work:
        metrics["train/flops"] = supervised.flops
    if routers and (router_metrics := routers.metrics(batches.ranks)):
        metrics |= router_metrics
        metrics["train/total_loss"] = metrics["train/loss"] + router_metrics["router/loss"]
    return metrics


def flops_of(work: Work, step: SFTStep, computed: float, sequences: int) -> float:
    """Return the FLOPs of training `step`. `computed`: share of the rows' tokens that the passes
    computed; `sequences`: sequences in a row, about equally long."""
    squares = sum(use.tokens * use.tokens for use in step.uses) * computed / sequences
    return work.flops(step.tokens * computed, squares, 1)


def advanced(
    progress: TrainingProgress, step: SFTStep, loss: float, flops: float
) -> TrainingProgress:
    assert progress.supervised is not None
    supervised = replace(
        progress.supervised,
        position=step.position,
        waiting=step.waiting,
        tokens=progress.supervised.tokens + step.tokens,
        flops=progress.supervised.flops + flops,
        smoothed=smoothed(progress.supervised.smoothed, loss, progress.step),
    )
    after = progress.step + 1
    return replace(progress, step=after, version=after, supervised=supervised)


def backward(
    policy: nn.Module,
    loss: SupervisedLoss,
    batches: MicroBatches,
    routers: RouterTally | None = None,
) -> tuple[int, int]:
    """Compute the gradients of `loss` and of the routers' terms. Returns the tokens of this rank's
    rows, and the tokens that each pass computed: rows that share a prefix compute it once."""
    rows_tokens = computed = 0
    balanced = balance(policy, loss.rows, loss.tokens, batches)
    for chosen, row in batches.backward(policy, loss.rows, together=loss.together):
        logprobs, _ = policy(row)
        value = loss.of(logprobs, chosen) if chosen else logprobs.sum() * 0.0
        if chosen:
            rows_tokens += row.sequence_tokens
            computed += len(row.tokens)
            if balanced:
                terms = balanced.loss()
                value = value + terms
                if routers:
                    routers.add(balanced.routed, terms)
        (value * batches.ranks.size).backward()
    return rows_tokens, computed


def validate(run: SupervisedRun, state: TrainingState) -> dict[str, float]:
    """Return the loss per token in nats and the bits per byte of the rows' text. For pairs of
    answers, return the metrics of training. Records in `state` whether this is the best validation
    so far.

    Tokens that spell no text (end of sequence, special tokens, the chat template's) count in the
    loss only: bits per byte leave out their nats, as in nanochat.
    """
    config, names = run.config, run.rows.names
    sums: torch.Tensor | float = 0.0
    for block in run.rows.validation_blocks():
        examples = run.rows.examples(run.dealt(block))
        sums = sums + validation_sums(config, state, examples, len(names), run.batches)
    assert isinstance(sums, torch.Tensor)
    metrics = validation_metrics(config, names, sums, run.batches.ranks)
    best = config.validation.best
    state.progress = judged(state.progress, metrics[f"validation/{best}"])
    supervised = state.progress.supervised
    assert supervised is not None
    if supervised.best_loss is not None and supervised.best_step is not None:
        if best == "loss":
            metrics["validation/best_loss"] = supervised.best_loss
        else:
            metrics["validation/best_bits_per_byte"] = supervised.best_loss
        metrics["validation/best_step"] = float(supervised.best_step)
    return metrics


def judged(progress: TrainingProgress, loss: float) -> TrainingProgress:
    """Return the progress after a validation with this `loss`, or bits per byte. A NaN is never the
    best value: it would stay the lowest forever."""
    supervised = progress.supervised
    assert supervised is not None
    best = supervised.best_loss
    if math.isfinite(loss) and (best is None or not math.isfinite(best) or loss < best):
        supervised = replace(supervised, best_step=progress.step, best_loss=loss, since_best=0)
    else:
        supervised = replace(supervised, since_best=supervised.since_best + 1)
    return replace(progress, supervised=supervised)
