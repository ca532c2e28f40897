"""Model FLOPs utilisation: the share of the devices' peak that training uses.

Counted is what the objective asks for, as in PaLM (Chowdhery et al. 2022, appendix B): forward and
backward pass take 6 FLOPs per weight and token, and 12·L·H·Q·T per token for attention over a
sequence of T tokens (L layers, H query heads of Q); a forward pass alone takes a third of both.
What samples share counts once. What is computed a second time to save memory does not count, nor
what causal attention, a window or an output head at some tokens only, or for some ids only, saves.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from learner.batch.cost import TOKENS, SequenceCost
from services.contracts.experts import expert_count
from services.estimate.devices import peak_flops
from services.estimate.shape import ModelShape, shape_of

if TYPE_CHECKING:  # bench.learner.one_pass runs where there is torch and transformers alone
    from learner.distributed import Ranks
    from services.contracts.config.objective.algorithm import Algorithm


@dataclass(frozen=True)
class Work:
    """FLOPs of one pass over one token, and the devices' peak."""

    weights: int
    """Of matrices that a token is multiplied with: all but an embedding that is no output head, and
    but the experts it does not go to."""
    attention: int
    """L·H·Q."""
    forward: int
    """Passes over a batch that are forward only: of the proximal policy, of the reference."""
    peak: float
    """FLOP/s of all devices together."""
    frozen: int = 0
    """Of `weights`, those that the backward pass goes through and makes no gradient of."""
    other: tuple[int, int] = (0, 0)
    """Weights and L·H·Q of a critic, or of a teacher: a run has one of them at most."""
    other_passes: float = 0.0
    """How often a critic is trained on a batch, and a third for what it, or a teacher, says
    before."""

    def metrics(
        self, tokens: float, squares: float, passes: float, seconds: float
    ) -> dict[str, float]:
        """Of `seconds` in which sequences whose lengths add up to `tokens`, and their squares to
        `squares`, were trained `passes` times."""
        flops = self.flops(tokens, squares, passes)
        return {"train/mfu": flops / (max(seconds, 1e-9) * self.peak)}

    def flops(self, tokens: float, squares: float, passes: float) -> float:
        """Of the same."""

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
    """None where a device's peak is not known, or what a token takes is not to be read off the
    model's config."""
    if ranks.device.type != "cuda":
        return None
    peak, sizes = peak_flops(torch.cuda.get_device_name(ranks.device)), shape(model)
    if peak is None or sizes is None:
        return None
    forward = (algorithm.proximal.type in ("recompute", "lagged")) + (algorithm.kl.type != "none")
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = max(sizes[0] - trained, 0)
    plain = Work(*sizes, forward, peak * ranks.size, frozen)
    other = critic or teacher
    if other is None:
        return plain
    of_other = shape(other)
    if of_other is None:
        return None
    trained_passes = algorithm.epochs_per_batch if critic else 0
    return replace(plain, other=of_other, other_passes=trained_passes + 1 / 3)


def supervised_work(model: PreTrainedModel, ranks: "Ranks", forward: int = 0) -> Work | None:
    """Of a supervised run, with so many passes over a batch that are `forward` only; its `peak` is
    0 where that is not known. None where what a token takes is not to be read off the model's
    config."""
    if (sizes := shape(model)) is None:
        return None
    known = None
    if ranks.device.type == "cuda":
        known = peak_flops(torch.cuda.get_device_name(ranks.device))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Work(*sizes, forward, (known or 0.0) * ranks.size, max(sizes[0] - trained, 0))


def shape(model: PreTrainedModel) -> tuple[int, int] | None:
    """(weights, L·H·Q) of a model, of experts the part that a token uses; None where the config
    does not say how many it uses, or has no attention heads."""
    found = _sizes(model)
    return None if found is None else (_weights(model, found), found.layers * found.query)


def sequence_cost(model: PreTrainedModel) -> SequenceCost:
    """What the model's sequences cost, to balance work by; each token the same where the config
    does not say."""
    found, head = _sizes(model), model.get_output_embeddings()
    if found is None:
        return TOKENS
    of_head = 0 if head is None else head.weight.numel()
    windowed = found.windowed * found.query
    return SequenceCost(
        _weights(model, found) - of_head,
        of_head,
        found.layers * found.query - windowed,
        windowed,
        found.window,
    )


def _sizes(model: PreTrainedModel) -> ModelShape | None:
    text = model.config.get_text_config()
    if expert_count(text) and not isinstance(getattr(text, "num_experts_per_tok", None), int):
        return None
    weights = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    return shape_of(widths(text), weights)


def _weights(model: PreTrainedModel, found: ModelShape) -> int:
    """Those that a token is multiplied with. An embedding is only where it is the output head: a
    critic's is not."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    own = head is None or embedding is not head.weight
    return found.parameters - found.idle - (embedding.numel() if own else 0)


def widths(text: PreTrainedConfig) -> dict[str, Any]:
    """The config of a model by the usual names of widths: architectures have their own."""
    return text.to_dict() | {name: getattr(text, name, None) for name in text.attribute_map}
