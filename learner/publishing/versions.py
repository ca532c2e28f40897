"""A version as the training loop submits it to the publisher: a host copy of the weights, or their
changes since the previous version.

For sharded weights all ranks take a version together, and only rank 0 gets data to publish.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from learner.distributed import Ranks
from learner.model.loading.folder_names import FolderNames
from learner.model.loading.lora import trained_on_host
from learner.model.loading.models import LoadedModel
from learner.model.placement.parallel import is_sharded
from learner.persist.host_copies import HostCopies
from learner.publishing.changed_weights import Changes, PublishedWeights
from learner.slices import WHOLE, RankPart
from services.contracts.canary import Canary
from services.contracts.config.rollout import PublishedAs


@dataclass(frozen=True)
class VersionHeader:
    """The fields of a version's manifest, except its files."""

    version: int
    created: float
    """Unix seconds when the optimizer step ended."""
    canary: Canary | None = None


@dataclass(frozen=True)
class HostWeights:
    """A host copy of a version's weights."""

    header: VersionHeader
    tensors: dict[str, torch.Tensor]
    kind: Literal["full", "adapter"] = "full"


@dataclass(frozen=True)
class ChangedWeights:
    """The changes from the previous version to this version, still on the device."""

    header: VersionHeader
    changes: Changes
    ready: "torch.cuda.Event | None" = None
    """See `HostCopies.now`."""


Version = HostWeights | ChangedWeights


@dataclass(frozen=True)
class Deltas:
    """The tools with which a publisher makes deltas of `ChangedWeights`."""

    names: FolderNames
    copies: HostCopies


def host_weights(
    loaded: LoadedModel,
    version: int,
    created: float,
    part: RankPart | None = WHOLE,
    canary: Canary | None = None,
) -> HostWeights:
    """Copy the trained weights to the host in the published type. For a sharded model all ranks
    call this together; a rank with `part` None copies nothing."""
    tensors = trained_on_host(loaded, loaded.publish_dtype, part)
    kind: Literal["full", "adapter"] = "adapter" if loaded.lora else "full"
    return HostWeights(VersionHeader(version, created, canary), tensors, kind)


class Versions:
    """Takes the versions of one run, on each rank that holds weights."""

    def __init__(self, loaded: LoadedModel, ranks: Ranks, weights: PublishedAs) -> None:
        self._loaded, self._first = loaded, ranks.first
        self._before: PublishedWeights | None = None
        self.deltas: Deltas | None = None
        """None: every version is taken as HostWeights."""
        # Weights of other types change everywhere, and adapters are small.
        if weights == "auto" and loaded.publish_dtype == torch.bfloat16 and not loaded.lora:
            names = FolderNames(loaded.model)
            if names.divisible:
                self.deltas = Deltas(names, HostCopies(ranks.device))
                self._before = PublishedWeights(loaded, ranks, is_sharded(loaded.model))

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The weights of the previous version that are kept on the device."""
        return self._before.tensors if self._before is not None else []

    def take(self, version: int, created: float, canary: Canary | None = None) -> Version:
        """Take the current weights as `version`. The result is meaningless on ranks other than
        0."""
        if self._before is not None and self.deltas is not None:
            changes = self._before.changes()
            if changes is not None:
                header = VersionHeader(version, created, canary)
                return ChangedWeights(header, changes, self.deltas.copies.now())
        part = WHOLE if self._first else None
        weights = host_weights(self._loaded, version, created, part, canary)
        if self._before is not None:
            self._before.remember()
        return weights
