"""The losses of supervised runs, and the metrics of their validations.

Each loss takes the log-probabilities of one micro-batch at a time. It is normalised by counts over
all ranks that are known before the first micro-batch, so the gradient does not depend on the cut.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from learner.batch.sft_rows import Example
from learner.distributed import Ranks
from learner.metrics.sft_metrics import comparisons, losses, validation_losses
from learner.model.attention.row_calls import sent
from learner.model.passes.families import unwrapped
from learner.model.passes.microbatches import MicroBatches
from learner.objective.dpo import compare
from learner.state import TrainingState
from services.contracts.config import SFTConfig
from services.contracts.config.objective.supervised import DPO


class SupervisedLoss(Protocol):
    rows: list[Example]
    together: int
    """Consecutive rows that must share a micro-batch."""
    tokens: int
    """Tokens in the loss on all ranks."""

    def of(self, logprobs: torch.Tensor, chosen: Sequence[int]) -> torch.Tensor:
        """Return the loss of a micro-batch and add up its measurements. `logprobs` [k]: of the
        tokens in the loss of the `chosen` rows."""
        ...

    def metrics(self, names: Sequence[str], ranks: Ranks) -> dict[str, float]:
        """Return the step's metrics for the datasets with these names. They are the same on every
        rank."""
        ...


def loss_of(
    config: SFTConfig,
    state: TrainingState,
    rows: list[Example],
    components: int,
    batches: MicroBatches,
) -> SupervisedLoss:
    """Return the loss of a step with this rank's `rows`, from `components` datasets."""
    if isinstance(config.objective, DPO):
        reference = reference_logprobs(state, rows, batches)
        return DPOLoss(config.objective, rows, reference, components, batches.ranks)
    return LikelihoodLoss(rows, components, batches.ranks)


class LikelihoodLoss:
    """−Σ log π / tokens in the loss."""

    together = 1

    def __init__(self, rows: list[Example], components: int, ranks: Ranks) -> None:
        counts = [0.0] * components
        for row in rows:
            counts[row.component] += float(row.loss_mask.sum())
        self.rows, self._counts = rows, ranks.sum(counts)
        self.tokens = int(sum(self._counts))
        self.nats: torch.Tensor | None = None
        """[components] nats of this rank so far."""

    def of(self, logprobs: torch.Tensor, chosen: Sequence[int]) -> torch.Tensor:
        if self.nats is None:
            self.nats = logprobs.new_zeros(len(self._counts), dtype=torch.float64)
        which = datasets_of([self.rows[i] for i in chosen], logprobs.device)
        self.nats.index_add_(0, which, -logprobs.detach().double())
        return -logprobs.sum() / max(self.tokens, 1)

    def metrics(self, names: Sequence[str], ranks: Ranks) -> dict[str, float]:
        nats = [0.0] * len(names) if self.nats is None else self.nats.tolist()
        return losses(names, ranks.sum(nats), self._counts)


class DPOLoss:
    """The mean of `objective.dpo.compare` over pairs of rows: a chosen answer, then its rejected
    answer."""

    together = 2

    def __init__(
        self,
        config: DPO,
        rows: list[Example],
        reference: torch.Tensor,
        components: int,
        ranks: Ranks,
    ) -> None:
        """`reference`: [rows] float64 log-probabilities of the answers under the reference."""
        self.rows, self._config, self._reference = rows, config, reference
        counted = ranks.sum([float(sum(int(row.loss_mask.sum()) for row in rows)), len(rows) / 2])
        self.tokens, self._pairs = int(counted[0]), counted[1]
        self._sums = torch.zeros(components, len(COMPARED), dtype=torch.float64)

    def of(self, logprobs: torch.Tensor, chosen: Sequence[int]) -> torch.Tensor:
        sums = answer_sums(logprobs, [self.rows[i] for i in chosen])
        place = {row: at for at, row in enumerate(chosen)}
        first = [row for row in chosen if row % 2 == 0]
        pairs = torch.tensor([first, [row + 1 for row in first]])
        order = torch.tensor([[place[row] for row in rows] for rows in pairs.tolist()])
        policy = sums[sent(order, logprobs.device)]
        reference = sent(self._reference[pairs], logprobs.device)
        loss, measured = compared(self._config, policy, reference)
        which = torch.tensor([self.rows[row].component for row in first])
        self._sums.index_add_(0, which, measured.cpu())
        return loss.sum() / max(self._pairs, 1.0)

    def metrics(self, names: Sequence[str], ranks: Ranks) -> dict[str, float]:
        return comparisons("train", names, COMPARED, _over(self._sums, ranks))


COMPARED = (
    "pairs",
    "loss",
    "accuracy",
    "margin",
    "chosen_reward",
    "rejected_reward",
    "chosen_logprob",
    "rejected_logprob",
)
"""Quantities that are summed over pairs."""


