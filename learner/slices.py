"""Sharded weights: DTensors over all ranks. Rank r holds the r-th part of dimension 0, which may be
empty. Files hold whole tensors: each rank writes some of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard


@dataclass(frozen=True)
class RankPart:
    """One rank's share of a set of named tensors to write. Tensors are whole, so a file means the
    same whichever rank wrote it. All shares have about the same size."""

    number: int = 0
    count: int = 1

    def of(self, tensors: Mapping[str, torch.Tensor]) -> set[str]:
        """Return the names in this share. All ranks pass the same `tensors`. The largest tensor
        goes first, to the share with the fewest bytes."""
        loads, names = [0] * self.count, set()
        for name in sorted(tensors, key=lambda name: (-tensors[name].numel(), name)):
            lightest = loads.index(min(loads))
            loads[lightest] += tensors[name].numel() * tensors[name].element_size()
            if lightest == self.number:
                names.add(name)
        return names

    def file(self, name: str) -> str:
        """Return the name of this share of the file `name`, in the form that transformers and vLLM
        read."""
        if self.count == 1:
            return name
        stem = name.removesuffix(".safetensors")
        return f"{stem}-{self.number + 1:05d}-of-{self.count:05d}.safetensors"


WHOLE = RankPart()
PART = re.compile(r"-(\d{5})-of-\d{5}\.safetensors$")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's rows of `tensor`: the same memory, without gradient."""
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    return tensor.detach()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return all rows of `tensor`. For a sharded tensor all ranks must call this together."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of `tensor` on the host. `learner.persist.host_copies` copies large tensors of
    a GPU faster."""
    return tensor.to("cpu", copy=True)


def rows_of(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return this rank's rows of `tensor`, sharded as `like` is. `tensor` has the shape of `like`
    and may already be sharded."""
    if not isinstance(like, DTensor) or isinstance(tensor, DTensor):
        return tensor
    start, stop = row_range(like)
    return as_slice(tensor[start:stop], like)


def sharded_as(tensor: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """Return this rank's rows of the whole `tensor`, without a copy."""
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
    """Return the first row of `like` that this rank holds, and the row after its last."""
    return rows_on(like.shape[0], like.device_mesh)


def rows_on(rows: int, mesh: DeviceMesh) -> tuple[int, int]:
    """Return the rows [start, stop) that this rank holds of a tensor with `rows` rows. All ranks
    hold equally many rows, except that the last ranks may hold fewer."""
    rank = mesh.get_local_rank()
    return first_row(rows, rank, mesh.size()), first_row(rows, rank + 1, mesh.size())


def first_row(rows: int, rank: int, ranks: int) -> int:
    """Return the first row that `rank` holds of a tensor with `rows` rows, or `rows` if it holds no
    row."""
    return min(rank * -(-rows // ranks), rows)


def as_slice(rows: torch.Tensor, like: DTensor) -> DTensor:
    """Return a tensor sharded as `like` is, with `rows` as this rank's rows."""
    rows = rows.to(like.device).contiguous().clone()
    return DTensor.from_local(
        rows, like.device_mesh, [Shard(0)], run_check=False, shape=like.shape, stride=like.stride()
    )
