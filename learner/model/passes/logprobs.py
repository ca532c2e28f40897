"""Log-probabilities of the tokens that train, and no others.

Hidden states are selected *before* the output head (`output_head`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from learner.batch.prefixes import segments, token_places
from learner.model.attention.context_parallel import RowPart, row_part
from learner.model.attention.packed import NAME
from learner.model.attention.row_calls import sent
from learner.model.attention.row_layout import PackedLayout, packed_layout
from learner.model.head.logit_scale import UnusableHead, logit_scale
from learner.model.head.output_head import head_logprobs
from learner.model.head.topk_logprobs import topk_logprobs
from learner.model.pass_weights import computing_in

if TYPE_CHECKING:  # bench.learner.one_pass also runs with only torch and transformers
    from learner.distributed import Context
    from learner.model.moe.routing import Routing


@dataclass(frozen=True)
class PackedRow:
    """One micro-batch: concatenated sequences, and the tokens to predict. A shared prefix appears
    once."""

    tokens: torch.Tensor
    """[T] token ids."""
    positions: torch.Tensor
    """[T] position of each token within its sequence."""
    layout: PackedLayout
    predictors: torch.Tensor
    """[k] index of the token *before* each target. The last token of a shared prompt predicts the
    first token of each answer."""
    targets: torch.Tensor
    """[k] token ids to predict."""
    ends: torch.Tensor
    """[n] index of the last token of each sequence."""
    sequence_tokens: int
    """Tokens of all sequences. Shared tokens count for each sequence."""
    sampling_mask: torch.Tensor | None = None
    """[k, w] ids that each target was chosen from, padded with −1. None: the whole vocabulary."""
    experts: torch.Tensor | None = None
    """[T, layers, experts per token] int16: experts to which routers send each token
    (`routing`)."""
    part: RowPart | None = None
    """This rank's part of the row. None: the whole row."""


def packed_row(
    sequences: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    device: torch.device | str = "cpu",
    sampling_mask: torch.Tensor | None = None,
    experts: list[torch.Tensor] | None = None,
    shared: Sequence[int] | None = None,
    context: "Context | None" = None,
) -> PackedRow:
    """Pack `sequences` ([t] ids each). `loss_masks` ([t] bool each): the tokens to predict;
    `sampling_mask`: see PackedRow; `experts` ([t, layers, experts per token] each): experts to
    which routers send them; `shared`: leading tokens that each sequence shares with its
    predecessor; `context`: ranks that share the row.

    Raises ValueError if a mask includes a first token, which has no predecessor.
    """
    if any(bool(mask[0]) for mask in loss_masks):
        raise ValueError("the first token of a sequence cannot be predicted")
    lengths = [len(sequence) for sequence in sequences]
    shared = [0] * len(sequences) if shared is None else shared
    forest = segments(lengths, shared)
    places = token_places(lengths, shared)
    chosen = [mask.nonzero().squeeze(1) for mask in loss_masks]

    before = [place[c - 1] for place, c in zip(places, chosen, strict=True)]
    targets = [sequence[c] for sequence, c in zip(sequences, chosen, strict=True)]

    def unshared(parts: list[torch.Tensor]) -> torch.Tensor:
        """Concatenate the part of each sequence that it does not share with its predecessor."""
        return sent(torch.cat([part[n:] for part, n in zip(parts, shared, strict=True)]), device)

    predictors = torch.cat(before)
    return PackedRow(
        tokens=unshared(sequences),
        positions=unshared([torch.arange(n) for n in lengths]),
        layout=packed_layout(forest.lengths, device, forest.parents),
        predictors=sent(predictors, device),
        targets=sent(torch.cat(targets), device),
        ends=sent(torch.stack([place[-1] for place in places]), device),
        sequence_tokens=sum(lengths),
        sampling_mask=None if sampling_mask is None else sent(sampling_mask, device),
        experts=None if experts is None else unshared(experts),
        part=row_part(context, sum(forest.lengths), predictors, device) if context else None,
    )


class TokenLogprobs(nn.Module):
    """A causal language model as a map from packed rows to log-probabilities.

    A module, so that DDP can wrap it, or FSDP gather it: their hooks fire only within `forward`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        autocast: torch.dtype | None = None,
        routing: "Routing | None" = None,
    ) -> None:
        """Raises UnusableHead."""
        super().__init__()
        self.model = model
        self.autocast = autocast
        self.routing = routing
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise UnusableHead(f"{type(model).__name__} has no linear output head to train through")
        self.scale = logit_scale(model)

    def forward(
        self, row: PackedRow, temperature: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies [k] float32, in nats, at `temperature` and over
        `row.sampling_mask`, with gradient."""
        part = row.part
        if part is None:
            return self._at(row, row.predictors, row.targets, row.sampling_mask, temperature)
        mask = None if row.sampling_mask is None else row.sampling_mask[part.chosen]
        results = self._at(row, part.predictors, row.targets[part.chosen], mask, temperature)
        logprobs, entropy = (part.joined(x, len(row.targets)) for x in results)
        return logprobs, entropy

    def _at(
        self,
        row: PackedRow,
        places: torch.Tensor,
        targets: torch.Tensor,
        sampling_mask: torch.Tensor | None,
        temperature: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Predict `targets` [m] at `places` [m] of this rank's part of the row."""
        if self.routing:
            experts = row.experts
            if row.part and experts is not None:
                experts = row.part.take(experts)
            self.routing.begin(experts, places)
        hidden = hidden_states(self.model, row, self.autocast)[places]
        if self.routing:
            self.routing.end()
        head = self.model.get_output_embeddings()
        given = (hidden, head.weight, head.bias, targets)
        if sampling_mask is not None:
            return topk_logprobs(
                *given, sampling_mask, temperature, self.autocast, scale=self.scale
            )
        return head_logprobs(*given, temperature, self.autocast, scale=self.scale)


def hidden_states(
    model: PreTrainedModel, row: PackedRow, autocast: torch.dtype | None
) -> torch.Tensor:
    """[T, d] hidden states before the head, at each token of the row or of this rank's part."""
    extra: dict[str, Any] = {}
    if model.config._attn_implementation == NAME:
        extra["packed"] = row.layout
    tokens, positions = row.tokens, row.positions
    if row.part:
        extra["part"] = row.part
        tokens, positions = row.part.take(tokens), row.part.take(positions)
    with computing_in(model, autocast):
        return model.base_model(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False, **extra
        ).last_hidden_state[0]
