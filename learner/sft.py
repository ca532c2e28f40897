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

from learner.batch.cost import SequenceCost
from learner.batch.dealing import deal
from learner.batch.sft_rows import Example, UnusableRow, divided, example
from learner.coordinate.crash_limit import CrashLimit
from learner.distributed import Ranks
from learner.model.compiling import compiles, make_trainable
from learner.model.families import device_of, unwrapped
from learner.model.folders import UnusableModel
from learner.model.loading import LoadedModel, load_model, unfit
from learner.model.logprobs import TokenLogprobs
from learner.model.mfu import sequence_cost
from learner.model.microbatches import backward_rows, check_sharing, forward_rows
from learner.model.moe_balance import RouterTally, balance
from learner.model.moe_routing import policy_routing
from learner.model.parallel import gathered, replicate, shard
from learner.model.pass_plan import agreed_plan, known_model
from learner.model.scratch import make_model
from learner.optim.optimizers import Optimizers, check_optimizer
from learner.optim.schedules import lr_share
from learner.persist.checkpoint import capture, part_of
from learner.persist.checkpoint_writer import CheckpointWriter, PartWriter, Unheard
from learner.persist.disk_retry import CannotWrite, Disk
from learner.persist.jsonl import MetricsFile
from learner.report.step_metrics import peak_memory
from learner.state import Progress, TrainingState
from learner.store.run_store import RunStore
from services.contracts.config import SFTConfig
from services.contracts.config.model import ScratchModel
from services.contracts.group_lengths import GroupLengths
from services.contracts.records import RunRecord
from services.datasets import DatasetReader
from services.estimate.given import Model, known_workers
from services.estimate.shape import scratch_shape
from services.runtime.logs import get_logger
from services.volume import Volume

log = get_logger(__name__)

PROGRESS_SECONDS = 1.0


def train_sft(
    record: RunRecord,
    config: SFTConfig,
    ranks: Ranks,
    store: RunStore,
    volume: Volume,
    stop: threading.Event,
    crash_limit: CrashLimit,
) -> str:
    """Train `record` to its end. Returns `finish`, `cancel` or `yield`.

    Raises, with a user-readable reason: UnusableModel, UnusableRow, DamagedFile, Fenced.
    """
    ranks = ranks.sharing_rows(config.training.context_parallel)
    if ranks.first:
        store.acquire()
    plan = agreed_plan(
        config,
        ranks,
        lambda: described(config, store, volume),
        lambda: known_workers(store.workers()),
    )
    sharded = plan.sharded
    loaded = ranks.together(lambda: starting_model(config, ranks, sharded, store, volume))
    training, validation = ranks.together(lambda: examples(config, loaded, store, volume))
    ranks.together(lambda: check_optimizer(config.optimizer, "optimizer", ranks, sharded))
    routing = ranks.together(lambda: policy_routing(loaded.model, config.router, "router"))
    ranks.together(lambda: check_sharing(loaded.model, ranks))
    compiled, reason = ranks.together(
        lambda: compiles(config.training.compile, loaded.model, ranks.device)
    )
    make_trainable(loaded.model, plan.checkpointing, compiled)
    policy: nn.Module = TokenLogprobs(loaded.model, None if sharded else loaded.autocast, routing)
    if sharded:
        shard(policy, loaded.model, loaded.autocast, ranks)
        if why := gathered(policy, partial(unfit, loaded.model)):
            raise UnusableModel(f"the model: {why}")
    policy = replicate(policy, ranks)
    optimizers, cost = Optimizers(loaded.model, config.optimizer), sequence_cost(loaded.model)
    order = endless_order(len(training), config.training.seed)
    steps = config.training.max_steps
    budget = config.training.tokens_per_microbatch
    disk = Disk(volume.root, store if ranks.first else Unheard(store), stop)
    file = MetricsFile(volume.root, store.run, disk)
    reporter = Reporter(steps, store, file, ranks) if ranks.first else None

    if reporter:
        attention = str(loaded.attention)
        reporter.begin({"attention": attention, "activations": plan.activations, "compile": reason})
    step = 0
    while True:
        ending = what_next(ranks, step == steps, store, stop)
        if ending != "train":
            break
        crash_limit.busy(step + 1)
        rows = [training[next(order)] for _ in range(config.training.rows_per_step)]
        mine = dealt(rows, cost, ranks)
        tokens = sum(int(row.loss_mask.sum()) for row in rows)
        routers = RouterTally(routing) if routing else None
        loss = backward(policy, mine, tokens, budget, ranks, routers)
        lr = optimizers.set_lr(lr_share(config.schedule, step, steps))
        norm = optimizers.step()
        step += 1
        metrics = {"train/loss": ranks.sum([loss])[0], "train/lr": lr, "train/grad_norm": norm}
        if routers:
            metrics |= routers.metrics(ranks)
        if step % config.training.validate_every == 0 or step == steps:
            metrics |= validate(policy, validation, budget, ranks, cost)
        if reporter:
            reporter.report(step, metrics, len(rows), sum(len(row.tokens) for row in rows))

    if ending != "yield" and (sharded or ranks.first):
        progress = Progress(record.id, step, step, store.lineages(), record.id)
        state = TrainingState(loaded, policy, optimizers, progress)
        writer = (
            CheckpointWriter(volume.root, 1, disk, store, (file,), ranks)
            if ranks.first
            else PartWriter(volume.root, disk, ranks)
        )
        try:
            writer.submit(capture(state, part_of(state, ranks)))
            writer.wait()
        except CannotWrite as error:
            log.error("the run ends before its model is written", reason=str(error))
            return "cancel" if store.cancelled() else "yield"
        finally:
            writer.close()
    return ending


