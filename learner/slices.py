"""Weights of which each rank holds some rows: DTensors over all ranks, rank r with the r-th part of
dimension 0. A rank may hold none. In files they are whole: each rank writes some of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard


@dataclass(frozen=True)
class Part:
    """What one of several ranks writes of named tensors: whole ones, so that a file means the same
    whoever wrote it, and as many bytes as the others."""

    number: int = 0
    count: int = 1

    def of(self, tensors: Mapping[str, torch.Tensor]) -> set[str]:
        """The names of this part; all parts have the same `tensors`. The largest first, to the part
        that has least."""
        loads, mine = [0] * self.count, set()
        for name in sorted(tensors, key=lambda name: (-tensors[name].numel(), name)):
            lightest = loads.index(min(loads))
            loads[lightest] += tensors[name].numel() * tensors[name].element_size()
            if lightest == self.number:
                mine.add(name)
        return mine

    def file(self, name: str) -> str:
        """What this part of the file `name` is called, as transformers and vLLM know it."""
        if self.count == 1:
            return name
        stem = name.removesuffix(".safetensors")
        return f"{stem}-{self.number + 1:05d}-of-{self.count:05d}.safetensors"


WHOLE = Part()
PART = re.compile(r"-(\d{5})-of-\d{5}\.safetensors$")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of `tensor`: the same memory, without gradient."""
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    return tensor.detach()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All rows of `tensor`. Every rank of a sharded one has to ask for it."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def rows_of(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Of `tensor`, unless it is sharded already, what this rank holds of `like`, which has its
    shape."""
    if not isinstance(like, DTensor) or isinstance(tensor, DTensor):
        return tensor
    start, stop = row_range(like)
    return as_slice(tensor[start:stop], like)


def sharded_as(tensor: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """This rank's rows of `tensor`, which is whole, where `tensor` lies."""
    start, stop = rows_on(tensor.shape[0], mesh)
    return DTensor.from_local(
        tensor[start:stop],
        mesh,
        [Shard(0)],
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def row_range(like: DTensor) -> tuple[int, int]:
    """First row of `like` that this rank holds, and the one after its last."""
    return rows_on(like.shape[0], like.device_mesh)


def rows_on(rows: int, mesh: DeviceMesh) -> tuple[int, int]:
    """The same for a tensor of so many rows: each rank has as many, and the last ones fewer."""
    rank = mesh.get_local_rank()
    return first_row(rows, rank, mesh.size()), first_row(rows, rank + 1, mesh.size())


def first_row(rows: int, rank: int, ranks: int) -> int:
    """Of a tensor of so many rows, the first that `rank` holds; `rows` where it holds none."""
    return min(rank * -(-rows // ranks), rows)


def as_slice(rows: torch.Tensor, like: DTensor) -> DTensor:
    """This rank's `rows` as its part of a tensor that is sharded as `like` is."""
    rows = rows.to(like.device).contiguous().clone()
    return DTensor.from_local(
        rows, like.device_mesh, [Shard(0)], run_check=False, shape=like.shape, stride=like.stride()
    )
