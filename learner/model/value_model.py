"""The critic: it estimates the value of the policy's answers before a batch, and then learns from
it.

It is a separate model with its own optimizer, and uses the policy's minibatches and micro-batches.
Instead of an output over the vocabulary it has a value head, which reads hidden states of a few
tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from learner.batch.samples import TrainingSample
from learner.batch.token_advantages import known
from learner.distributed import Ranks
from learner.model.attention.row_calls import sent
from learner.model.passes.families import device_of, unwrapped
from learner.model.passes.logprobs import PackedRow, hidden_states
from learner.model.passes.microbatches import MicroBatches
from learner.model.placement.offload import Offload, present
from learner.objective.value_loss import Moments, Scale, value_loss
from learner.optim.optimizers import Optimizers
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.critic import Critic as CriticConfig
from services.contracts.config.objective.terms import SequenceValue

SUMS = ("loss", "clipped", "values")


class TokenValues(nn.Module):
    """A model with a value head (`loading.load_critic`) as a map from places of packed rows to
    values. A module, so that DDP can wrap it, or FSDP gather it."""

    def __init__(self, model: PreTrainedModel, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self.model = model
        self.autocast = autocast

    def forward(self, row: PackedRow, places: torch.Tensor) -> torch.Tensor:
        """Return values [p] with gradient, float32 or wider, at the tokens `places` [p] of the
        row."""
        inside, part = None, row.part
        if part is not None:
            inside, places = part.here(places)
        hidden = hidden_states(self.model, row, self.autocast)
        if part is not None and not part.size:
            # A row to index, masked out below.
            hidden = nn.functional.pad(hidden, (0, 0, 0, 1))
        hidden = hidden[places]
        head = self.model.score
        # A sharded head has the type of the passes.
        wide = torch.promote_types(hidden.dtype, torch.float32)
        bias = None if head.bias is None else head.bias.to(wide)
        # Cloned, because FSDP cannot hook a view.
        values = (
            nn.functional.linear(hidden.to(wide), head.weight.to(wide), bias).squeeze(-1).clone()
        )
        if part is None or inside is None:
            return values
        return part.summed(values * inside)


@dataclass
class TrainedCritic:
    model: PreTrainedModel
    values: nn.Module
    """The model as TokenValues: sharded, or inside DDP if there are several ranks."""
    optimizers: Optimizers
    config: CriticConfig
    moments: Moments
    offloaded_weights: tuple[Offload, ...] = ()
    """Its weights, if they are on the host between its passes."""
    offloaded_state: tuple[Offload, ...] = ()
    """Optimizer states, if they are on the host until the critic is trained."""

    @property
    def offloads(self) -> tuple[Offload, ...]:
        """All its tensors on the host."""
        return self.offloaded_weights + self.offloaded_state

    @property
    def scale(self) -> Scale:
        """Current units of its values."""
        return self.moments.scale(self.config.normalisation)


@torch.no_grad()
def set_values(critic: TrainedCritic, samples: list[TrainingSample], batches: MicroBatches) -> None:
    """Set the critic's values of each sample, at all places that an estimator uses."""
    with present(critic.offloaded_weights, changed=False):
        results: list[tuple[list[TrainingSample], torch.Tensor]] = []
        for chosen, row in batches.forward(critic.values, samples):
            places = torch.cat([row.predictors, row.ends])
            values = unwrapped(critic.values)(row, places)
            if chosen:
                results.append((chosen, values))
        # Copied to the host after all passes.
        for chosen, values in results:
            for sample, sample_values in zip(chosen, split(values.cpu(), chosen), strict=True):
                sample.values = sample_values


def train_critic(
    critic: TrainedCritic,
    minibatches: list[list[TrainingSample]],
    algorithm: Algorithm,
    batches: MicroBatches,
    lr_share: Callable[[int], float],
) -> dict[str, float]:
    """Regress on the samples' returns, in as many updates as the policy makes at most.

    `minibatches`: all passes, as in `train_batch`; `lr_share`: share of the peak learning rate, by
    the number of the update within the batch. Returns metrics, the same on every rank. All metrics
    except norm and rate are measured in the first pass.
    """
    parts = len(minibatches) // algorithm.epochs_per_batch
    everything = [sample for part in minibatches[:parts] for sample in part if sample.trains]
    metrics = learn_scale(critic, everything, algorithm, batches.ranks)
    seen, norms, rate = torch.zeros(len(SUMS), dtype=torch.float64), [], 0.0
    with present(critic.offloads, changed=True):
        for number, part in enumerate(minibatches):
            rate = critic.optimizers.set_lr(lr_share(number))
            sums = accumulate_value_gradients(critic, part, algorithm, batches)
            if number < parts:
                seen += sums
            norms.append(critic.optimizers.step())
    loss, clipped, count = batches.ranks.sum(seen.tolist())
    metrics["critic/loss"] = loss / parts
    metrics["critic/clipped"] = clipped / max(count, 1.0)
    metrics["critic/grad_norm"] = sum(norms) / len(norms)
    metrics["critic/lr"] = rate
    return metrics


