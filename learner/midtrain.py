"""Supervised training on prompt–answer rows: the training script, to be read top to bottom.

From nothing (a Llama and a character tokenizer) or from an existing model; ends with a checkpoint
that a `rl` run starts from. Left out against nanochat: best-fit packing into rows of one length
(sequences are packed without padding here, whole, each with its own beginning and attention), and
checkpoints on the way: a crash starts over, and a run of this size takes minutes.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from learner.balance import RouterTally, balance
from learner.checkpoint import TrainingState, capture
from learner.checkpointer import Checkpointer
from learner.crashes import Crashes
from learner.disk import CannotWrite, Disk
from learner.distributed import Ranks
from learner.link import RunLink
from learner.logprobs import PackedRow, TokenLogprobs, packed_row
from learner.metrics import peak_memory
from learner.metrics_file import MetricsFile
from learner.models import LoadedModel, load_model, make_model
from learner.optimizers import Optimizers
from learner.packing import micro_batches, micro_batches_needed, share
from learner.passes import micro_batch_tokens, synchronised
from learner.routing import policy_routing
from learner.rows import Lesson, UnusableRow, divided, lesson
from learner.schedules import lr_share
from services.contracts.config import MidtrainConfig
from services.contracts.config.model import ScratchModel
from services.contracts.records import RunRecord
from services.datasets import DatasetReader
from services.logs import get_logger
from services.volume import Volume

log = get_logger(__name__)

PROGRESS_SECONDS = 1.0


def train_midtrain(
    record: RunRecord,
    config: MidtrainConfig,
    ranks: Ranks,
    link: RunLink,
    volume: Volume,
    stop: threading.Event,
    crashes: Crashes,
) -> str:
    """Train `record` to its end. Returns `finish`, `cancel` or `yield`.

    Raises what the message of says why: UnusableModel, UnusableRow, DamagedFile, Fenced.
    """
    if ranks.first:
        link.acquire()
    loaded = ranks.together(lambda: starting_model(config, ranks, link, volume))
    training, validation = ranks.together(lambda: lessons(config, loaded, link, volume))
    routing = ranks.together(lambda: policy_routing(loaded.model, config.router, "router"))
    policy: nn.Module = TokenLogprobs(loaded.model.eval(), loaded.autocast, routing)
    if ranks.size > 1:
        policy = DistributedDataParallel(policy, forward_sync_buffers=False)
    optimizers = Optimizers(loaded.model, config.optimizer)
    order = endless_order(len(training), config.training.seed)
    steps = config.training.max_steps
    budget = micro_batch_tokens(config.training.tokens_per_microbatch, ranks.device)
    disk = Disk(volume.root, link, stop)
    file = MetricsFile(volume.root, link.run, disk)
    progress = Progress(steps, link, file) if ranks.first else None
    # All that rank 0 alone does between two steps, so that the others hear of it where it fails.
    turn: Callable[[], None] | None = progress.begin if progress else None

    step = 0
    while (ending := what_next(ranks, turn, step == steps, link, stop)) == "train":
        crashes.working(step + 1)
        rows = [training[next(order)] for _ in range(config.training.rows_per_step)]
        mine = share([len(row.tokens) for row in rows], ranks.size)[ranks.rank]
        tokens = sum(int(row.wanted.sum()) for row in rows)
        seen = RouterTally(routing) if routing else None
        loss = backward(policy, [rows[i] for i in mine], tokens, budget, ranks, seen)
        lr = optimizers.set_lr(lr_share(config.schedule, step, steps))
        norm = optimizers.step()
        step += 1
        metrics = {"train/loss": ranks.sum([loss])[0], "train/lr": lr, "train/grad_norm": norm}
        if seen:
            metrics |= seen.metrics(ranks)
        if step % config.training.validate_every == 0 or step == steps:
            metrics |= validate(policy, validation, budget, ranks)
        if progress:
            size = len(rows), sum(len(row.tokens) for row in rows)
            turn = partial(progress.report, step, metrics, *size)

    if ranks.first and ending != "yield":
        state = TrainingState(record.id, step, step, step, link.lineages(), record.id)
        checkpointer = Checkpointer(volume.root, 1, disk, link, (file,))
        try:
            checkpointer.submit(capture(loaded, optimizers, state))
            checkpointer.wait()
        except CannotWrite as error:
            log.error("the run ends before its model is written", reason=str(error))
            return "cancel" if link.cancelled() else "yield"
        finally:
            checkpointer.close()
    return ending


def starting_model(
    config: MidtrainConfig, ranks: Ranks, link: RunLink, volume: Volume
) -> LoadedModel:
    """The model before the first step; the same weights on every rank."""
    if isinstance(config.model, ScratchModel):
        return make_model(config.model, config.training.seed, ranks.device)
    path = link.model_path(config.model.path, volume)
    return load_model(path, config.model, ranks.device)


def lessons(
    config: MidtrainConfig, loaded: LoadedModel, link: RunLink, volume: Volume
) -> tuple[list[Lesson], list[Lesson]]:
    """The datasets' rows in tokens: those to train on, and those kept out for validation. Raises
    UnusableRow for the first that cannot be learned."""
    found: list[tuple[Lesson, int]] = []
    for name, times in Counter([config.data.dataset, *config.data.mix]).items():
        reader: DatasetReader = link.dataset(name, volume)
        for i in range(len(reader)):
            try:
                row = lesson(reader.row(i), i, config.data, loaded.tokenizer, loaded.max_length)
            except UnusableRow as error:
                raise UnusableRow(f"in {reader.record.name}, {error}") from error
            found.append((row, times))
    if not found:
        raise UnusableRow(f"dataset {config.data.dataset} is empty: add rows to it first")
    return divided(found, config.training.validation_share, config.training.seed)


def endless_order(rows: int, seed: int) -> Iterator[int]:
    """Row indices for ever: a fresh permutation each epoch, the same on every rank."""
    generator = np.random.Generator(np.random.PCG64(seed + 1))
    while True:
        yield from generator.permutation(rows).tolist()


def what_next(
    ranks: Ranks,
    turn: Callable[[], None] | None,
    over: bool,
    link: RunLink,
    stop: threading.Event,
) -> str:
    """What rank 0 finds after its `turn`, on every rank: `train` on, or `finish`, `cancel`,
    `yield`."""

    def find() -> bytes:
        assert turn is not None
        turn()
        if over:
            return b"finish"
        return b"yield" if stop.is_set() else b"cancel" if link.cancelled() else b"train"

    return ranks.told(find if turn else None).decode()


def backward(
    policy: nn.Module,
    rows: list[Lesson],
    tokens: int,
    budget: int,
    ranks: Ranks,
    seen: RouterTally | None = None,
) -> float:
    """Gradient of −Σ log π / `tokens` (the count over all ranks), and of what balances routers.
    Returns this rank's share of the first, in nats."""
    sizes = [len(row.tokens) for row in rows]
    passes = int(ranks.max([max(micro_batches_needed(sizes, budget), 1)])[0])
    total = 0.0
    parts = [[rows[i] for i in indices] for indices in micro_batches(sizes, budget, passes)]
    ways = (_row(chosen, ranks) for chosen in parts if chosen)
    balanced = balance(policy, tokens, ranks, lambda _: None, ways)
    for number, chosen in enumerate(parts, 1):
        with synchronised(policy, number == passes):
            logprobs, _ = policy(_row(chosen or [EMPTY], ranks))
            loss = -logprobs.sum() / tokens if chosen else logprobs.sum() * 0.0
            total += float(loss.detach())
            if chosen and balanced:
                loss = loss + balanced.loss()
                if seen:
                    seen.add(balanced.routed)
            (loss * ranks.size).backward()
    return total


