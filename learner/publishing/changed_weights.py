"""Find the weights that a version changes, on the devices that hold the weights.

Each rank keeps its weights as they were published, in bfloat16: 2 bytes per weight. If the weights
are replicated, only rank 0 keeps them. Positions and values of changed weights go to rank 0, and
from there to the host.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from learner.distributed import Ranks
from learner.model.loading.model_loader import LoadedModel
from learner.model.loading.saving import weight_tensors
from learner.slices import first_row, local

MOST = 1 / 16
"""Share of changed weights above which a version is published whole. A delta takes 3.2 bytes per
change, and only one such delta may follow a whole version (`delta_files.SHARE`). This also
bounds the memory of changes until they are on the host: 6 bytes each."""


@dataclass(frozen=True)
class Slice:
    """One rank's changes of one tensor."""

    start: int
    """Elements of the tensor before this rank's elements."""
    positions: torch.Tensor
    """int32 or int64, ascending, within the rank's elements."""
    values: torch.Tensor
    """int16: bits of bfloat16."""


Changes = dict[str, list[Slice]]
"""Changes by the model's tensor names, on rank 0's device. Unchanged tensors are left out."""


class PublishedWeights:
    """Keeps this rank's weights of the last published version, and finds which have changed."""

    def __init__(self, loaded: LoadedModel, ranks: Ranks, sharded: bool) -> None:
        self._model, self._ranks, self._sharded = loaded.model, ranks, sharded
        self._before: dict[str, torch.Tensor] = {}

    @property
    def tensors(self) -> list[torch.Tensor]:
        """This rank's copies, on the devices that hold the weights."""
        return list(self._before.values())

    def remember(self) -> None:
        """Record the current weights as published."""
        if self._before:
            for name, tensor in weight_tensors(self._model).items():
                self._before[name].copy_(bits(tensor))
        else:
            tensors = weight_tensors(self._model).items()
            self._before = {name: bits(tensor).clone() for name, tensor in tensors}

    def changes(self) -> Changes | None:
        """Return the changes since the last version, and record the current weights as published.
        Return None if nothing was published before, or if too many weights changed: call `remember`
        then.

        For sharded weights all ranks call this together, and either all get None or none does.
        Ranks other than 0 get no tensors.
        """
        if not self._before:
            return None
        tensors = weight_tensors(self._model)
        limit = int(MOST * sum(tensor.numel() for tensor in tensors.values()))
        local_changes = self._taken(tensors, limit)
        counts = self._counts(tensors, local_changes)
        if sum(map(sum, counts)) > limit:
            return None
        changed: Changes = {}
        for name, of_ranks in zip(tensors, zip(*counts, strict=True), strict=True):
            if any(of_ranks):
                changed[name] = self._collected(tensors[name], local_changes.get(name), of_ranks)
        return changed

    def _taken(self, tensors: dict[str, torch.Tensor], limit: int) -> dict[str, Slice]:
        """Return this rank's changes and record them as published. Stop once there are more than
        `limit`."""
        changed: dict[str, Slice] = {}
        total = 0
        for name, tensor in tensors.items():
            new, before = bits(tensor), self._before[name]
            positions = positions_of(new != before)
            if len(positions) == 0:
                continue
            values = new[positions]
            before[positions] = values
            changed[name] = Slice(0, positions.to(index_type(tensor)), values)
            total += len(positions)
            if total > limit:
                break
        return changed

    def _counts(
        self, tensors: dict[str, torch.Tensor], changed: dict[str, Slice]
    ) -> list[list[int]]:
        """Return the number of changed elements of each tensor, by rank."""
        counts = [len(changed[name].positions) if name in changed else 0 for name in tensors]
        if not self._sharded:
            return [counts]
        if not self._ranks.first:
            # Buffers are whole on every rank, so only rank 0 sends them.
            sliced = [isinstance(tensor, DTensor) for tensor in tensors.values()]
            counts = [count if yes else 0 for count, yes in zip(counts, sliced, strict=True)]
        every = self._ranks.gather(msgspec.msgpack.encode(counts))
        return [msgspec.msgpack.decode(message, type=list[int]) for message in every]

    def _collected(
        self, tensor: torch.Tensor, local_changes: Slice | None, counts: tuple[int, ...]
    ) -> list[Slice]:
        """Collect the changes of one tensor: from all ranks on rank 0, nothing elsewhere."""
        if self._ranks.first:
            others = [(rank, count) for rank, count in enumerate(counts) if rank and count]
            received = [self._received(tensor, rank, count) for rank, count in others]
            return [local_changes, *received] if local_changes is not None else received
        if local_changes is not None and counts[self._ranks.rank]:
            sides = local_changes.positions, local_changes.values
            dist.send(torch.cat([side.view(torch.uint8) for side in sides]), 0)
        return []

    def _received(self, tensor: torch.Tensor, rank: int, count: int) -> Slice:
        integer = index_type(tensor)
        size = count * integer.itemsize
        # NCCL has no 16-bit integers.
        message = torch.empty(size + 2 * count, dtype=torch.uint8, device=tensor.device)
        dist.recv(message, rank)
        width = tensor.numel() // tensor.shape[0]
        start = first_row(tensor.shape[0], rank, self._ranks.size) * width
        return Slice(start, message[:size].view(integer), message[size:].view(torch.int16))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's elements in the published type, flat, as int16."""
    return local(tensor).to(torch.bfloat16).reshape(-1).view(torch.int16)


def index_type(tensor: torch.Tensor) -> torch.dtype:
    """Return the type of positions in `tensor`. It depends on the size of the whole tensor, so it
    is the same on all ranks."""
    return torch.int32 if tensor.numel() < 1 << 31 else torch.int64


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    if mask.device.type == "cpu":
        # Takes a third of torch's time on a CPU.
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().squeeze(1)
