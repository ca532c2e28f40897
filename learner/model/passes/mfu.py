"""Model FLOPs utilisation (MFU): the share of the devices' peak that training uses.

FLOPs are counted as in PaLM (Chowdhery et al. 2022, appendix B): forward and backward pass take 6
FLOPs per weight and token, and 12·L·H·Q·T per token for attention over a sequence of T tokens (L
layers, H query heads of size Q). A forward pass alone takes a third of both. Shared prefixes count
once. Recomputation does not count. Neither do savings by causal attention, by a window, or by an
output head at some tokens or some ids only.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from learner.batch.cost import TOKENS, SequenceCost
from services.contracts.experts import expert_count
from services.estimate.devices import peak_flops
from services.estimate.model_shape import ModelShape, shape_of

if TYPE_CHECKING:  # bench.learner.one_pass also runs with only torch and transformers
    from learner.distributed import Ranks
    from services.contracts.config.objective.algorithm import Algorithm


@dataclass(frozen=True)
class Work:
    """FLOPs of one pass over one token, and the devices' peak."""

    weights: int
    """Weights that a token is multiplied with: all except an input embedding and the experts that
    the token does not use."""
    attention: int
    """L·H·Q."""
    forward: int
    """Forward-only passes over a batch: for the proximal policy, for the reference."""
    peak: float
    """FLOP/s of all devices together."""
    frozen: int = 0
    """Frozen part of `weights`: the backward pass goes through them without computing their
    gradient."""
    other: tuple[int, int] = (0, 0)
    """Weights and L·H·Q of a critic, or of a teacher. A run has at most one of both."""
    other_passes: float = 0.0
    """Training passes of a critic over a batch, plus a third for the forward pass of the critic or
    teacher before them."""

    def metrics(
        self, tokens: float, squares: float, passes: float, seconds: float
    ) -> dict[str, float]:
        """Return the MFU of `seconds` in which sequences were trained `passes` times. Their lengths
        add up to `tokens`, the squares of their lengths to `squares`."""
        flops = self.flops(tokens, squares, passes)
        return {"train/mfu": flops / (max(seconds, 1e-9) * self.peak)}

    def flops(self, tokens: float, squares: float, passes: float) -> float:

        def once(weights: int, attention: int) -> float:
            return 6 * weights * tokens + 12 * attention * squares

        flops = (passes + self.forward / 3) * once(self.weights, self.attention)
        flops -= passes * 2 * self.frozen * tokens
        return flops + self.other_passes * once(*self.other)


def work(
    model: PreTrainedModel,
    algorithm: "Algorithm",
    ranks: "Ranks",
    critic: PreTrainedModel | None = None,
    teacher: PreTrainedModel | None = None,
) -> Work | None:
    """Return the work of an RL run, or None if a device's peak is unknown or the model's config
    does not name its sizes."""
    forward = (algorithm.proximal.type in ("recompute", "lagged")) + (algorithm.kl.type != "none")
    plain, other = supervised_work(model, ranks, forward), critic or teacher
    if plain is None or not plain.peak or other is None:
        return plain if plain and plain.peak else None
    if (of_other := shape(other)) is None:
        return None
    trained_passes = algorithm.epochs_per_batch if critic else 0
    return replace(plain, other=of_other, other_passes=trained_passes + 1 / 3)


def supervised_work(model: PreTrainedModel, ranks: "Ranks", forward: int = 0) -> Work | None:
    """Return the work of a supervised run with `forward` forward-only passes over a batch. An
    unknown `peak` is 0. Return None if the model's config does not name its sizes."""
    if (sizes := shape(model)) is None:
        return None
    known = None
    if ranks.device.type == "cuda":
        known = peak_flops(torch.cuda.get_device_name(ranks.device))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Work(*sizes, forward, (known or 0.0) * ranks.size, max(sizes[0] - trained, 0))


def shape(model: PreTrainedModel) -> tuple[int, int] | None:
    """Return (weights, L·H·Q) of a model, counting only the experts that a token uses. Return None
    if the config lacks the number of experts per token, or the attention heads."""
    sizes = _sizes(model)
    return None if sizes is None else (_weights(model, sizes), sizes.layers * sizes.query)


def sequence_cost(model: PreTrainedModel) -> SequenceCost:
    """Return the cost of the model's sequences, for balancing work. If the config does not name its
    sizes, each token costs the same."""
    sizes, head = _sizes(model), model.get_output_embeddings()
    if sizes is None:
        return TOKENS
    of_head = 0 if head is None else head.weight.numel()
    windowed = sizes.windowed * sizes.query
    return SequenceCost(
        _weights(model, sizes) - of_head,
        of_head,
        sizes.layers * sizes.query - windowed,
        windowed,
        sizes.window,
    )


def _sizes(model: PreTrainedModel) -> ModelShape | None:
    text = model.config.get_text_config()
    if expert_count(text) and not isinstance(getattr(text, "num_experts_per_tok", None), int):
        return None
    weights = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    return shape_of(widths(text), weights)


def _weights(model: PreTrainedModel, sizes: ModelShape) -> int:
    """Count the weights that a token is multiplied with. The embedding counts only if it is also
    the output head, which it never is in a critic."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    is_separate = head is None or embedding is not head.weight
    return sizes.parameters - sizes.idle - (embedding.numel() if is_separate else 0)


def widths(text: PreTrainedConfig) -> dict[str, Any]:
    """Return the config of a model under the usual names of widths. Some architectures name them
    differently."""
    return text.to_dict() | {name: getattr(text, name, None) for name in text.attribute_map}
