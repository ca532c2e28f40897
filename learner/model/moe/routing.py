"""Routers of a mixture-of-experts model: their output for a row, and replay of recorded experts.

Hooks on transformers' own modules, which only this module knows. A router that replays experts
still weights them by its own logits, so it learns: rollout routing replay (Ma et al. 2025,
arXiv:2510.11370).
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from learner.batch.samples import ROUTER_CHOICE
from learner.errors import RunCannotGoOn
from services.contracts.experts import expert_count

if TYPE_CHECKING:  # bench.learner.one_pass also runs with only torch and transformers
    from services.contracts.config.router import Balance

ROUTERS = frozenset(
    {"MixtralTopKRouter", "OlmoeTopKRouter", "Qwen2MoeTopKRouter", "Qwen3MoeTopKRouter"}
)
"""Router classes that return (logits [T, E], weights [T, k], experts [T, k]). The experts have the
k largest logits. The weights are a softmax over all experts, normalised to 1 unless
`norm_topk_prob` is off."""


@dataclass(frozen=True)
class Routed:
    """The output of L routers for n tokens."""

    logits: torch.Tensor
    """[L, n, E] float32 or wider, with gradient."""
    taken: torch.Tensor
    """[L, n, k] experts that the tokens went to."""
    chosen: torch.Tensor
    """[L, n, k] experts that the routers would have chosen by themselves."""
    replayed: torch.Tensor
    """[n] bool: whether `taken` was recorded."""


class UnknownRouters(RunCannotGoOn):
    """The config needs routers that the model lacks, or that the learner cannot read."""


class Routing:
    """The routers of one model, with hooks. The weights are of their terms in the loss.

    After the first `begin`, every forward pass of the model needs its own `begin`.
    """

    def __init__(
        self, model: PreTrainedModel, aux_weight: float = 0.0, z_weight: float = 0.0
    ) -> None:
        """Raises UnknownRouters."""
        config = model.config.get_text_config()
        self.aux_weight, self.z_weight = aux_weight, z_weight
        self.experts, self.used = expert_count(config), config.num_experts_per_tok
        routers = find_routers(model)
        self.layers = list(routers)
        """Indices of the model's layers that have a router."""
        self.routed: Routed | None = None
        """The routers' output in the last pass."""
        self._shape = config.num_hidden_layers, self.used
        self._recorded: torch.Tensor | None = None
        self._places = torch.zeros(0, dtype=torch.int64)
        self._outputs: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] | None = None
        for layer, router in routers.items():
            router.register_forward_hook(self._hook(layer))

    def begin(self, recorded: torch.Tensor | None, places: torch.Tensor) -> None:
        """Prepare a forward pass over T tokens: replay `recorded`, [T, layers, k] with
        `ROUTER_CHOICE` if nothing is recorded, and collect the output at `places` [n].

        Both hold until the next call, so a backward pass that recomputes activations uses the same
        experts. Raises ValueError if another model was recorded.
        """
        if recorded is not None and recorded.shape[1:] != self._shape:
            raise ValueError(
                f"recorded routing has {recorded.shape[1]} layers of {recorded.shape[2]} experts, "
                f"the model {self._shape[0]} of {self._shape[1]}: another model sampled the answers"
            )
        self._recorded, self._places, self._outputs = recorded, places, []
        self.routed = None

    def end(self) -> None:
        """Finish a forward pass: `routed` is the routers' output at `places`."""
        assert self._outputs is not None
        logits, taken, chosen = (torch.stack(each) for each in zip(*self._outputs, strict=True))
        self._outputs = None
        replayed = torch.zeros_like(self._places, dtype=torch.bool)
        if self._recorded is not None:
            replayed = self._recorded[self._places, self.layers[0], 0] != ROUTER_CHOICE
        self.routed = Routed(logits, taken, chosen, replayed)

    def _hook(self, layer: int) -> Any:
        @torch.compiler.disable
        def hook(router: nn.Module, _: Any, output: Any) -> Any:
            logits, weights, chosen = output
            taken = chosen
            if self._recorded is not None:
                recorded = self._recorded[:, layer].to(chosen.dtype)
                taken = torch.where(recorded == ROUTER_CHOICE, chosen, recorded)
                weights = expert_weights(router, logits, taken).to(weights.dtype)
            # Computed even if the output is not collected: recomputed activations must take the
            # same steps.
            places = self._places
            output = widened(logits[places]), taken[places], chosen[places]
            if self._outputs is not None:
                self._outputs.append(output)
            return logits, weights, taken

        return hook


def expert_weights(router: nn.Module, logits: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
    """[T, k] weights of the outputs of the experts `taken`, by the router's logits [T, E]."""
    weights = widened(logits).softmax(-1).gather(-1, taken)
    # As in the classes of ROUTERS. Mixtral's router has no such option.
    normalised = getattr(router, "norm_topk_prob", True)
    return weights / weights.sum(-1, keepdim=True) if normalised else weights


def widened(x: torch.Tensor) -> torch.Tensor:
    """Return `x` in float32 or its own wider type."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def find_routers(model: PreTrainedModel) -> dict[int, nn.Module]:
    """Return the routers by their layer, in order. Raises UnknownRouters."""
    routers: dict[int, nn.Module] = {}
    for name, module in model.named_modules():
        if type(module).__name__ in ROUTERS:
            layer = re.search(r"\blayers\.(\d+)\.", name)
            assert layer is not None
            routers[int(layer[1])] = module
    if not routers:
        raise UnknownRouters(
            f"the learner does not know the routers of {type(model).__name__}, only those of "
            "Mixtral, OLMoE, Qwen2-MoE and Qwen3-MoE"
        )
    return routers


def policy_routing(
    model: PreTrainedModel, terms: "Balance", key: str = "algorithm.router"
) -> Routing | None:
    """Hook and return the routers of the trained model. Return None for a dense model, and for
    unknown routers if `terms`, at `key` of the config, do not need them. Raises UnknownRouters."""
    config = model.config.get_text_config()
    if not expert_count(config):
        if terms.needs_experts:
            raise UnknownRouters(
                f"{key} is set, and {type(model).__name__} has no experts to route to: leave {key} "
                "out"
            )
        return None
    aux = own_weight(terms.aux_loss, config, "router_aux_loss_coef")
    z = own_weight(terms.z_loss, config, "router_z_loss_coef")
    try:
        return Routing(model, aux, z)
    except UnknownRouters as error:
        if not (terms.needs_experts or aux or z):
            return None
        raise UnknownRouters(
            f"{error}; set {key} to {{aux_loss: 0, z_loss: 0}} to train it as it routes"
        ) from error


def own_weight(weight: float | None, config: Any, name: str) -> float:
    """Return a weight of the loss: the configured one, else the model's own, else 0."""
    return float(getattr(config, name, None) or 0.0) if weight is None else weight
