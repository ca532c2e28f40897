"""Sums over a step's policy passes, and their metrics."""

import torch

from learner.distributed import Ranks
from learner.model.moe.routing import Routing
from learner.model.passes.logprobs import PackedRow
from learner.model.passes.moe_balance import RouterTally

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
    "sampler_kl",
    "sequence_tokens",
    "computed_tokens",
)
MAXIMA = ("ratio", "logprob_gap", "sampler_gap")


class Tally:
    """Sums and maxima over the tokens of a step, reduced over ranks once at the step's end. Until
    then they stay on the tokens' device, so the host never waits."""

    def __init__(self, routing: Routing | None = None, unchanged: bool = False) -> None:
        """`routing`: the policy's routing if it has experts; `unchanged`: the policy is still the
        version at which the batch is trained, so log-probabilities of tokens sampled under it must
        equal the sampler's."""
        self.unchanged = unchanged
        self.routers = RouterTally(routing) if routing else None
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64)
        self.maxima = torch.zeros(len(MAXIMA), dtype=torch.float64)

    def add(self, values: dict[str, torch.Tensor]) -> None:
        for name, value in values.items():
            place = SUMS.index(name)
            self.sums = self.sums.to(value.device)
            self.sums[place : place + 1] += value.detach().double().sum()

    def count(self, row: PackedRow) -> None:
        """Count the tokens of a row's sequences, and the tokens that the row computes for them."""
        for name, tokens in (
            ("sequence_tokens", row.sequence_tokens),
            ("computed_tokens", len(row.tokens)),
        ):
            place = SUMS.index(name)
            self.sums[place : place + 1] += tokens

    def peak(self, name: str, value: torch.Tensor) -> None:
        """Raise a maximum to the largest entry of `value`."""
        if value.numel():
            place = MAXIMA.index(name)
            self.maxima = self.maxima.to(value.device)
            here = self.maxima[place : place + 1]
            here.copy_(torch.maximum(here, value.detach().double().max()))

    def include(self, other: "Tally") -> None:
        self.sums = self.sums.to(other.sums.device) + other.sums
        self.maxima = torch.maximum(self.maxima.to(other.maxima.device), other.maxima)
        if self.routers and other.routers:
            self.routers.include(other.routers)

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """Return means over the tokens of all ranks, named as in docs/metrics.md."""
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
            "train/shared_tokens": 1
            - total["computed_tokens"] / max(total["sequence_tokens"], 1.0),
            "mismatch/sampler_kl": total["sampler_kl"] / before,
            "mismatch/sampler_logprob_max": top["sampler_gap"],
        }
        if fresh:
            # A gap is an error only if learner and sampler had the same weights.
            metrics["mismatch/kl"] = total["mismatch_kl"] / fresh
            metrics["mismatch/logprob_max"] = top["logprob_gap"]
        if total["sequences"]:
            metrics["train/kl_per_sample"] = total["kl"] / total["sequences"]
        if self.routers:
            metrics |= self.routers.metrics(ranks)
        return metrics
