"""Log-probabilities of the tokens that train, and nothing more.

Hidden states are selected *before* the output head, and the head runs in chunks over rows and
vocabulary, forward and backward: a [tokens, vocabulary] tensor never exists. Entropy comes from
the same pass. Must agree with `log_softmax(logits / temperature)` to rounding.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from learner.errors import RunCannotGoOn
from learner.model.packed_attention import NAME
from learner.model.row_layout import PackedLayout, packed_layout
from learner.model.topk_logprobs import topk_logprobs

if TYPE_CHECKING:  # bench.learner_pass runs where there is torch and transformers alone
    from learner.model.moe_routing import Routing

ROWS = 2048
VOCABULARY = 8192
"""A chunk of logits is at most ROWS × VOCABULARY float32: 64 MiB."""
CPU_ROWS = 512
CPU_VOCABULARY = 2048
"""4 MiB on a CPU, which stay in its caches: a third faster forward, a tenth backward."""


@dataclass(frozen=True)
class PackedRow:
    """One micro-batch: concatenated sequences, and which of their tokens to predict."""

    tokens: torch.Tensor
    """[T] token ids."""
    positions: torch.Tensor
    """[T] position of each token within its sequence."""
    layout: PackedLayout
    predictors: torch.Tensor
    """[k] index of the token *before* each one whose log-probability is needed."""
    targets: torch.Tensor
    """[k] token ids to predict."""
    sampling_mask: torch.Tensor | None = None
    """[k, w] the ids that each was chosen from, and then −1; None: the whole vocabulary."""
    experts: torch.Tensor | None = None
    """[T, layers, experts per token] int16: where routers send each token (`routing`)."""

    @property
    def ends(self) -> torch.Tensor:
        """[n] index of the last token of each sequence."""
        return self.layout.bounds[1:].long() - 1


def packed_row(
    sequences: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    device: torch.device | str = "cpu",
    sampling_mask: torch.Tensor | None = None,
    experts: list[torch.Tensor] | None = None,
) -> PackedRow:
    """Pack `sequences` ([t] ids each). `loss_masks` ([t] bool each) mark the tokens to predict;
    `sampling_mask` is as in PackedRow; `experts` ([t, layers, experts per token] each) says where
    routers send them.

    Raises ValueError where a mask includes a first token, which nothing precedes.
    """
    lengths = [len(sequence) for sequence in sequences]
    if any(bool(mask[0]) for mask in loss_masks):
        raise ValueError("the first token of a sequence cannot be predicted")
    tokens = torch.cat(sequences)
    chosen = torch.cat(loss_masks).nonzero().squeeze(1)
    return PackedRow(
        tokens=tokens.to(device),
        positions=torch.cat([torch.arange(n) for n in lengths]).to(device),
        layout=packed_layout(lengths, device),
        predictors=(chosen - 1).to(device),
        targets=tokens[chosen].to(device),
        sampling_mask=None if sampling_mask is None else sampling_mask.to(device),
        experts=None if experts is None else torch.cat(experts).to(device),
    )


class UnusableHead(RunCannotGoOn):
    """The learner cannot train this model's output head; the message says why."""


class TokenLogprobs(nn.Module):
    """A causal language model as a map from packed rows to log-probabilities.

    A module, so that DDP can wrap it: gradient hooks fire only for what runs inside `forward`.
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
        config = model.config.get_text_config()
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(config, name, None) not in (None, 1, 1.0):
                raise UnusableHead(
                    f"{type(model).__name__} scales its logits ({name}), which the learner does "
                    "not support: train another architecture"
                )

    def forward(
        self, row: PackedRow, temperature: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies [k] float32, in nats, at `temperature` and over
        `row.sampling_mask`, with gradient."""
        if self.routing:
            self.routing.begin(row.experts, row.predictors)
        hidden = hidden_states(self.model, row, self.autocast)[row.predictors]
        if self.routing:
            self.routing.end()
        head = self.model.get_output_embeddings()
        weight, bias, targets = head.weight, head.bias, row.targets
        if row.sampling_mask is not None:
            return topk_logprobs(
                hidden, weight, bias, targets, row.sampling_mask, temperature, self.autocast
            )
        return head_logprobs(hidden, weight, bias, targets, temperature, self.autocast)


def hidden_states(
    model: PreTrainedModel, row: PackedRow, autocast: torch.dtype | None
) -> torch.Tensor:
    """[T, d] what the head of `model` reads at each token of the row."""
    extra: dict[str, Any] = {}
    if model.config._attn_implementation == NAME:
        extra["packed"] = row.layout
    with torch.autocast(row.tokens.device.type, autocast, enabled=autocast is not None):
        return model.base_model(
            input_ids=row.tokens[None], position_ids=row.positions[None], use_cache=False, **extra
        ).last_hidden_state[0]


