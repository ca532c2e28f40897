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
from dataclasses import replace

import torch
from torch import nn

from learner.assembly import prepare
from learner.batch.cost import SequenceCost
from learner.batch.dealing import deal
from learner.batch.sft_rows import Example
from learner.batch.sft_steps import SFTStep, StepRow
from learner.coordinate.crash_limit import CrashLimit
from learner.coordinate.follower import RankFollower
from learner.coordinate.ranks import share_gradients, take_over
from learner.coordinate.run_rank import RunRank
from learner.coordinate.sft_coordinator import SFTCoordinator
from learner.distributed import Ranks
from learner.environment import RunEnvironment
from learner.model.passes.mfu import Work, sequence_cost, supervised_work
from learner.model.passes.microbatches import backward_rows, forward_rows
from learner.model.passes.moe_balance import RouterTally, balance, routing_of
from learner.model.placement.offload import present
from learner.optim.schedules import lr_share
from learner.report.sft_metrics import Laps, smoothed, unbiased
from learner.sft_data.read_ahead import ReadAhead
from learner.sft_data.supervised_rows import SupervisedRows, open_rows
from learner.state import TrainingProgress, TrainingState
from learner.supervised import SupervisedLoss, loss_of, validation_metrics, validation_sums
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
    # For pairs of answers, the reference model makes one extra pass.
    passes = int(state.copies.reference is not None)
    cost = sequence_cost(state.loaded.model)
    work = supervised_work(state.loaded.model, ranks, passes)
    rank: RunRank
    if ranks.first:
        rank = SFTCoordinator(config, rows.max_steps, environment, state, work)
    else:
        rank = RankFollower(config, environment, state)
    ahead = ReadAhead(rows, lambda uses: dealt(uses, cost, ranks))
    try:
        rank.begin()
        if rows.validation and not state.progress.step:
            rank.report(validate(state, rows, config, ranks, cost))
        while True:
            command = rank.await_command(crash_limit)
            if command.kind != "train":
                break
            laps = Laps()
            step, examples = ahead.next(is_last=state.progress.step + 1 >= rows.max_steps)
            laps.lap("rows")
            metrics = train(state, step, examples, rows, config, ranks, work)
            laps.lap("training")
            if rows.validation and validates(config, state.progress, rows.max_steps):
                ahead.wait()
                metrics |= validate(state, rows, config, ranks, cost)
                laps.lap("validation")
            rank.checkpoint()
            laps.lap("checkpointing")
            tokens = sum(use.tokens for use in step.uses)
            rank.report(metrics | laps.metrics(), len(step.uses), tokens)
        return rank.end(command, crash_limit)
    finally:
        ahead.close()
        rank.close()


def dealt(uses: Sequence[StepRow], cost: SequenceCost, ranks: Ranks) -> list[StepRow]:
    """Return this rank's part of the rows of a step."""
    lengths = [GroupLengths(1, (max(use.tokens - 1, 1),)) for use in uses]
    return [uses[i] for i in deal(lengths, ranks.parts, cost)[ranks.part]]


def validates(config: SFTConfig, progress: TrainingProgress, max_steps: int) -> bool:
    """Whether a validation follows the last trained step."""
    return progress.step % config.validation.every == 0 or progress.step == max_steps


def train(
    state: TrainingState,
    step: SFTStep,
    examples: list[Example],
    rows: SupervisedRows,
    config: SFTConfig,
    ranks: Ranks,
    work: Work | None,
) -> dict[str, float]:
    """Do one optimizer step on `examples`, this rank's part of `step`, and advance `state` by one
    step. Returns metrics, which are the same on every rank."""
    before, names = state.progress.step, rows.names[: len(config.data.components)]
    loss = loss_of(config, state, examples, len(names), ranks)
    routing = routing_of(state.policy)
    routers = RouterTally(routing) if routing else None
    budget = config.training.tokens_per_microbatch
    rate = state.optimizers.set_lr(lr_share(config.schedule, before, rows.max_steps))
    state.optimizers.set_momentum(before)
    given, computed = ranks.sum(backward(state.policy, loss, budget, ranks, routers))
    shared = 1 - computed / max(given, 1.0)
    with present(state.offloads, changed=True):
        norm = state.optimizers.step()
    metrics = loss.metrics(names, ranks)
    state.progress = advanced(
        state.progress, step, metrics["train/loss"], work, 1 - shared, loss.together
    )
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
        "data/cropped": step.lost / max(step.lost + sum(u.tokens for u in step.uses), 1),
    }
    if config.packing:
        metrics["data/padded"] = step.padded / config.packing.tokens_per_step
    if work:
        metrics["train/flops"] = supervised.flops
    if routers and (router_metrics := routers.metrics(ranks)):
        metrics |= router_metrics
        metrics["train/total_loss"] = metrics["train/loss"] + router_metrics["router/loss"]
    return metrics


def advanced(
    progress: TrainingProgress,
    step: SFTStep,
    loss: float,
    work: Work | None,
    computed: float,
    sequences: int,
) -> TrainingProgress:
    """Return the progress after one more step with this `loss`. `computed`: share of the rows'
    tokens that the passes computed; `sequences`: sequences in a row, about equally long."""
    assert progress.supervised is not None
    tokens = sum(use.tokens for use in step.uses)
    squares = sum(use.tokens * use.tokens for use in step.uses) * computed / sequences
    flops = work.flops(tokens * computed, squares, 1) if work else 0.0
    supervised = replace(
        progress.supervised,
        position=step.position,
        waiting=step.waiting,
        tokens=progress.supervised.tokens + tokens,
        flops=progress.supervised.flops + flops,
        smoothed=smoothed(progress.supervised.smoothed, loss, progress.step),
    )
    after = progress.step + 1
    return replace(progress, step=after, version=after, supervised=supervised)


def backward(
    policy: nn.Module,
    loss: SupervisedLoss,
    budget: int,
    ranks: Ranks,
    routers: RouterTally | None = None,
) -> tuple[int, int]:
    """Compute the gradients of `loss` and of the routers' terms. Returns the tokens of this rank's
    rows, and the tokens that each pass computed: rows that share a prefix compute it once."""
    rows_tokens = computed = 0
    balanced = balance(
        policy,
        loss.tokens,
        ranks,
        lambda _: None,
        forward_rows(policy, loss.rows, budget, ranks),
    )
    rows = backward_rows(policy, loss.rows, budget, ranks, together=loss.together)
    for chosen, row in rows:
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
        (value * ranks.size).backward()
    return rows_tokens, computed


def validate(
    state: TrainingState,
    rows: SupervisedRows,
    config: SFTConfig,
    ranks: Ranks,
    cost: SequenceCost,
) -> dict[str, float]:
    """Return the loss per token in nats and the bits per byte of the rows' text. For pairs of
    answers, return the metrics of training. Records in `state` whether this is the best validation
    so far.

    Tokens that spell no text (end of sequence, special tokens, the chat template's) count in the
    loss only: bits per byte leave out their nats, as in nanochat.
    """
    sums: torch.Tensor | float = 0.0
    for block in rows.validation_blocks():
        examples = rows.examples(dealt(block, cost, ranks))
        sums = sums + validation_sums(config, state, examples, len(rows.names), ranks)
    assert isinstance(sums, torch.Tensor)
    metrics = validation_metrics(config, rows.names, sums, ranks)
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
