"""A version as the training loop submits it to the publisher: a host copy of the weights, or their
changes since the previous version.

For sharded weights all ranks take a version together, and only rank 0 gets data to publish.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch

from learner.distributed import Ranks
from learner.model.loading.lora import trained_on_host
from learner.model.loading.model_loader import LoadedModel
from learner.model.loading.tensor_names import Change, FolderNames
from learner.model.placement.parallel import is_sharded
from learner.persist.host_copies import HostCopies
from learner.publishing.changed_weights import PublishedWeights
from learner.publishing.mirror import by_folder_names
from learner.slices import WHOLE, RankPart
from services.contracts.canary import Canary
from services.contracts.config.rollout import PublishedAs


@dataclass(frozen=True)
class Version:
    number: int
    created: float
    """Unix seconds when the optimizer step ended."""
    canary: Canary | None
    kind: Literal["full", "adapter"] = "full"
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """Host copy of the weights, by their names in a model folder."""
    changes: Iterator[Change] | None = None
    """Instead of `tensors`: the changes from the previous version. They are on the device until
    they are read."""


def host_weights(
    loaded: LoadedModel,
    version: int,
    created: float,
    part: RankPart | None = WHOLE,
    canary: Canary | None = None,
) -> Version:
    """Copy the trained weights to the host in the published type. For a sharded model all ranks
    call this together; a rank with `part` None copies nothing."""
    tensors = trained_on_host(loaded, loaded.publish_dtype, part)
    return Version(version, created, canary, "adapter" if loaded.lora else "full", tensors)


class Versions:
    def __init__(self, loaded: LoadedModel, ranks: Ranks, weights: PublishedAs) -> None:
        self._loaded, self._first = loaded, ranks.first
        self._before: PublishedWeights | None = None
        # Weights of other types change everywhere, and adapters are small.
        if weights == "auto" and loaded.publish_dtype == torch.bfloat16 and not loaded.lora:
            self._names, self._copies = FolderNames(loaded.model), HostCopies(ranks.device)
            if self._names.divisible:
                self._before = PublishedWeights(loaded, ranks, is_sharded(loaded.model))

    @property
    def compares(self) -> bool:
        """Whether a version may be taken as changes since the previous version."""
        return self._before is not None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The weights of the previous version that are kept on the device."""
        return self._before.tensors if self._before is not None else []

    def take(self, version: int, created: float, canary: Canary | None = None) -> Version:
        """Take the current weights as `version`. The result is meaningless on ranks other than
        0."""
        if self._before is not None and (changes := self._before.changes()) is not None:
            named = by_folder_names(changes, self._names, self._copies, self._copies.now())
            return Version(version, created, canary, changes=named)
        part = WHOLE if self._first else None
        weights = host_weights(self._loaded, version, created, part, canary)
        if self._before is not None:
            self._before.remember()
        return weights
