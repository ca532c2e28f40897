"""What a version changes of the version before it, found on the devices that hold the weights.

Each rank keeps its weights as they were published, in bfloat16: 2 bytes for each weight that it
holds. Only rank 0 of replicated weights does so. Positions and values of what differs go to rank
0, and from there to the host.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from learner.distributed import Ranks
from learner.model.loading.models import LoadedModel
from learner.model.loading.saving import weight_tensors
from learner.slices import first_row, local

MOST = 1 / 16
"""Share of changed weights above which a version is published whole: a delta takes 3.2 bytes a
change, and a chain may hold no more than one such delta (`chain.SHARE`). It also bounds the memory
that changes take until they are on the host: 6 bytes each."""


@dataclass(frozen=True)
class Slice:
    """What one rank has changed of one tensor."""

    start: int
    """Elements of the tensor before this rank's."""
    positions: torch.Tensor
    """int32 or int64, rising, in the rank's elements."""
    values: torch.Tensor
    """int16: bits of bfloat16."""


@dataclass(frozen=True)
class Changes:
    """By the model's own names, on rank 0's device; tensors without changes are left out."""

    tensors: dict[str, list[Slice]]


class PublishedWeights:
    """The weights of the version before, as far as this rank holds them."""

    def __init__(self, loaded: LoadedModel, ranks: Ranks, sharded: bool) -> None:
        self._model, self._ranks, self._sharded = loaded.model, ranks, sharded
        self._before: dict[str, torch.Tensor] = {}

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What this rank keeps, on the devices that hold the weights."""
        return list(self._before.values())

    def remember(self) -> None:
        """Keep the weights as they are, as those that are published."""
        if self._before:
            for name, tensor in weight_tensors(self._model).items():
                self._before[name].copy_(bits(tensor))
        else:
            found = weight_tensors(self._model).items()
            self._before = {name: bits(tensor).clone() for name, tensor in found}

    def changes(self) -> Changes | None:
        """What has changed since; from now on these weights count as published. None where nothing
        was published before, or too much has changed: `remember` comes next then.

        Of sharded weights all ranks ask, and all get None or none does. Ranks other than 0 get no
        tensors.
        """
        if not self._before:
            return None
        tensors = weight_tensors(self._model)
        most = int(MOST * sum(tensor.numel() for tensor in tensors.values()))
        mine = self._taken(tensors, most)
        counts = self._counts(tensors, mine)
        if sum(map(sum, counts)) > most:
            return None
        found: dict[str, list[Slice]] = {}
        for name, of_ranks in zip(tensors, zip(*counts, strict=True), strict=True):
            if any(of_ranks):
                found[name] = self._collected(tensors[name], mine.get(name), of_ranks)
        return Changes(found)

    def _taken(self, tensors: dict[str, torch.Tensor], most: int) -> dict[str, Slice]:
        """This rank's changes, which count as published. As soon as there are more than `most`,
        the rest is left out."""
        found: dict[str, Slice] = {}
        total = 0
        for name, tensor in tensors.items():
            new, before = bits(tensor), self._before[name]
            positions = positions_of(new != before)
            if len(positions) == 0:
                continue
            values = new[positions]
            before[positions] = values
            found[name] = Slice(0, positions.to(index_type(tensor)), values)
            total += len(positions)
            if total > most:
                break
        return found

    def _counts(self, tensors: dict[str, torch.Tensor], found: dict[str, Slice]) -> list[list[int]]:
        """Changed elements of each tensor, by rank."""
        mine = [len(found[name].positions) if name in found else 0 for name in tensors]
        if not self._sharded:
            return [mine]
        if not self._ranks.first:
            # Buffers, which every rank has whole.
            sliced = [isinstance(tensor, DTensor) for tensor in tensors.values()]
            mine = [count if yes else 0 for count, yes in zip(mine, sliced, strict=True)]
        every = self._ranks.gather(msgspec.msgpack.encode(mine))
        return [msgspec.msgpack.decode(message, type=list[int]) for message in every]

    def _collected(
        self, tensor: torch.Tensor, mine: Slice | None, counts: tuple[int, ...]
    ) -> list[Slice]:
        """The changes of one tensor: of all ranks on rank 0, none elsewhere."""
        if self._ranks.first:
            others = [(rank, count) for rank, count in enumerate(counts) if rank and count]
            received = [self._received(tensor, rank, count) for rank, count in others]
            return [mine, *received] if mine is not None else received
        if mine is not None and counts[self._ranks.rank]:
            sides = mine.positions, mine.values
            dist.send(torch.cat([side.view(torch.uint8) for side in sides]), 0)
        return []

    def _received(self, tensor: torch.Tensor, rank: int, count: int) -> Slice:
        """What `rank` sends of `tensor`."""
        integer = index_type(tensor)
        size = count * integer.itemsize
        # NCCL knows no 16 bit integers.
        message = torch.empty(size + 2 * count, dtype=torch.uint8, device=tensor.device)
        dist.recv(message, rank)
        width = tensor.numel() // tensor.shape[0]
        start = first_row(tensor.shape[0], rank, self._ranks.size) * width
        return Slice(start, message[:size].view(integer), message[size:].view(torch.int16))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's elements in the type that is published, flat, as int16."""
    return local(tensor).to(torch.bfloat16).reshape(-1).view(torch.int16)


def index_type(tensor: torch.Tensor) -> torch.dtype:
    """Of positions in `tensor`: the same on all ranks, by the size of the whole tensor."""
    return torch.int32 if tensor.numel() < 1 << 31 else torch.int64


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    """The positions at which `mask`, which is flat, is true."""
    if mask.device.type == "cpu":
        # A third of the time that torch takes on a CPU.
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().squeeze(1)
