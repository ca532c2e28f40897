"""Map changes of a model's own tensors to changes of the tensors in a model folder.

transformers holds some weights in another layout than folders do, for example all experts of a
layer in one tensor. The conversion moves elements and computes nothing, so it also moves marks of
the changed elements.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from learner.model.loading.saving import as_in_a_folder, weight_tensors

Change = tuple[str, NDArray[np.int64], NDArray[np.uint16]]
"""A tensor's name, flat positions, and the bits of the bfloat16 values there."""


class FolderNames:
    """Maps the tensor names of one model to tensor names of its folder."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        shapes = {name: tensor.shape for name, tensor in weight_tensors(model).items()}
        tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        every = as_in_a_folder(model, tensors)
        same = {id(tensor): name for name, tensor in every.items()}
        self._renamed = {n: same[id(t)] for n, t in tensors.items() if id(t) in same}
        self._converted = {n: t.shape for n, t in tensors.items() if n not in self._renamed}
        names = list(self._renamed.values())
        for name in self._converted:
            names += as_in_a_folder(model, {name: tensors[name]})
        self.divisible = sorted(names) == sorted(every)
        """Whether each of the model's tensors converts to folder tensors by itself. `changes`
        requires it."""

    def changes(
        self, name: str, positions: NDArray[np.int64], values: NDArray[np.uint16]
    ) -> Iterator[Change]:
        """Yield the changes of the model's tensor `name`, by folder tensor. Positions are
        ascending, in the arguments and in the result. Takes three bytes for each element of a
        converted tensor."""
        if name in self._renamed:
            yield self._renamed[name], positions, values
            return
        marks = np.zeros(self._converted[name], bool)
        bits = np.zeros(self._converted[name], np.int16)
        marks.reshape(-1)[positions] = True
        bits.reshape(-1)[positions] = values.view(np.int16)
        moved = as_in_a_folder(self._model, {name: torch.from_numpy(bits)})
        for part, mark in as_in_a_folder(self._model, {name: torch.from_numpy(marks)}).items():
            places = np.flatnonzero(mark.numpy())
            yield part, places, moved[part].numpy().reshape(-1)[places].view(np.uint16)
