"""What a supervised run minimises over its rows, and what it measures on those of a validation.

Each loss takes the log-probabilities of one micro-batch after another. It is normalised by counts
over all ranks that are known before the first, so that the gradient depends on no cut.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from learner.batch.sft_rows import Example
from learner.distributed import Ranks
from learner.model.attention.row_calls import sent
from learner.model.passes.families import unwrapped
from learner.model.passes.microbatches import forward_rows
from learner.objective.dpo import compare
from learner.report.sft_metrics import comparisons, losses, validation_losses
from learner.state import TrainingState
from services.contracts.config import SFTConfig
from services.contracts.config.objective.supervised import DPO


class Loss(Protocol):
    """The loss of one step, over this rank's `rows`."""

    rows: list[Example]
    together: int
    """So many rows behind each other have to be in one micro-batch."""
    tokens: int
    """In the loss, on all ranks."""

    def of(self, logprobs: torch.Tensor, chosen: Sequence[int]) -> torch.Tensor:
        """The part of a micro-batch: `logprobs` [k] of the tokens in the loss of the `chosen` rows.
        What it measures is added up."""
        ...

    def metrics(self, names: Sequence[str], ranks: Ranks) -> dict[str, float]:
        """The step's, of the datasets with these names; the same on every rank."""
        ...


def loss_of(
    config: SFTConfig, state: TrainingState, rows: list[Example], components: int, ranks: Ranks
) -> Loss:
    """The loss of a step of which this rank has `rows`, of so many datasets."""
    if isinstance(config.objective, DPO):
        reference = reference_logprobs(state, rows, config, ranks)
        return DPOLoss(config.objective, rows, reference, components, ranks)
    return LikelihoodLoss(rows, components, ranks)


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
        """[components] of this rank so far."""

    def of(self, logprobs: torch.Tensor, chosen: Sequence[int]) -> torch.Tensor:
        """As `Loss`."""
        if self.nats is None:
            self.nats = logprobs.new_zeros(len(self._counts), dtype=torch.float64)
        which = datasets_of([self.rows[i] for i in chosen], logprobs.device)
        self.nats.index_add_(0, which, -logprobs.detach().double())
        return -logprobs.sum() / max(self.tokens, 1)

    def metrics(self, names: Sequence[str], ranks: Ranks) -> dict[str, float]:
        """As `Loss`."""
        nats = [0.0] * len(names) if self.nats is None else self.nats.tolist()
        return losses(names, ranks.sum(nats), self._counts)


class DPOLoss:
    """The mean of `objective.dpo.compare` over pairs of rows: a chosen answer, then the rejected
    one."""

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
        """As `Loss`."""
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
        """As `Loss`."""
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
"""What is summed over pairs."""


def compared(
    config: DPO, policy: torch.Tensor, reference: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """[n] the losses of pairs, from [2, n] log-probabilities of both answers; and [n, COMPARED] of
    each."""
    found = compare(policy, reference, config.beta, config.label_smoothing)
    chosen, rejected = found.rewards.detach()
    margin = chosen - rejected
    columns = (
        torch.ones_like(margin),
        found.loss.detach(),
        (margin > 0).double(),
        margin,
        chosen,
        rejected,
        *policy.detach(),
    )
    return found.loss, torch.stack(columns, 1)


def answer_sums(logprobs: torch.Tensor, rows: Sequence[Example]) -> torch.Tensor:
    """[rows] float64: the sum over each row of `logprobs` [k], those of its tokens in the loss."""
    counts = torch.tensor([int(row.loss_mask.sum()) for row in rows])
    which = sent(torch.arange(len(rows)).repeat_interleave(counts), logprobs.device)
    found = logprobs.new_zeros(len(rows), dtype=torch.float64)
    return found.index_add(0, which, logprobs.double())


def reference_logprobs(
    state: TrainingState, rows: list[Example], config: SFTConfig, ranks: Ranks
) -> torch.Tensor:
    """[rows] float64: log-probabilities of the answers under the run's reference."""
    assert state.copies.reference is not None
    with state.copies.reference.present() as model:
        return logprobs_of(model, rows, config.training.tokens_per_microbatch, ranks)


@torch.no_grad()
def logprobs_of(model: nn.Module, rows: list[Example], budget: int, ranks: Ranks) -> torch.Tensor:
    """[rows] float64 on the host: the sums of log-probabilities of the answers under `model`."""
    place = {id(row): at for at, row in enumerate(rows)}
    order: list[int] = []
    found: list[torch.Tensor] = []
    for chosen, row in forward_rows(model, rows, budget, ranks):
        logprobs, _ = unwrapped(model)(row)
        if chosen:
            order += [place[id(one)] for one in chosen]
            found.append(answer_sums(logprobs, chosen))
    sums = torch.zeros(len(rows), dtype=torch.float64)
    if found:
        # Fetched once, after all passes.
        sums[order] = torch.cat(found).cpu()
    return sums


def datasets_of(rows: Sequence[Example], device: torch.device) -> torch.Tensor:
    """[k] the dataset of each token of `rows` in the loss."""
    counts = torch.tensor([int(row.loss_mask.sum()) for row in rows])
    which = torch.tensor([row.component for row in rows])
    return sent(which.repeat_interleave(counts), device)


@torch.no_grad()
def validation_sums(
    config: SFTConfig, state: TrainingState, rows: list[Example], components: int, ranks: Ranks
) -> torch.Tensor:
    """[components, …] float64: what `validation_metrics` is made from, of this rank's `rows`."""
    budget = config.training.tokens_per_microbatch
    if not isinstance(config.objective, DPO):
        return text_sums(state.policy, rows, budget, ranks, components)
    reference = reference_logprobs(state, rows, config, ranks)
    policy = logprobs_of(state.policy, rows, budget, ranks)
    _, measured = compared(config.objective, policy.view(-1, 2).T, reference.view(-1, 2).T)
    which = torch.tensor([row.component for row in rows[::2]], dtype=torch.int64)
    found = torch.zeros(components, len(COMPARED), dtype=torch.float64)
    return found.index_add_(0, which, measured)


def validation_metrics(
    config: SFTConfig, names: Sequence[str], sums: torch.Tensor, ranks: Ranks
) -> dict[str, float]:
    """Of all rows, from the sums of each rank; the same on every rank."""
    totals = _over(sums, ranks)
    if isinstance(config.objective, DPO):
        return comparisons("validation", names, COMPARED, totals)
    return validation_losses(names, totals)


def text_sums(
    policy: nn.Module, rows: list[Example], budget: int, ranks: Ranks, components: int
) -> torch.Tensor:
    """[components, 4] float64: nats, tokens, nats of tokens that spell text, and its bytes."""
    sums = torch.zeros(components, 4, dtype=torch.float64)
    for chosen, row in forward_rows(policy, rows, budget, ranks):
        logprobs = unwrapped(policy)(row)[0]
        if not chosen:
            continue
        sizes = torch.cat([one.sizes[one.loss_mask] for one in chosen if one.sizes is not None])
        nats, spells = -logprobs.double().cpu(), (sizes >= 0).double()
        columns = (nats, torch.ones_like(nats), nats * spells, sizes.clamp(min=0).double())
        sums.index_add_(0, datasets_of(chosen, sums.device), torch.stack(columns, 1))
    return sums


def _over(sums: torch.Tensor, ranks: Ranks) -> list[list[float]]:
    """`sums` of all ranks."""
    flat = torch.tensor(ranks.sum(sums.flatten().tolist()), dtype=torch.float64)
    found: list[list[float]] = flat.view_as(sums).tolist()
    return found
