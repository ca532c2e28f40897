"""One batch, trained: proximal and reference passes, then minibatches of packed micro-batches.

Every term is normalised by counts over all ranks that are known before the first backward pass,
so the gradient depends neither on the number of ranks nor on how the batch was cut.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from learner.aggregation import Counts, averaged_together, local_counts, sequence_weights
from learner.batch import Sample
from learner.distributed import Ranks
from learner.kl import kl_estimate
from learner.logprobs import PackedRow, packed_row
from learner.objective import Objective, composed_loss, gathered, set_returns
from learner.optimizers import Optimizers
from learner.packing import micro_batches, micro_batches_needed
from services.contracts.config.algorithm import Algorithm
from services.contracts.config.terms import RecomputeProximal
from services.logs import get_logger

log = get_logger(__name__)

# On a CPU, activations of more tokens than this fall out of the caches: micro-batches of 1,000 to
# 4,000 tokens are the fastest for models of 1 M to 100 M parameters, 16,000 half again as slow.
CPU_TOKENS = 4096

SUMS = (
    "tokens",
    "sequences",
    "loss",
    "kl",
    "entropy",
    "ratio",
    "ratio_squared",
    "proximal_kl",
    "clip_low",
    "clip_high",
    "masked_low",
    "masked_high",
    "fresh_tokens",
    "mismatch_kl",
    "before_tokens",
    "behind_kl",
)
MAXIMA = ("ratio", "logprob_gap", "behind_gap")


class Tally:
    """Sums and maxima over the tokens of a step, reduced over ranks once at its end."""

    def __init__(self) -> None:
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64)
        self.maxima = torch.zeros(len(MAXIMA), dtype=torch.float64)

    def add(self, values: dict[str, torch.Tensor]) -> None:
        """Add the sum of each [k] tensor to its total."""
        for name, value in values.items():
            self.sums[SUMS.index(name)] += value.detach().double().sum().cpu()

    def peak(self, name: str, value: torch.Tensor) -> None:
        """Raise a maximum to the largest entry of `value`."""
        if value.numel():
            place = MAXIMA.index(name)
            self.maxima[place] = max(self.maxima[place], value.detach().double().max().cpu())

    def include(self, other: "Tally") -> None:
        """Take over what another tally has seen."""
        self.sums += other.sums
        self.maxima = torch.maximum(self.maxima, other.maxima)

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """Means over the tokens of all ranks, by the names of docs/metrics.md."""
        total = dict(zip(SUMS, ranks.sum(self.sums.tolist()), strict=True))
        top = dict(zip(MAXIMA, ranks.max(self.maxima.tolist()), strict=True))
        tokens, fresh = max(total["tokens"], 1.0), total["fresh_tokens"]
        before = max(total["before_tokens"], 1.0)
        metrics = {
            "train/loss": total["loss"],
            "train/kl": total["kl"] / tokens,
            "train/entropy": total["entropy"] / tokens,
            "train/ratio_mean": total["ratio"] / tokens,
            "train/ratio_max": top["ratio"],
            "train/clip_low": total["clip_low"] / tokens,
            "train/clip_high": total["clip_high"] / tokens,
            "train/proximal_kl": total["proximal_kl"] / tokens,
            "train/ess": total["ratio"] ** 2 / max(tokens * total["ratio_squared"], 1e-12),
            "train/corrected_low": total["masked_low"] / tokens,
            "train/corrected_high": total["masked_high"] / tokens,
            "mismatch/sampler_kl": total["behind_kl"] / before,
            "mismatch/sampler_logprob_max": top["behind_gap"],
        }
        if fresh:
            # Only where learner and sampler held the same weights is a gap an error.
            metrics["mismatch/kl"] = total["mismatch_kl"] / fresh
            metrics["mismatch/logprob_max"] = top["logprob_gap"]
        if total["sequences"]:
            metrics["train/kl_per_sample"] = total["kl"] / total["sequences"]
        return metrics


def train_batch(
    policy: nn.Module,
    optimizers: Optimizers,
    minibatches: list[list[Sample]],
    objective: Objective,
    budget: int,
    ranks: Ranks,
    next_lr: Callable[[], None],
    reference: nn.Module | None = None,
) -> dict[str, float]:
    """Train on `minibatches` (this rank's samples of each), `epochs_per_batch` times.

    `next_lr` sets the learning rate before each optimizer step. A minibatch on which the policy has
    gone beyond `early_stop_ratio` or `early_stop_kl` is not trained any more, and ends the batch.
    Returns the step's metrics, the same on every rank; ratios and mismatch are those of the first
    pass over each minibatch.
    """
    algorithm = objective.algorithm
    everything = [sample for part in minibatches for sample in part if sample.trains]
    if isinstance(algorithm.proximal, RecomputeProximal):
        for sample, values in _forward(policy, everything, objective.temperature, budget, ranks):
            sample.proximal_logprobs = values
    if reference is not None:
        for sample, values in _forward(reference, everything, objective.temperature, budget, ranks):
            sample.reference_logprobs = values
    set_returns(everything, objective, ranks.sum)
    tally, norms, parts = Tally(), [], len(minibatches)
    for number, part in enumerate(minibatches * algorithm.epochs_per_batch):
        seen = Tally() if number < parts or stops_early(algorithm) else None
        accumulate_gradients(policy, part, objective, budget, ranks, seen, number == 0)
        if seen and number < parts:
            tally.include(seen)
        next_lr()
        if seen and went_too_far(seen, algorithm, ranks):
            optimizers.clear()
            break
        norms.append(optimizers.step())
    metrics = tally.metrics(ranks)
    metrics["train/loss"] /= min(number + 1, parts)
    metrics["train/grad_norm"] = sum(norms) / max(len(norms), 1)
    metrics["train/updates"] = float(len(norms))
    if reference is not None:
        metrics["train/kl_beta"] = objective.beta
    return metrics


def stops_early(algorithm: Algorithm) -> bool:
    """Whether anything can end a batch's updates before their time."""
    return algorithm.early_stop_ratio is not None or algorithm.early_stop_kl is not None


def went_too_far(seen: Tally, algorithm: Algorithm, ranks: Ranks) -> bool:
    """Whether a minibatch of all ranks, of which this one has `seen` its part, lies beyond a bound
    that ends the batch. The same on every rank."""
    if not stops_early(algorithm):
        return False
    found = seen.metrics(ranks)
    ratio, kl = found["train/ratio_mean"], found["train/proximal_kl"]
    too_far = [
        name
        for name, value, limit in (
            ("early_stop_ratio", ratio, algorithm.early_stop_ratio),
            ("early_stop_kl", kl, algorithm.early_stop_kl),
        )
        if limit is not None and value > limit
    ]
    if too_far:
        log.info("the batch ends early", reason=", ".join(too_far), ratio=ratio, kl=kl)
    return bool(too_far)


def accumulate_gradients(
    policy: nn.Module,
    samples: list[Sample],
    objective: Objective,
    budget: int,
    ranks: Ranks,
    tally: Tally | None = None,
    unchanged: bool = False,
) -> None:
    """Backward passes over one minibatch; the sum of gradients over ranks ends in `.grad`.

    `unchanged`: the policy still is the version the batch is trained at, so that log-probabilities
    of tokens sampled under it must equal the sampler's.
    """
    samples = [sample for sample in samples if sample.trains]
    budget = micro_batch_tokens(budget, ranks.device)
    lengths = torch.tensor([len(s.sampler_logprobs) for s in samples], dtype=torch.int64)
    group = torch.tensor([s.group for s in samples], dtype=torch.int64)
    number = torch.tensor([s.number for s in samples], dtype=torch.int64)
    group = averaged_together(objective.algorithm.aggregation, group, number)
    mine = local_counts(lengths, group)
    counts = Counts(*(int(n) for n in ranks.sum([mine.tokens, mine.sequences, mine.prompts])))
    weights = sequence_weights(
        objective.algorithm.aggregation, lengths, group, counts, objective.max_tokens
    )
    sizes = [len(sample.tokens) for sample in samples]
    passes = int(ranks.max([max(micro_batches_needed(sizes, budget), 1)])[0])
    for taken, indices in enumerate(micro_batches(sizes, budget, passes), 1):
        with synchronised(policy, taken == passes):
            chosen = [samples[i] for i in indices]
            row = _row(chosen, ranks.device)
            logprobs, entropy = policy(row, objective.temperature)
            if chosen:
                loss = _loss(
                    logprobs, entropy, chosen, weights[indices], objective, tally, unchanged
                )
            else:
                loss = logprobs.sum() * 0.0
            # DDP averages over ranks; the weights already divide by counts over all of them.
            (loss * ranks.size).backward()


def _loss(
    logprobs: torch.Tensor,
    entropy: torch.Tensor,
    samples: list[Sample],
    weights: torch.Tensor,
    objective: Objective,
    tally: Tally | None,
    unchanged: bool,
) -> torch.Tensor:
    tokens = gathered(samples, logprobs, objective.algorithm)
    composed = composed_loss(objective.algorithm, objective.beta, tokens, entropy)
    policy, corrected = composed.policy, composed.corrected
    loss = (composed.loss * weights.to(logprobs)[tokens.sequence]).sum()
    if tally is not None:
        tally.add(
            {
                "tokens": torch.ones_like(entropy),
                "sequences": torch.ones(tokens.n),
                "loss": loss,
                "kl": composed.kl,
                "entropy": entropy,
                "ratio": policy.ratio,
                "ratio_squared": policy.ratio.square(),
                # The tokens were drawn from π_prox, or nearly.
                "proximal_kl": kl_estimate("k3", tokens.proximal, logprobs.detach()),
                "clip_low": policy.clipped_low,
                "clip_high": policy.clipped_high,
                "masked_low": corrected.low,
                "masked_high": corrected.high,
            }
        )
        tally.peak("ratio", policy.ratio)
        if unchanged:
            # Whole answers only: after an update a token still attends to the keys and values of
            # the older weights, so that no one version gives its log-probability.
            whole = torch.tensor([not s.behind.any() for s in samples], device=logprobs.device)
            fresh = whole[tokens.sequence]
            ours, theirs = logprobs.detach()[fresh], tokens.sampler[fresh]
            # k3 of KL(μ ‖ π): the samples come from μ.
            tally.add({"fresh_tokens": fresh, "mismatch_kl": kl_estimate("k3", theirs, ours)})
            behind = kl_estimate("k3", tokens.sampler, logprobs.detach())
            tally.add({"before_tokens": torch.ones_like(behind), "behind_kl": behind})
            tally.peak("behind_gap", (logprobs.detach() - tokens.sampler).abs())
            tally.peak("logprob_gap", (ours - theirs).abs())
    return loss


@torch.no_grad()
def _forward(
    policy: nn.Module, samples: list[Sample], temperature: float, budget: int, ranks: Ranks
) -> list[tuple[Sample, torch.Tensor]]:
    """Each sample with its log-probabilities [k] under `policy`."""
    inner = policy.module if isinstance(policy, DistributedDataParallel) else policy
    budget = micro_batch_tokens(budget, ranks.device)
    results = []
    for indices in micro_batches([len(sample.tokens) for sample in samples], budget):
        chosen = [samples[i] for i in indices]
        logprobs, _ = inner(_row(chosen, ranks.device), temperature)
        pieces = logprobs.cpu().split([len(sample.sampler_logprobs) for sample in chosen])
        results += list(zip(chosen, pieces, strict=True))
    return results


def _row(samples: list[Sample], device: torch.device) -> PackedRow:
    if not samples:
        # Nothing left for this rank, but DDP's all-reduce needs its backward pass.
        return packed_row(
            [torch.zeros(2, dtype=torch.int64)], [torch.tensor([False, True])], device
        )
    return packed_row([s.tokens for s in samples], [s.wanted for s in samples], device)


def micro_batch_tokens(budget: int, device: torch.device) -> int:
    """The configured limit, or less where less is faster."""
    return min(budget, CPU_TOKENS) if device.type == "cpu" else budget


def synchronised(policy: nn.Module, last: bool) -> AbstractContextManager[None]:
    """DDP sums gradients over ranks in the `last` backward pass of an optimizer step only."""
    if isinstance(policy, DistributedDataParallel) and not last:
        return policy.no_sync()
    return nullcontext()
