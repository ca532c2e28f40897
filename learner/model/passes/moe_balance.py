"""Balance of a model's experts: two terms of the loss, and metrics.

Both terms are over the n tokens in the loss of a minibatch, on all ranks, and over the model's L
routers. Each token counts at its predecessor, whose routers process its prediction. There are E
experts, and a token uses k experts. f_e is the share of tokens that went to expert e; the shares
add up to k. P_e is the routers' mean probability of expert e. Both are means over tokens and
routers:

    aux = E · Σ_e sg(f_e) · P_e         (Fedus et al. 2022, as transformers has it) k if all is even
    z   = mean of logsumexp(logits)²    (Zoph et al. 2022)

A product of two means over the minibatch is not a sum over its tokens. Therefore f is counted over
all ranks before the first backward pass, and the gradient does not depend on how the minibatch is
cut.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from learner.batch.samples import ROUTER_CHOICE
from learner.distributed import Ranks
from learner.model.moe.routing import Routed, Routing
from learner.model.passes.families import device_of, unwrapped
from learner.model.passes.logprobs import PackedRow
from learner.model.passes.microbatches import MicroBatches, S


def routing_of(policy: nn.Module) -> Routing | None:
    """Return the routers of `policy`, a TokenLogprobs that may be inside DDP."""
    routing = getattr(unwrapped(policy), "routing", None)
    return routing if isinstance(routing, Routing) else None


@dataclass(frozen=True)
class RouterLoss:
    """The routers' terms in the loss of one minibatch, and their normalisation."""

    routing: Routing
    tokens: int
    """n, over all ranks."""
    counts: torch.Tensor
    """[E] tokens that went to each expert, over all routers and ranks; 0 if no term needs the
    count."""

    @property
    def routed(self) -> Routed:
        """The routers' output in the last forward pass."""
        assert self.routing.routed is not None
        return self.routing.routed

    def loss(self) -> torch.Tensor:
        """Return the share of both terms, with their weights, that the last forward pass adds."""
        logits = self.routed.logits
        n = len(self.routing.layers) * max(self.tokens, 1)
        total = logits.new_zeros(())
        if self.routing.aux_weight:
            shares, probabilities = self.counts.to(logits) / n, logits.softmax(-1).sum((0, 1)) / n
            total += self.routing.aux_weight * self.routing.experts * (shares @ probabilities)
        if self.routing.z_weight:
            total += self.routing.z_weight * logits.logsumexp(-1).square().sum() / n
        return total


def balance(
    policy: nn.Module, samples: Sequence[S], tokens: int, batches: MicroBatches
) -> RouterLoss | None:
    """Return the router terms of a minibatch with `tokens` tokens in the loss on all ranks, or None
    for a dense model. `samples`: this rank's samples.

    If the auxiliary loss has a weight and a token's experts were not recorded, counting takes a
    forward pass.
    """
    routing, ranks = routing_of(policy), batches.ranks
    if routing is None:
        return None
    counts = torch.zeros(routing.experts, dtype=torch.int64)
    if routing.aux_weight and torch.is_grad_enabled():
        counted = recorded_counts(samples, routing)
        # All ranks count in the same way, because they make the passes of a sharded model together.
        (unknown,) = ranks.max([counted is None])
        if unknown or counted is None:
            counted = computed_counts(policy, routing, batches.forward(policy, samples))
        # Recorded counts cover whole samples. A pass counts only this rank's part of the rows.
        counts = torch.tensor(ranks.sum(counted.tolist(), bool(unknown)), dtype=torch.float64)
    return RouterLoss(routing, tokens, counts)