def _row(lessons: list[Lesson], ranks: Ranks) -> PackedRow:
    return packed_row([r.tokens for r in lessons], [r.wanted for r in lessons], ranks.device)


# Nothing left for this rank, but DDP's all-reduce needs its backward pass.
EMPTY = Lesson(torch.zeros(2, dtype=torch.int64), torch.tensor([False, True]), 0)


@torch.no_grad()
def validate(policy: nn.Module, rows: list[Lesson], budget: int, ranks: Ranks) -> dict[str, float]:
    """Loss per token in nats, and bits per byte of the text that the counted tokens spell."""
    if not rows:
        return {}
    inner = policy.module if isinstance(policy, DistributedDataParallel) else policy
    mine = share([len(row.tokens) for row in rows], ranks.size)[ranks.rank]
    nats = 0.0
    for indices in micro_batches([len(rows[i].tokens) for i in mine], budget):
        chosen = [rows[mine[i]] for i in indices]
        row = _row(chosen, ranks)
        nats -= float(inner(row)[0].sum())
    nats = ranks.sum([nats])[0]
    tokens = sum(int(row.wanted.sum()) for row in rows)
    size = sum(row.text_bytes for row in rows)
    return {
        "validation/loss": nats / tokens,
        "validation/bits_per_byte": nats / math.log(2) / max(size, 1),
    }


@dataclass
class Progress:
    """Rank 0's reports: every step to metrics.jsonl, about once a second to the run's events."""

    total: int
    link: RunLink
    file: MetricsFile

    def __post_init__(self) -> None:
        self.began = self.said = time.monotonic()
        self.tokens = self.rows = 0

    def begin(self) -> None:
        """Say that the run runs, from its first step."""
        self._write(lambda: self.file.begin(0))
        self.link.set_state("running", "")

    def report(self, step: int, metrics: dict[str, float], rows: int, tokens: int) -> None:
        """Record a step of so many rows and tokens."""
        self.tokens += tokens
        self.rows += rows
        now = time.monotonic()
        elapsed = max(now - self.began, 1e-9)
        row = {
            "step": step,
            "time": time.time(),
            **metrics,
            "throughput/tokens_per_second": self.tokens / elapsed,
            "throughput/samples_per_second": self.rows / elapsed,
            "memory/peak_bytes": peak_memory(),
        }
        self._write(lambda: self.file.add(row))
        if now - self.said >= PROGRESS_SECONDS or step == self.total or "validation/loss" in row:
            self.said = now
            self.link.step_done(step, row, kind="progress", total=self.total)

    def _write(self, write: Callable[[], object]) -> None:
        try:
            write()
        except CannotWrite as error:
            # Told to end meanwhile, which is what all ranks find next.
            log.error("a step's metrics are not written", reason=str(error))