def head_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    temperature: float = 1.0,
    compute: torch.dtype | None = None,
    rows: int | None = None,
    vocabulary: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log softmax((hidden·weightᵀ + bias) / temperature) at `targets`, and the entropy.

    hidden [k, d], weight [V, d], bias [V] or None, targets [k] → two [k] tensors, float32 or
    wider. `compute` is the type the products run in (the sums are always float32 or wider). A chunk
    of logits is [rows, vocabulary]; default: what suits the device.
    """
    cpu = hidden.device.type == "cpu"
    rows = rows or (CPU_ROWS if cpu else ROWS)
    vocabulary = vocabulary or (CPU_VOCABULARY if cpu else VOCABULARY)
    logprobs, entropy = _HeadLogprobs.apply(
        hidden, weight, bias, targets, temperature, compute, rows, vocabulary
    )
    return logprobs, entropy


class _HeadLogprobs(torch.autograd.Function):
    """Online log-sum-exp over chunks of the vocabulary; the backward pass makes each chunk of
    logits again instead of keeping it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: float,
        compute: torch.dtype | None,
        rows: int,
        vocabulary: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kind = compute or hidden.dtype
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = hidden.shape[0]
        normaliser = hidden.new_empty(total, dtype=wide)
        entropy = hidden.new_empty(total, dtype=wide)
        chosen = hidden.new_empty(total, dtype=wide)
        for r in range(0, total, rows):
            part, target = hidden[r : r + rows].to(kind), targets[r : r + rows]
            peak = torch.full_like(chosen[r : r + rows], -torch.inf)
            mass, weighted = torch.zeros_like(peak), torch.zeros_like(peak)
            for v in range(0, weight.shape[0], vocabulary):
                logits = _logits(part, weight, bias, v, vocabulary, temperature, kind, wide)
                higher = torch.maximum(peak, logits.amax(1))
                shrink = (peak - higher).exp()
                inside = (target >= v) & (target < v + vocabulary)
                column = (target - v).clamp(0, logits.shape[1] - 1)[:, None]
                found = logits.gather(1, column).squeeze(1)
                chosen[r : r + rows] = torch.where(inside, found, chosen[r : r + rows])
                exponentials = (logits - higher[:, None]).exp_()
                mass = mass * shrink + exponentials.sum(1)
                weighted = weighted * shrink + exponentials.mul_(logits).sum(1)
                peak = higher
            normaliser[r : r + rows] = peak + mass.log()
            entropy[r : r + rows] = normaliser[r : r + rows] - weighted / mass
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser, entropy)
        ctx.options = (temperature, kind, wide, rows, vocabulary)
        # An output that no loss uses has gradient None, and costs nothing.
        ctx.set_materialize_grads(False)
        return chosen - normaliser, entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, normaliser, entropy = ctx.saved_tensors
        temperature, kind, wide, rows, vocabulary = ctx.options
        given, of_entropy = grads
        grad = torch.zeros_like(normaliser) if given is None else given / temperature
        by_entropy = None if of_entropy is None else of_entropy / temperature
        grad_hidden = torch.zeros_like(hidden, dtype=wide)
        # A frozen head (LoRA) costs neither the product nor the memory.
        trained, biased = ctx.needs_input_grad[1:3]
        grad_weight = torch.zeros_like(weight, dtype=wide) if trained else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if biased else None
        for r in range(0, hidden.shape[0], rows):
            part, target = hidden[r : r + rows].to(kind), targets[r : r + rows]
            for v in range(0, weight.shape[0], vocabulary):
                logits = _logits(part, weight, bias, v, vocabulary, temperature, kind, wide)
                # d logp / d logits = onehot − softmax
                every = logits.sub_(normaliser[r : r + rows, None])
                spread = None
                if by_entropy is not None:
                    # d entropy / d logits = −softmax · (log softmax + entropy)
                    spread = (every + entropy[r : r + rows, None]).mul_(every.exp()).neg_()
                    spread.mul_(by_entropy[r : r + rows, None])
                slope = every.exp_().neg_()
                at = ((target >= v) & (target < v + vocabulary)).nonzero().squeeze(1)
                slope[at, target[at] - v] += 1
                slope.mul_(grad[r : r + rows, None])
                if spread is not None:
                    slope += spread
                if grad_bias is not None:
                    grad_bias[v : v + vocabulary] += slope.sum(0)
                slope = slope.to(kind)
                grad_hidden[r : r + rows] += slope @ weight[v : v + vocabulary].to(kind)
                if grad_weight is not None:
                    grad_weight[v : v + vocabulary] += slope.T @ part
        return (
            grad_hidden.to(hidden.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            *(None,) * 5,
        )


def _logits(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    start: int,
    size: int,
    temperature: float,
    kind: torch.dtype,
    wide: torch.dtype,
) -> torch.Tensor:
    logits = (hidden @ weight[start : start + size].to(kind).T).to(wide)
    if bias is not None:
        logits += bias[start : start + size]
    return logits.div_(temperature)
