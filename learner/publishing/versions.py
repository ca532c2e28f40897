"""A version as the training loop submits it to the publisher: a host copy of the weights, or their
changes since the previous version.

For sharded weights all ranks take a version together, and only rank 0 gets data to publish.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch

from learner.distributed import Ranks
from learner.model.loading.lora import trained_on_host
from learner.model.loading.model_loader import LoadedModel
from learner.model.loading.saving import as_in_a_folder
from learner.model.loading.tensor_names import Change, FolderNames
from learner.model.placement.parallel import is_sharded
from learner.persist.host_copies import HostCopies, LaterCopy
from learner.publishing.changed_weights import PublishedWeights
from learner.publishing.mirror import by_folder_names
from learner.slices import WHOLE, RankPart, to_host
from services.contracts.canary import Canary
from services.contracts.config.rollout import PublishedAs


@dataclass(frozen=True)
class Version:
    number: int
    created: float
    """Unix seconds when the optimizer step ended."""
    canary: Canary | None
    kind: Literal["full", "adapter"] = "full"
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Host copy of the weights, by their names in a model folder. It may be made when it is first
    read."""
    changes: Iterator[Change] | None = None
    """Instead of `tensors`: the changes from the previous version. They are on the device until
    they are read."""


def host_weights(
    loaded: LoadedModel,
    version: int,
    created: float,
    part: RankPart | None = WHOLE,
    canary: Canary | None = None,
    copy: Callable[[torch.Tensor], torch.Tensor] = to_host,
) -> Version:
    """Copy the trained weights to the host in the published type. For a sharded model all ranks
    call this together; a rank with `part` None copies nothing. `copy`: see `on_host`."""
    tensors = trained_on_host(loaded, loaded.publish_dtype, part, copy)
    return Version(version, created, canary, "adapter" if loaded.lora else "full", tensors)


class Versions:
    def __init__(self, loaded: LoadedModel, ranks: Ranks, weights: PublishedAs) -> None:
        self._loaded, self._first = loaded, ranks.first
        self._copies, self._sharded = HostCopies(ranks.device), is_sharded(loaded.model)
        self._before: PublishedWeights | None = None
        self._newest: LaterCopy | None = None
        """The host copy of the newest whole version, which the publisher's thread makes."""
        # Weights of other types change everywhere, and adapters are small.
        if weights == "auto" and loaded.publish_dtype == torch.bfloat16 and not loaded.lora:
            self._names = FolderNames(loaded.model)
            if self._names.divisible:
                self._before = PublishedWeights(loaded, ranks, self._sharded)

    @property
    def compares(self) -> bool:
        """Whether a version may be taken as changes since the previous version."""
        return self._before is not None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The weights of the previous version that are kept on the device. They may be moved when
        this returns."""
        self._finish_copy()
        return self._before.tensors if self._before is not None else []

    def take(self, version: int, created: float, canary: Canary | None = None) -> Version:
        """Take the current weights as `version`. The result is meaningless on ranks other than
        0."""
        self._finish_copy()
        before = self._before
        if before is not None and (changes := before.changes()) is not None:
            by_name = by_folder_names(changes, self._names, self._copies, self._copies.now())
            return Version(version, created, canary, changes=by_name)
        if before is not None and not self._sharded:
            # The device keeps these weights until the next version is taken: the next step need not
            # wait for the copy.
            before.remember()
            named = partial(as_in_a_folder, self._loaded.model)
            self._newest = LaterCopy(before.whole(), self._copies, named)
            return Version(version, created, canary, tensors=self._newest)
        part = WHOLE if self._first else None
        weights = host_weights(self._loaded, version, created, part, canary, self._copies.copy)
        if before is not None:
            before.remember()
        return weights

    def _finish_copy(self) -> None:
        """Return when no copy needs the weights of the previous version on the device."""
        if self._newest is not None:
            self._newest.finish()
            self._newest = None
