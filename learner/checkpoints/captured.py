"""A host copy of everything that a checkpoint holds: the next step waits only for this copy."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from learner.distributed import Ranks
from learner.model.loading.lora import trained_on_host
from learner.model.loading.model_loader import LoadedModel
from learner.model.loading.saving import as_in_a_folder, on_host, weight_tensors
from learner.model.placement.offload import present
from learner.model.placement.parallel import is_sharded
from learner.persist.host_copies import HostCopies
from learner.slices import WHOLE, RankPart
from learner.state import TrainingProgress, TrainingState


@dataclass(frozen=True)
class Captured:
    """A host copy of everything that a checkpoint holds. Training does not change it."""

    loaded: LoadedModel
    """Used for config and tokenizer, which training never changes. Its weights are not used."""
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    random: dict[str, torch.Tensor]
    progress: TrainingProgress
    critic: "CapturedCritic | None" = None
    copies: Mapping[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    """Weights of the copies of the policy that change, by name."""
    part: RankPart = WHOLE
    """This rank's part of all tensors."""

    @property
    def size(self) -> int:
        parts = [self.weights, self.optimizer, self.random, *self.copies.values()]
        parts += [self.critic.weights, self.critic.optimizer] if self.critic else []
        return sum(tensor.nbytes for part in parts for tensor in part.values())


def part_of(state: TrainingState, ranks: Ranks) -> RankPart:
    """Return this rank's part of `state`. Rank 0 writes the whole state unless it is sharded."""
    return RankPart(ranks.rank, ranks.size) if is_sharded(state.loaded.model) else WHOLE


@dataclass(frozen=True)
class CapturedCritic:
    model: PreTrainedModel
    """Used for its config. Its weights are not used."""
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]


def capture(state: TrainingState, part: RankPart = WHOLE) -> Captured:
    """Copy to the host everything that the next step changes. If the state is sharded, all ranks
    call this together, and each copies another `part`."""
    critic, copy = None, HostCopies(state.loaded.model.device).copy
    if state.critic:
        with present(state.critic.offloads, changed=False):
            weights = on_host(weight_tensors(state.critic.model), None, part, copy)
            critic = CapturedCritic(
                state.critic.model,
                as_in_a_folder(state.critic.model, weights),
                state.critic.optimizers.tensors(part, copy),
            )
    copies = {}
    for name, moving in state.copies.moving.items():
        with moving.present():
            copies[name] = on_host(moving.parameters, None, part, copy)
    with present(state.offloads, changed=False):
        optimizer = state.optimizers.tensors(part, copy)
    # Adapters are small, and peft and vLLM read a single file.
    alone = WHOLE if part.number == 0 else None
    of_weights = alone if state.loaded.lora else part
    return Captured(
        state.loaded,
        trained_on_host(state.loaded, None, of_weights, copy),
        optimizer,
        _random_state(state.loaded.model.device),
        state.progress,
        critic,
        copies,
        part,
    )


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state
