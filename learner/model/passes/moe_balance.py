"""Balance of a model's experts: two terms of the loss, and metrics.

Over the n tokens of a minibatch in the loss, on all ranks, each counted at the token before it,
whose routers decide what it will be; over the model's L routers with E experts, of which a token
takes k. With f_e the share of tokens that went to expert e (all experts together: k), P_e the
routers' mean probability of it, both over tokens and routers:

    aux = E · Σ_e sg(f_e) · P_e         (Fedus et al. 2022, as transformers has it) k if all is even
    z   = mean of logsumexp(logits)²    (Zoph et al. 2022)

A product of two means over the minibatch is no sum over its tokens. f is therefore counted over all
ranks before the first backward pass, so that the gradient depends on no cut of the minibatch.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from learner.batch.samples import OWN, Sample
from learner.distributed import Ranks
from learner.model.moe.routing import Routed, Routing
from learner.model.passes.families import device_of, unwrapped
from learner.model.passes.logprobs import PackedRow


def routing_of(policy: nn.Module) -> Routing | None:
    """The routers of `policy`, a TokenLogprobs that may be inside DDP."""
    routing = getattr(unwrapped(policy), "routing", None)
    return routing if isinstance(routing, Routing) else None


@dataclass(frozen=True)
class Balance:
    """The routers' terms in the loss of one minibatch, and what they are normalised by."""

    routing: Routing
    tokens: int
    """n, over all ranks."""
    counts: torch.Tensor
    """[E] tokens that went to each expert, over all routers and ranks; 0 where no term needs it."""

    @property
    def routed(self) -> Routed:
        """The routers' output in the last forward pass."""
        assert self.routing.routed is not None
        return self.routing.routed

    def loss(self) -> torch.Tensor:
        """The part of both terms, with their weights, that the last forward pass adds."""
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
    policy: nn.Module,
    tokens: int,
    ranks: Ranks,
    recorded: Callable[[Routing], torch.Tensor | None],
    rows: Iterable[tuple[Sequence[object], PackedRow]],
) -> Balance | None:
    """The terms of a minibatch with `tokens` in the loss on all ranks, of which this one has `rows`
    (`forward_rows`); None for a dense model.

    Where the auxiliary loss has a weight, `recorded` counts [E] how many of this rank's tokens go
    to each expert, over all routers; where it cannot, that costs a forward pass over `rows`.
    """
    routing = routing_of(policy)
    if routing is None:
        return None
    counts = torch.zeros(routing.experts, dtype=torch.int64)
    if routing.aux_weight and torch.is_grad_enabled():
        found = recorded(routing)
        # The same way on every rank: the passes of a sharded model are passes of all of them.
        (unknown,) = ranks.max([found is None])
        # Recorded ones are of whole samples; a pass has those of this rank's part of the rows.
        own = bool(unknown) or found is None
        counts = computed_counts(policy, routing, rows) if unknown or found is None else found
        counts = torch.tensor(ranks.sum(counts.tolist(), own), dtype=torch.float64)
    return Balance(routing, tokens, counts)


def recorded_counts(samples: list[Sample], routing: Routing) -> torch.Tensor | None:
    """[E] tokens in the loss that went to each expert when they were sampled, over all routers;
    None where some were not recorded."""
    counts = torch.zeros(routing.experts, dtype=torch.int64)
    for sample in samples:
        if sample.experts is None:
            return None
        predictors = sample.loss_mask.nonzero().squeeze(1) - 1
        experts = sample.experts[predictors][:, routing.layers].flatten().long()
        if bool((experts == OWN).any()):
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
            # `bincount` would have the host wait for the largest number.
            taken = routing.routed.taken.flatten()
            counts.index_add_(0, taken, torch.ones_like(taken))
    return counts.cpu()


class RouterTally:
    """Sums over a step's routed tokens, reduced over ranks at its end."""

    def __init__(self, routing: Routing) -> None:
        self._layers, self._experts, self._used = len(routing.layers), routing.experts, routing.used
        self.taken = torch.zeros(self._layers, self._experts, dtype=torch.float64)
        self.probabilities = torch.zeros(self._experts, dtype=torch.float64)
        # Tokens, Σ z, tokens whose experts were recorded, experts of these that agree, both terms.
        self.sums = torch.zeros(5, dtype=torch.float64)

    @torch.no_grad()
    def add(self, routed: Routed, terms: torch.Tensor) -> None:
        """Add the tokens of a micro-batch, and what they add to the loss (`Balance.loss`)."""
        self._to(routed.logits.device)
        taken = routed.taken.flatten(1)
        self.taken.scatter_add_(1, taken, torch.ones_like(taken, dtype=torch.float64))
        self.probabilities += routed.logits.softmax(-1).double().sum((0, 1))
        same = (routed.own[..., None] == routed.taken[..., None, :]).any(-1).sum((0, 2))
        self.sums[:1] += len(routed.replayed)
        sums = (
            routed.logits.double().logsumexp(-1).square().sum(),
            routed.replayed.sum(),
            (same * routed.replayed).sum(),
            terms,
        )
        self.sums[1:] += torch.stack([one.double() for one in sums])

    def _to(self, device: torch.device) -> None:
        """The host waits for no sum until `metrics`."""
        self.taken, self.probabilities, self.sums = (
            one.to(device) for one in (self.taken, self.probabilities, self.sums)
        )

    def include(self, other: "RouterTally") -> None:
        """Add another tally."""
        self._to(other.sums.device)
        self.taken += other.taken
        self.probabilities += other.probabilities
        self.sums += other.sums

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """By the names of docs/metrics.md; none where nothing trained."""
        parts = [self.sums, self.probabilities, self.taken.flatten()]
        every = ranks.sum(torch.cat(parts).tolist(), own=True)
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