def described(config: SFTConfig, store: RunStore, volume: Volume) -> Model | None:
    """What the estimate needs of the model that training starts from."""
    if isinstance(config.model, ScratchModel):
        return Model(scratch_shape(config.model), half=True)
    return known_model(store.model_path(config.model.path, volume), config.model)


def starting_model(
    config: SFTConfig, ranks: Ranks, sharded: bool, store: RunStore, volume: Volume
) -> LoadedModel:
    """The model before the first step; the same weights on every rank, or its rows of them."""
    if isinstance(config.model, ScratchModel):
        return make_model(config.model, config.training.seed, ranks.device)
    path = store.model_path(config.model.path, volume)
    return load_model(path, config.model, ranks.device, sharing=ranks if sharded else None)


def examples(
    config: SFTConfig, loaded: LoadedModel, store: RunStore, volume: Volume
) -> tuple[list[Example], list[Example]]:
    """The datasets' rows in tokens: those to train on, and those kept out for validation. Raises
    UnusableRow for the first that cannot be learned, UnusableModel for tokens that it lacks."""
    found: list[tuple[Example, int]] = []
    known = loaded.model.get_input_embeddings().num_embeddings
    for name, times in Counter([config.data.dataset, *config.data.mix]).items():
        reader: DatasetReader = store.dataset(name, volume)
        for i in range(len(reader)):
            try:
                row = example(reader.row(i), i, config.data, loaded.tokenizer, loaded.max_length)
            except UnusableRow as error:
                raise UnusableRow(f"in {reader.record.name}, {error}") from error
            if (unknown := int(row.tokens.max())) >= known:
                raise UnusableModel(
                    f"the tokenizer makes token {unknown} of row {i} of {reader.record.name}, and "
                    f"the model knows {known} tokens: they do not belong together"
                )
            found.append((row, times))
    if not found:
        raise UnusableRow(f"dataset {config.data.dataset} is empty: add rows to it first")
    return divided(found, config.training.validation_share, config.training.seed)


def endless_order(rows: int, seed: int) -> Iterator[int]:
    """Row indices for ever: a fresh permutation each epoch, the same on every rank."""
    generator = np.random.Generator(np.random.PCG64(seed + 1))
    while True:
        yield from generator.permutation(rows).tolist()


