"""The newest published weights in host memory: 2 bytes per weight, on rank 0 only.

The learner writes whole versions and computes tensor checksums from this copy. Only the publisher's
thread changes it, so the device is free for the next step.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from learner.model.loading.tensor_names import Change, FolderNames
from learner.persist.host_copies import HostCopies
from learner.publishing.changed_weights import Changes
from services.weights import DeltaWriter, in_threads, tensor_checksum


class Mirror:
    """Keeps the newest published weights of one model, and computes the delta to the next ones."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors`: bfloat16, by the names of a model folder. The mirror owns them from now on."""
        self.tensors = dict(tensors)
        self.weights = sum(tensor.numel() for tensor in tensors.values())
        self._checksums: dict[str, str] = {}

    def change(self, changes: Iterator[Change], base: str, tag: str) -> DeltaWriter:
        """Apply the changes from version `base` to version `tag`. Returns their delta."""
        delta = DeltaWriter(base, tag)
        unchanged = dict.fromkeys(self.tensors)
        for change, checksum in in_threads(self._taken, changes):
            del unchanged[change[0]]
            self._checksums[change[0]] = checksum
            self._add(delta, *change)
        unknown = [name for name in unchanged if name not in self._checksums]
        checksums = in_threads(lambda name: tensor_checksum(self._bits(name)), unknown)
        self._checksums.update(zip(unknown, checksums, strict=True))
        for name in unchanged:
            self._add(delta, name, *_NOTHING)
        return delta

    def _taken(self, change: Change) -> tuple[Change, str]:
        """Apply `change`. Return it with the tensor's new checksum."""
        name, positions, values = change
        bits = self._bits(name)
        bits[positions] = values
        if len(positions) or name not in self._checksums:
            return change, tensor_checksum(bits)
        return change, self._checksums[name]

    def _add(
        self,
        delta: DeltaWriter,
        name: str,
        positions: NDArray[np.int64],
        values: NDArray[np.uint16],
    ) -> None:
        shape = tuple(self.tensors[name].shape)
        delta.add(name, shape, self._checksums[name], positions, values, self._bits(name))

    def _bits(self, name: str) -> NDArray[np.uint16]:
        bits: NDArray[np.int16] = self.tensors[name].view(torch.int16).numpy().reshape(-1)
        return bits.view(np.uint16)


_NOTHING = np.zeros(0, np.int64), np.zeros(0, np.uint16)


def by_folder_names(
    changes: Changes, names: FolderNames, copies: HostCopies, ready: "torch.cuda.Event | None"
) -> Iterator[Change]:
    """Yield the changes on the host, by tensors of a model folder. `ready`: see
    `HostCopies.now`."""
    for name, slices in changes.items():
        sides = [tensor for part in slices for tensor in (part.positions, part.values)]
        host = copies.copied(sides, ready)
        positions = np.concatenate(
            [
                part.start + here.numpy().astype(np.int64)
                for part, here in zip(slices, host[::2], strict=True)
            ]
        )
        values = np.concatenate([here.numpy() for here in host[1::2]])
        yield from names.changes(name, positions, values.view(np.uint16))