def compared(
    config: DPO, policy: torch.Tensor, reference: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses [n] of pairs, from log-probabilities [2, n] of both answers, and the values
    [n, COMPARED] of each pair."""
    pairs = compare(policy, reference, config.beta, config.label_smoothing)
    chosen, rejected = pairs.rewards.detach()
    margin = chosen - rejected
    columns = (
        torch.ones_like(margin),
        pairs.loss.detach(),
        (margin > 0).double(),
        margin,
        chosen,
        rejected,
        *policy.detach(),
    )
    return pairs.loss, torch.stack(columns, 1)


def answer_sums(logprobs: torch.Tensor, rows: Sequence[Example]) -> torch.Tensor:
    """[rows] float64 sum of each row's `logprobs` [k] of the tokens in the loss."""
    counts = torch.tensor([int(row.loss_mask.sum()) for row in rows])
    which = sent(torch.arange(len(rows)).repeat_interleave(counts), logprobs.device)
    sums = logprobs.new_zeros(len(rows), dtype=torch.float64)
    return sums.index_add(0, which, logprobs.double())


def reference_logprobs(
    state: TrainingState, rows: list[Example], batches: MicroBatches
) -> torch.Tensor:
    """[rows] float64 log-probabilities of the answers under the run's reference."""
    assert state.copies.reference is not None
    with state.copies.reference.present() as model:
        return logprobs_of(model, rows, batches)


@torch.no_grad()
def logprobs_of(model: nn.Module, rows: list[Example], batches: MicroBatches) -> torch.Tensor:
    """[rows] float64 on the host: summed log-probabilities of the answers under `model`."""
    place = {id(row): at for at, row in enumerate(rows)}
    order: list[int] = []
    computed: list[torch.Tensor] = []
    for chosen, row in batches.forward(model, rows):
        logprobs, _ = unwrapped(model)(row)
        if chosen:
            order += [place[id(each)] for each in chosen]
            computed.append(answer_sums(logprobs, chosen))
    sums = torch.zeros(len(rows), dtype=torch.float64)
    if computed:
        # Copied to the host once, after all passes.
        sums[order] = torch.cat(computed).cpu()
    return sums


def datasets_of(rows: Sequence[Example], device: torch.device) -> torch.Tensor:
    """[k] dataset index of each token of `rows` in the loss."""
    counts = torch.tensor([int(row.loss_mask.sum()) for row in rows])
    which = torch.tensor([row.component for row in rows])
    return sent(which.repeat_interleave(counts), device)


@torch.no_grad()
def validation_sums(
    config: SFTConfig,
    state: TrainingState,
    rows: list[Example],
    components: int,
    batches: MicroBatches,
) -> torch.Tensor:
    """[components, …] float64 sums over this rank's `rows`, for `validation_metrics`."""
    if not isinstance(config.objective, DPO):
        return text_sums(state.policy, rows, components, batches)
    reference = reference_logprobs(state, rows, batches)
    policy = logprobs_of(state.policy, rows, batches)
    _, measured = compared(config.objective, policy.view(-1, 2).T, reference.view(-1, 2).T)
    which = torch.tensor([row.component for row in rows[::2]], dtype=torch.int64)
    sums = torch.zeros(components, len(COMPARED), dtype=torch.float64)
    return sums.index_add_(0, which, measured)


def validation_metrics(
    config: SFTConfig, names: Sequence[str], sums: torch.Tensor, ranks: Ranks
) -> dict[str, float]:
    """Return metrics over all rows from each rank's sums. They are the same on every rank."""
    totals = _over(sums, ranks)
    if isinstance(config.objective, DPO):
        return comparisons("validation", names, COMPARED, totals)
    return validation_losses(names, totals)


def text_sums(
    policy: nn.Module, rows: list[Example], components: int, batches: MicroBatches
) -> torch.Tensor:
    """[components, 4] float64: nats, tokens, nats of tokens that spell text, and bytes of that
    text."""
    sums = torch.zeros(components, 4, dtype=torch.float64)
    for chosen, row in batches.forward(policy, rows):
        logprobs = unwrapped(policy)(row)[0]
        if not chosen:
            continue
        sizes = torch.cat(
            [example.sizes[example.loss_mask] for example in chosen if example.sizes is not None]
        )
        nats, spells = -logprobs.double().cpu(), (sizes >= 0).double()
        columns = (nats, torch.ones_like(nats), nats * spells, sizes.clamp(min=0).double())
        sums.index_add_(0, datasets_of(chosen, sums.device), torch.stack(columns, 1))
    return sums


def _over(sums: torch.Tensor, ranks: Ranks) -> list[list[float]]:
    flat = torch.tensor(ranks.sum(sums.flatten().tolist()), dtype=torch.float64)
    totals: list[list[float]] = flat.view_as(sums).tolist()
    return totals