def what_next(ranks: Ranks, over: bool, store: RunStore, stop: threading.Event) -> str:
    """What rank 0 finds between two steps, on every rank: `train` on, or `finish`, `cancel`,
    `yield`."""

    def find() -> bytes:
        if over:
            return b"finish"
        return b"yield" if stop.is_set() else b"cancel" if store.cancelled() else b"train"

    return ranks.from_first(find).decode()


def dealt(rows: list[Example], cost: SequenceCost, ranks: Ranks) -> list[Example]:
    """This rank's part of `rows`."""
    in_loss = [int(row.loss_mask.sum()) for row in rows]
    lengths = [GroupLengths(len(r.tokens) - n, (n,)) for r, n in zip(rows, in_loss, strict=True)]
    return [rows[i] for i in deal(lengths, ranks.parts, cost)[ranks.part]]


def backward(
    policy: nn.Module,
    rows: list[Example],
    tokens: int,
    budget: int,
    ranks: Ranks,
    routers: RouterTally | None = None,
) -> float:
    """Gradient of −Σ log π / `tokens` (the count over all ranks), and of the routers' terms.
    Returns this rank's share of the first, in nats."""
    total = torch.zeros((), device=device_of(policy))
    packed = forward_rows(policy, rows, budget, ranks)
    balanced = balance(policy, tokens, ranks, lambda _: None, packed)
    for chosen, row in backward_rows(policy, rows, budget, ranks):
        logprobs, _ = policy(row)
        loss = -logprobs.sum() / tokens if chosen else logprobs.sum() * 0.0
        total += loss.detach()
        if chosen and balanced:
            loss = loss + balanced.loss()
            if routers:
                routers.add(balanced.routed)
        (loss * ranks.size).backward()
    return float(total)


@torch.no_grad()
def validate(
    policy: nn.Module, rows: list[Example], budget: int, ranks: Ranks, cost: SequenceCost
) -> dict[str, float]:
    """Loss per token in nats, and bits per byte of the rows' text.

    Tokens that spell none of it (end of sequence, special tokens, the chat template's) have no
    bytes, and their nats are not in the bits either: as in nanochat.
    """
    if not rows:
        return {}
    nats = of_text = 0.0
    for chosen, row in forward_rows(policy, dealt(rows, cost, ranks), budget, ranks):
        logprobs = unwrapped(policy)(row)[0]
        if not chosen:
            continue
        nats -= float(logprobs.sum())
        spells = torch.cat([example.spells[example.loss_mask] for example in chosen])
        of_text -= float(logprobs[spells.to(logprobs.device)].sum())
    nats, of_text = ranks.sum([nats, of_text])
    tokens = sum(int(row.loss_mask.sum()) for row in rows)
    size = sum(row.text_bytes for row in rows)
    return {
        "validation/loss": nats / tokens,
        "validation/bits_per_byte": of_text / math.log(2) / max(size, 1),
    }


@dataclass
class Reporter:
    """Rank 0's reports: every step to metrics.jsonl, about once a second to the run's events. The
    other ranks hear of it where one ends the run."""

    total: int
    store: RunStore
    file: MetricsFile
    ranks: Ranks

    def __post_init__(self) -> None:
        self.began = self.reported = time.monotonic()
        self.tokens = self.rows = 0

    def begin(self, computation: dict[str, str]) -> None:
        """Start the file of metrics again, and let the run run. `computation`: how it computes, and
        why, by part."""
        with self.ranks.announcing():
            self._write(lambda: self.file.begin(0))
            for part, words in computation.items():
                self.store.computes(part, words)
            self.store.set_state("running")

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
        with self.ranks.announcing():
            self._write(lambda: self.file.add(row))
            if (
                now - self.reported >= PROGRESS_SECONDS
                or step == self.total
                or "validation/loss" in row
            ):
                self.reported = now
                self.store.step_done(step, row, kind="progress", total=self.total)

    def _write(self, write: Callable[[], object]) -> None:
        try:
            write()
        except CannotWrite as error:
            # The run or this process was told to end, which all ranks hear next.
            log.error("a step's metrics are not written", reason=str(error))
