"""Passes of a model over a batch in packed micro-batches. Every rank makes the same number of
passes.

The cut must never change the gradient: sums are normalised by counts over all ranks that are known
before the first backward pass.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from learner.batch.packing import micro_batches_needed
from learner.batch.samples import ROUTER_CHOICE, TrainingSample
from learner.batch.sft_rows import Example
from learner.distributed import Context, Ranks
from learner.errors import UnusableModel
from learner.model.attention.packed import why_not_shared
from learner.model.head.topk_logprobs import padded
from learner.model.passes.families import (
    Family,
    cost_of,
    cut,
    device_of,
    families_of,
    sharing_of,
    sizes_of,
    units_of,
)
from learner.model.passes.logprobs import PackedRow, packed_row
from learner.model.placement.parallel import is_sharded
from learner.optim.optimizers import Optimizers

# On a CPU, activations of more tokens than this do not fit in the caches: micro-batches of 1,000 to
# 4,000 tokens are the fastest for models of 1 M to 100 M parameters. 16,000 take half as long
# again.
CPU_TOKENS = 4096
S = TypeVar("S", TrainingSample, Example)


@dataclass(frozen=True)
class MicroBatches:
    """Cuts samples into packed micro-batches, each for one pass of a model on all `ranks`."""

    ranks: Ranks
    budget: int
    """Most tokens of a micro-batch on each rank (`training.tokens_per_microbatch`)."""

    def backward(
        self,
        model: nn.Module,
        samples: Sequence[S],
        optimizers: Optimizers | None = None,
        together: int = 1,
    ) -> Iterator[tuple[list[int], PackedRow]]:
        """Yield micro-batches of `samples`, each for one forward and one backward pass of `model`:
        indices of the samples, and their row. The last backward pass sums gradients over ranks, and
        is announced to `optimizers`. Each `together` consecutive samples are in one micro-batch.

        A rank with fewer micro-batches than the others gets rows without samples, for a loss of 0:
        DDP's all-reduce needs the backward pass.
        """
        budget = self._row_budget(model)
        families = _families(model, samples, budget, together)
        count = int(self.ranks.max([max(micro_batches_needed(sizes_of(families), budget), 1)])[0])
        for number, chosen in enumerate(cut(families, budget, count), 1):
            if optimizers and number == count:
                optimizers.last_pass()
            with synchronised(model, number == count):
                row = row_of(chosen, samples, device_of(model), self.ranks.context)
                yield [i for family in chosen for i in family.members], row

    def forward(
        self, model: nn.Module, samples: Sequence[S]
    ) -> Iterator[tuple[list[S], PackedRow]]:
        """Yield micro-batches of `samples` and their rows, for forward passes of `model`. If the
        model is sharded, every rank gets equally many micro-batches, some of them without samples.
        Otherwise a rank without samples gets none."""
        budget, count = self._row_budget(model), None
        families = _families(model, samples, budget)
        if is_sharded(model):
            count = int(self.ranks.max([micro_batches_needed(sizes_of(families), budget)])[0])
        for chosen in cut(families, budget, count):
            row = row_of(chosen, samples, device_of(model), self.ranks.context)
            yield [samples[i] for family in chosen for i in family.members], row

    def _row_budget(self, model: nn.Module) -> int:
        """Return the most tokens of a row, which several ranks may share."""
        sharing = self.ranks.context.size if self.ranks.context else 1
        on_cpu = device_of(model).type == "cpu"
        return sharing * (min(self.budget, CPU_TOKENS) if on_cpu else self.budget)


def check_sharing(model: PreTrainedModel, ranks: Ranks) -> None:
    """Raise UnusableModel if ranks should share rows of `model` but cannot."""
    if ranks.context and (why := why_not_shared(model, ranks.context.size)):
        raise UnusableModel(f"training.context_parallel {ranks.context.size}: {why}")


def synchronised(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Have DDP sum gradients over ranks only in the `last` backward pass of an optimizer step. A
    sharded model sums them in each pass, or every rank would hold the gradients of the whole
    model."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return nullcontext()


def _families(
    model: nn.Module, samples: Sequence[S], budget: int, together: int = 1
) -> list[Family]:
    sharing, cost = sharing_of(model), cost_of(model)
    if together > 1:
        return units_of(samples, together, sharing, cost)
    return families_of(samples, budget, sharing, cost)


def row_of(
    families: Sequence[Family],
    samples: Sequence[S],
    device: torch.device,
    context: Context | None = None,
) -> PackedRow:
    """Return the row of `families` of `samples`, shared by the ranks of `context`. Without
    families, the row predicts one dummy token, because every rank makes the same number of
    passes."""
    if not families:
        return packed_row(
            [torch.zeros(2, dtype=torch.int64)],
            [torch.tensor([False, True])],
            device,
            context=context,
        )
    chosen = [samples[i] for family in families for i in family.members]
    sampling_mask = [s.sampling_mask for s in chosen if s.sampling_mask is not None]
    return packed_row(
        [s.tokens for s in chosen],
        [s.loss_mask for s in chosen],
        device,
        padded(sampling_mask) if sampling_mask else None,
        _experts(chosen),
        [n for family in families for n in family.shared],
        context,
    )


def _experts(samples: Sequence[S]) -> list[torch.Tensor] | None:
    recorded = [s.experts for s in samples if s.experts is not None]
    if not recorded:
        return None
    shape: torch.Size = recorded[0].shape[1:]
    return [
        recorded[0].new_full((len(s.tokens), *shape), ROUTER_CHOICE)
        if s.experts is None
        else s.experts
        for s in samples
    ]