def accumulate_value_gradients(
    critic: TrainedCritic,
    samples: list[TrainingSample],
    algorithm: Algorithm,
    batches: MicroBatches,
) -> torch.Tensor:
    """Run the backward passes over one minibatch. Returns this rank's SUMS over it."""
    samples = [sample for sample in samples if sample.trains]
    config, scale = critic.config, critic.scale
    (count,) = batches.ranks.sum([float(sum(len(known(s.returns)) for s in samples))])
    seen = torch.zeros(len(SUMS), dtype=torch.float64, device=device_of(critic.values))
    for indices, row in batches.backward(critic.values, samples, critic.optimizers):
        values = critic.values(row, torch.cat([row.predictors, row.ends]))
        loss = values.sum() * 0.0
        if indices:
            chosen = [samples[i] for i in indices]
            values = torch.cat(
                [
                    learned(s, v, algorithm)
                    for s, v in zip(chosen, split(values, chosen), strict=True)
                ]
            )
            before = torch.cat([learned(s, known(s.values), algorithm) for s in chosen])
            target = torch.cat([scale.target(known(s.returns)) for s in chosen])
            before, target = (sent(x.to(values.dtype), values.device) for x in (before, target))
            each, clipped = value_loss(config.loss, values, before, target)
            loss = config.loss_weight * each.sum() / max(count, 1.0)
            seen[:2] += torch.stack([loss.detach().double(), clipped.sum().double()])
            seen[2:] += len(values)
        # The ranks average gradients, but the loss already divides by the count over all of them.
        (loss * batches.ranks.size).backward()
    return seen.cpu()


def split(values: torch.Tensor, samples: list[TrainingSample]) -> list[torch.Tensor]:
    """[k + 1] values of each of the `samples` of a row: before each token in the loss, and at the
    last token. `values`: first for all predictors of the row, then for all ends."""
    counts = [len(sample.sampler_logprobs) for sample in samples]
    *tokens, ends = values.split([*counts, len(samples)])
    return [torch.cat(pair) for pair in zip(tokens, ends.split(1), strict=True)]


def learned(sample: TrainingSample, values: torch.Tensor, algorithm: Algorithm) -> torch.Tensor:
    """Return the `values` [k + 1] at the places where the critic learns a return."""
    if isinstance(algorithm.advantage, SequenceValue):
        return values[-1:]
    return values[: len(known(sample.returns))]


def learn_scale(
    critic: TrainedCritic, samples: list[TrainingSample], algorithm: Algorithm, ranks: Ranks
) -> dict[str, float]:
    """Update the critic's units with the batch's returns. Returns metrics of its predictions."""
    none = torch.zeros(0, dtype=torch.float64)
    returns = torch.cat([none, *(known(s.returns) for s in samples)])
    before = torch.cat([none, *(learned(s, known(s.values), algorithm).double() for s in samples)])
    values = critic.scale.value(before)
    missed = returns - values
    count, total, squares, value, miss, misses = ranks.sum(
        [
            float(len(returns)),
            *(float(tensor.sum()) for tensor in (returns, returns**2, values, missed, missed**2)),
        ]
    )
    n = max(count, 1.0)
    metrics = {"critic/value_mean": value / n, "critic/return_mean": total / n}
    spread = squares / n - (total / n) ** 2
    # Equal returns have no variance to explain.
    if spread > 1e-12 * max(squares / n, 1e-12):
        metrics["critic/explained_variance"] = 1 - (misses / n - (miss / n) ** 2) / spread
    if critic.config.normalisation is not None:
        critic.moments = critic.moments.after(critic.config.normalisation, count, total, squares)
    return metrics
