"""Find the weights that a version changes, on the devices that hold the weights.

Each rank keeps its weights as they were published, in bfloat16: 2 bytes per weight. If the weights
are replicated, only rank 0 keeps them. Positions and values of changed weights go to rank 0, and
from there to the host.
"""

import math
from collections.abc import Iterator
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


MESSAGE = 64 << 20
"""Bytes of one message between ranks. A message for each tensor would take longer to start than to
arrive."""
VALUE = torch.int16


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

    def whole(self) -> dict[str, torch.Tensor]:
        """Return the published weights by the model's names, if this rank has all of them: views of
        its copies, which the next version changes."""
        tensors = weight_tensors(self._model)
        return {
            name: bits.view(torch.bfloat16).view(tensors[name].shape)
            for name, bits in self._before.items()
        }

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
        if not self._ranks.first:
            self._send(tensors, local_changes, counts[self._ranks.rank])
            return {}
        changed: Changes = {name: [part] for name, part in local_changes.items()}
        for rank, of_rank in enumerate(counts):
            if rank and any(of_rank):
                for name, part in self._received(tensors, rank, of_rank):
                    changed.setdefault(name, []).append(part)
        return {name: changed[name] for name in tensors if name in changed}

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

    def _send(
        self, tensors: dict[str, torch.Tensor], changed: dict[str, Slice], counts: list[int]
    ) -> None:
        """Send this rank's changes to rank 0, in few large messages."""
        sent = [changed[name] for name, *_ in _layout(tensors, counts)]
        sides = [each.positions for each in sent] + [each.values for each in sent]
        if sides:
            message = torch.cat([side.view(torch.uint8) for side in sides])
            for piece in message.split(MESSAGE):
                dist.send(piece, 0)

    def _received(
        self, tensors: dict[str, torch.Tensor], rank: int, counts: list[int]
    ) -> Iterator[tuple[str, Slice]]:
        """Receive the changes of `rank`, which has `counts` of them by tensor."""
        layout = _layout(tensors, counts)
        size = sum(count * (index.itemsize + VALUE.itemsize) for _, count, index in layout)
        device = next(iter(tensors.values())).device
        # NCCL has no 16-bit integers.
        message = torch.empty(size, dtype=torch.uint8, device=device)
        for piece in message.split(MESSAGE):
            dist.recv(piece, rank)
        sizes = [count * index.itemsize for _, count, index in layout]
        sizes += [count * VALUE.itemsize for _, count, _ in layout]
        sides = message.split(sizes)
        for (name, _, index), positions, values in zip(
            layout, sides[: len(layout)], sides[len(layout) :], strict=True
        ):
            rows, *others = tensors[name].shape
            start = first_row(rows, rank, self._ranks.size) * math.prod(others)
            yield name, Slice(start, positions.view(index), values.view(VALUE))


def _layout(
    tensors: dict[str, torch.Tensor], counts: list[int]
) -> list[tuple[str, int, torch.dtype]]:
    """Return (name, count, type of positions) of a rank's changed tensors, in the order of its
    message: all positions, then all values. Wider types come first, which aligns all of them."""
    pairs = zip(tensors.items(), counts, strict=True)
    changed = [(name, count, index_type(tensor)) for (name, tensor), count in pairs if count]
    return sorted(changed, key=lambda each: -each[2].itemsize)


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
