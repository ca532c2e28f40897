"""Train one batch: first the passes for values that stay fixed, then minibatches of packed
micro-batches.

Every term is normalised by counts over all ranks that are known before the first backward pass, so
the gradient depends neither on the number of ranks nor on how the batch was cut.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from learner.batch.samples import TrainingSample
from learner.batch.token_advantages import gathered, set_returns
from learner.distributed import Ranks
from learner.metrics.loss_metrics import Tally
from learner.model.attention.row_calls import sent
from learner.model.passes.families import unwrapped
from learner.model.passes.microbatches import MicroBatches
from learner.model.passes.moe_balance import balance, routing_of
from learner.model.placement.offload import present
from learner.model.value_model import set_values, train_critic
from learner.objective.aggregation import Counts, averaged_together, local_counts, sequence_weights
from learner.objective.compose import Composed, Objective, composed_loss
from learner.objective.kl import kl_estimate
from learner.objective.losses import Tokens
from learner.objective.value_loss import Scale
from learner.optim.optimizers import Optimizers
from learner.state import TrainingState
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import RecomputeProximal, ReverseKL
from services.runtime.logs import get_logger

log = get_logger(__name__)


def train_batch(
    state: TrainingState,
    minibatches: list[list[TrainingSample]],
    objective: Objective,
    batches: MicroBatches,
    lr_share: Callable[[int], float],
) -> dict[str, float]:
    """Train on `minibatches` (this rank's samples of each), pass by pass: `epochs_per_batch` passes
    over the batch. Returns the step's metrics, which are the same on every rank. Ratios and
    mismatch are measured in the first pass over each minibatch.

    `lr_share`: share of the peak learning rate, by the number of the update within the batch. If
    the policy exceeds `early_stop_ratio` or `early_stop_kl` on a minibatch, that minibatch is not
    trained and the policy's updates for this batch end. While the critic warms up, the policy is
    only measured.
    """
    policy, optimizers, critic, copies = state.policy, state.optimizers, state.critic, state.copies
    critic_only = critic is not None and state.progress.step < critic.config.warmup_steps
    algorithm, ranks = objective.algorithm, batches.ranks
    parts = len(minibatches) // algorithm.epochs_per_batch
    everything = [sample for part in minibatches[:parts] for sample in part if sample.trains]
    score = partial(set_logprobs, everything, objective.temperature, batches)
    if isinstance(algorithm.proximal, RecomputeProximal):
        score(policy, "proximal_logprobs")
    scorers = (copies.lagged, copies.reference, copies.teacher)
    for copy, name in zip(scorers, ("proximal", "reference", "teacher"), strict=True):
        if copy:
            with copy.present() as model:
                score(model, f"{name}_logprobs")
    if critic is not None:
        set_values(critic, everything, batches)
    set_returns(everything, objective, ranks.sum_named, critic.scale if critic else Scale())
    routing = routing_of(policy)
    tally, norms, rate = Tally(routing), [], 0.0
    measured = TokenMeasures()
    for each in (optimizers, *([critic.optimizers] if critic else [])):
        each.set_momentum(state.progress.step)
    for number, part in enumerate(minibatches[:parts] if critic_only else minibatches):
        seen = None
        if number < parts or stops_early(algorithm):
            seen = Tally(routing, unchanged=number == 0)
        first = measured if number < parts else None
        rate = optimizers.set_lr(lr_share(number))
        if critic_only:
            with torch.no_grad():
                accumulate_gradients(policy, part, objective, batches, seen, None, first)
        else:
            accumulate_gradients(policy, part, objective, batches, seen, optimizers, first)
        if seen and number < parts:
            tally.include(seen)
        if critic_only:
            continue
        if seen and went_too_far(seen, algorithm, ranks):
            optimizers.clear()
            break
        with present(state.offloads, changed=True):
            norms.append(optimizers.step())
    measured.spread()
    metrics = tally.metrics(ranks)
    for name in ("train/loss", "router/loss"):
        if name in metrics:
            metrics[name] /= min(number + 1, parts)
    if "router/loss" in metrics:
        metrics["train/total_loss"] = metrics["train/loss"] + metrics["router/loss"]
    metrics["train/grad_norm"] = sum(norms) / max(len(norms), 1)
    metrics["train/updates"] = float(len(norms))
    metrics["train/lr"] = rate
    if copies.reference:
        metrics["train/kl_beta"] = objective.beta
    if isinstance(algorithm.advantage, ReverseKL):
        metrics |= teacher_metrics(everything, ranks)
    if critic is not None:
        metrics |= train_critic(critic, minibatches, algorithm, batches, lr_share)
    return metrics


def teacher_metrics(samples: list[TrainingSample], ranks: Ranks) -> dict[str, float]:
    """Return the KL between the policy before the batch's updates and its teacher. It is the same
    on every rank."""
    gaps = [-sample.token_advantages for sample in samples if sample.token_advantages is not None]
    total, count = ranks.sum([float(sum(a.sum() for a in gaps)), float(sum(map(len, gaps)))])
    return {"train/teacher_kl": total / max(count, 1.0)}


def stops_early(algorithm: Algorithm) -> bool:
    return algorithm.early_stop_ratio is not None or algorithm.early_stop_kl is not None


def went_too_far(tally: Tally, algorithm: Algorithm, ranks: Ranks) -> bool:
    """Whether a minibatch exceeds a bound that ends the batch. `tally` is this rank's part of the
    minibatch; the result is the same on every rank."""
    if not stops_early(algorithm):
        return False
    metrics = tally.metrics(ranks)
    ratio, kl = metrics["train/ratio_mean"], metrics["train/proximal_kl"]
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


@dataclass(frozen=True)
class SampleWeights:
    tokens: torch.Tensor
    """[n] weight of each token of each sample."""
    counts: Counts
    """Over all ranks."""


def sample_weights(
    samples: list[TrainingSample], objective: Objective, ranks: Ranks
) -> SampleWeights:
    """Weigh this rank's `samples` of a minibatch, by counts over all ranks."""
    lengths = torch.tensor([len(s.sampler_logprobs) for s in samples], dtype=torch.int64)
    aggregation = objective.algorithm.aggregation
    together = [averaged_together(aggregation, s.number, s.group_lengths) for s in samples]
    local = local_counts(lengths, [s.first for s in samples], together)
    counts = Counts(*(int(n) for n in ranks.sum([local.tokens, local.sequences, local.prompts])))
    whole = torch.tensor([s.group_lengths[s.number] for s in samples], dtype=torch.int64)
    weights = sequence_weights(aggregation, whole, together, counts, objective.max_tokens)
    return SampleWeights(weights, counts)


def accumulate_gradients(
    policy: nn.Module,
    samples: list[TrainingSample],
    objective: Objective,
    batches: MicroBatches,
    tally: Tally | None = None,
    optimizers: Optimizers | None = None,
    measured: "TokenMeasures | None" = None,
) -> None:
    """Run the backward passes over one minibatch. The sum of gradients over ranks ends in `.grad`,
    or in the weights if `optimizers` step during the backward pass. With gradients disabled, the
    policy is only measured. `measured`: gets the log-probabilities and entropies."""
    samples = [sample for sample in samples if sample.trains]
    weights = sample_weights(samples, objective, batches.ranks)
    balanced = balance(policy, samples, weights.counts.tokens, batches)
    for indices, row in batches.backward(policy, samples, optimizers):
        logprobs, entropy = policy(row, objective.temperature)
        loss = logprobs.sum() * 0.0
        if indices:
            chosen = [samples[i] for i in indices]
            tokens = gathered(chosen, logprobs, objective.algorithm)
            composed = composed_loss(objective.algorithm, objective.beta, tokens, entropy)
            of_samples = sent(weights.tokens[indices].to(logprobs.dtype), logprobs.device)
            loss = (composed.loss * of_samples[tokens.sequence]).sum()
            if composed.sample_kl is not None:
                loss = loss + composed.sample_kl.sum() / weights.counts.sequences
            if measured:
                measured.add(chosen, logprobs, entropy)
            if tally:
                measure(tally, chosen, tokens, composed, entropy)
                tally.add({"loss": loss})
                tally.count(row)
            if balanced:
                terms = balanced.loss()
                loss = loss + terms
                if tally and tally.routers:
                    tally.routers.add(balanced.routed, terms)
        if loss.requires_grad:
            # The ranks average gradients, but the weights already divide by counts over all ranks.
            (loss * batches.ranks.size).backward()


def measure(
    tally: Tally,
    samples: list[TrainingSample],
    tokens: Tokens,
    composed: Composed,
    entropy: torch.Tensor,
) -> None:
    """Add the tokens of a micro-batch of `samples` to `tally`."""
    policy, corrected, logprobs = composed.policy, composed.corrected, tokens.logprobs.detach()
    # If an agent's session branches, its first conversation counts the session.
    first = torch.tensor([sample.first for sample in samples])
    tally.add(
        {
            "tokens": torch.ones_like(entropy),
            "sequences": sent(first, logprobs.device),
            "kl": composed.kl,
            "entropy": entropy,
            "ratio": policy.ratio,
            "ratio_squared": policy.ratio.square(),
            # The tokens were drawn from π_prox, or nearly.
            "proximal_kl": kl_estimate("k3", tokens.proximal, logprobs),
            "clip_low": policy.clipped_low,
            "clip_high": policy.clipped_high,
            "masked_low": corrected.low,
            "masked_high": corrected.high,
        }
    )
    tally.peak("ratio", policy.ratio)
    if tally.unchanged:
        # Only completely fresh answers: after a weight update, a token still attends to keys and
        # values of the older weights, so no single version gives its log-probability.
        whole = torch.tensor([not s.staleness.any() for s in samples])
        fresh = sent(whole, logprobs.device)[tokens.sequence]
        # k3 of KL(μ ‖ π): the samples come from μ.
        sampler_kl = kl_estimate("k3", tokens.sampler, logprobs)
        gap = (logprobs - tokens.sampler).abs()
        tally.add({"fresh_tokens": fresh, "mismatch_kl": sampler_kl * fresh})
        tally.add({"before_tokens": torch.ones_like(sampler_kl), "sampler_kl": sampler_kl})
        tally.peak("sampler_gap", gap)
        tally.peak("logprob_gap", gap * fresh)


class TokenMeasures:
    """The learner's log-probabilities and entropies of a batch. They stay on the device until all
    passes are made, so that the host never waits between passes."""

    def __init__(self) -> None:
        self._samples: list[TrainingSample] = []
        self._values: list[torch.Tensor] = []

    def add(
        self, samples: list[TrainingSample], logprobs: torch.Tensor, entropy: torch.Tensor
    ) -> None:
        """Add a micro-batch of `samples`."""
        self._samples += samples
        self._values.append(torch.stack([logprobs.detach(), entropy.detach()]))

    def spread(self) -> None:
        """Set `learner_logprobs` and `entropy` of each sample."""
        if not self._values:
            return
        both = torch.cat(self._values, dim=1).cpu()
        lengths = [len(sample.sampler_logprobs) for sample in self._samples]
        for sample, values in zip(self._samples, both.split(lengths, dim=1), strict=True):
            sample.learner_logprobs, sample.entropy = values


@torch.no_grad()
def set_logprobs(
    samples: list[TrainingSample],
    temperature: float,
    batches: MicroBatches,
    model: nn.Module,
    name: str,
) -> None:
    """Set the attribute `name` of each sample: its log-probabilities [k] under `model`."""
    order: list[TrainingSample] = []
    computed: list[torch.Tensor] = []
    for chosen, row in batches.forward(model, samples):
        logprobs, _ = unwrapped(model)(row, temperature)
        if chosen:
            order += chosen
            computed.append(logprobs)
    if computed:
        # Copied to the host once, after all passes.
        pieces = torch.cat(computed).cpu().split([len(s.sampler_logprobs) for s in order])
        for sample, values in zip(order, pieces, strict=True):
            setattr(sample, name, values)