def recorded_counts(samples: Sequence[S], routing: Routing) -> torch.Tensor | None:
    """[E] tokens in the loss that went to each expert when they were sampled, over all routers.
    Return None if a token's experts were not recorded."""
    counts = torch.zeros(routing.experts, dtype=torch.int64)
    for sample in samples:
        if sample.experts is None:
            return None
        predictors = sample.loss_mask.nonzero().squeeze(1) - 1
        experts = sample.experts[predictors][:, routing.layers].flatten().long()
        if bool((experts == ROUTER_CHOICE).any()):
            return None
        counts += torch.bincount(experts, minlength=routing.experts)
    return counts


@torch.no_grad()
def computed_counts(
    policy: nn.Module, routing: Routing, rows: Iterable[tuple[Sequence[object], PackedRow]]
) -> torch.Tensor:
    """[E] tokens of `rows` in the loss that go to each expert now, over all routers."""
    counts = torch.zeros(routing.experts, dtype=torch.int64, device=device_of(policy))
    for chosen, row in rows:
        unwrapped(policy)(row)
        assert routing.routed is not None
        if chosen:
            # `bincount` would make the host wait for the largest number.
            taken = routing.routed.taken.flatten()
            counts.index_add_(0, taken, torch.ones_like(taken))
    return counts.cpu()


class RouterTally:
    """Sums over a step's routed tokens, reduced over ranks at the step's end."""

    def __init__(self, routing: Routing) -> None:
        self._layers, self._experts, self._used = len(routing.layers), routing.experts, routing.used
        self.taken = torch.zeros(self._layers, self._experts, dtype=torch.float64)
        self.probabilities = torch.zeros(self._experts, dtype=torch.float64)
        # Tokens, Σ z, tokens with recorded experts, agreements of the recorded experts, both terms.
        self.sums = torch.zeros(5, dtype=torch.float64)

    @torch.no_grad()
    def add(self, routed: Routed, terms: torch.Tensor) -> None:
        """Add the tokens of a micro-batch, and their terms of the loss (`RouterLoss.loss`)."""
        self._to(routed.logits.device)
        taken = routed.taken.flatten(1)
        self.taken.scatter_add_(1, taken, torch.ones_like(taken, dtype=torch.float64))
        self.probabilities += routed.logits.softmax(-1).double().sum((0, 1))
        same = (routed.chosen[..., None] == routed.taken[..., None, :]).any(-1).sum((0, 2))
        self.sums[:1] += len(routed.replayed)
        sums = (
            routed.logits.double().logsumexp(-1).square().sum(),
            routed.replayed.sum(),
            (same * routed.replayed).sum(),
            terms,
        )
        self.sums[1:] += torch.stack([value.double() for value in sums])

    def _to(self, device: torch.device) -> None:
        """Move the sums to `device`, so the host does not wait before `metrics`."""
        self.taken, self.probabilities, self.sums = (
            tensor.to(device) for tensor in (self.taken, self.probabilities, self.sums)
        )

    def include(self, other: "RouterTally") -> None:
        self._to(other.sums.device)
        self.taken += other.taken
        self.probabilities += other.probabilities
        self.sums += other.sums

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """Return the metrics, named as in docs/metrics.md. They are empty until a token is
        trained."""
        parts = [self.sums, self.probabilities, self.taken.flatten()]
        every = ranks.sum(torch.cat(parts).tolist(), separate=True)
        total = torch.tensor(every, dtype=torch.float64)
        sums, probabilities, taken = total.split([len(part) for part in parts])
        tokens, z, replayed, same, terms = sums.tolist()
        if not tokens:
            return {}
        taken = taken.view_as(self.taken)
        n = self._layers * tokens
        even = tokens * self._used / self._experts
        metrics = {
            "router/aux_loss": float(self._experts * (taken.sum(0) / n) @ (probabilities / n)),
            "router/z_loss": z / n,
            "router/loss": terms,
            "router/load_max": float(taken.max()) / even,
            "router/idle": float((taken == 0).double().mean()),
            "router/replayed": replayed / tokens,
        }
        if replayed:
            metrics["router/agreement"] = same / (replayed * self._layers * self._used)
        return metrics
