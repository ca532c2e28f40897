"""Placement of models other than the policy, and of idle tensors on the host.

Only storage is freed and allocated. Parameters and optimizer state stay the same tensors on the
same device, so optimizers and DDP need not know.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch

from learner.errors import RunCannotGoOn
from learner.slices import local

if TYPE_CHECKING:  # tests/gpu also runs with only torch and transformers
    from learner.distributed import Ranks
    from services.contracts.config.training import Offloaded, Training


class UnusableDevice(RunCannotGoOn):
    """The config places a model on a device that it cannot use. The message names the devices."""


def offloads(name: "Offloaded", training: "Training", ranks: "Ranks") -> bool:
    """Whether `name` is on the host while it is idle: if the config says so and the device is not
    already the host."""
    return name in training.offload and ranks.device.type != "cpu"


def place(key: str, placement: str, ranks: "Ranks", devices: int | None = None) -> torch.device:
    """Return the device for a model of this rank, given `placement`, the value of the config's
    `key`. `devices`: number of GPUs of this host. Raises UnusableDevice."""
    if placement == "same":
        return ranks.device
    there = torch.cuda.device_count() if devices is None else devices
    first = int(placement.removeprefix("cuda:"))
    last = first + ranks.local_size - 1
    if last >= there:
        wanted = placement if last == first else f"{placement} to cuda:{last}, one for each rank"
        has = f"has cuda:0 to cuda:{there - 1}" if there > 1 else "has only cuda:0"
        raise UnusableDevice(
            f"{key} wants {wanted}, and this host {has if there else 'has no GPU'}: name another, "
            "or leave it out for the policy's device"
        )
    if 0 < first < ranks.local_size:
        raise UnusableDevice(
            f"{key} wants {placement}, on which another rank trains its policy: with "
            f"{ranks.local_size} ranks on this host the first free one is cuda:{ranks.local_size}"
        )
    return torch.device("cuda", first + (ranks.device.index or 0))


class Offload:
    """Tensors that have storage on their device only while they are used, and are otherwise on the
    host."""

    def __init__(self, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        """`tensors`: returns all tensors, each once. There may be more after a use than before."""
        self._tensors = tensors
        self.host: dict[torch.Tensor, torch.Tensor] = {}
        """Content of each tensor without storage. For a sharded tensor: this rank's rows."""
        self._sizes: dict[torch.Tensor, int] = {}
        self.store(changed=True)

    @torch.no_grad()
    def load(self) -> None:
        """Restore the storage and content of every tensor."""
        for tensor, kept in self.host.items():
            here = local(tensor)
            here.untyped_storage().resize_(self._sizes[tensor])
            here.copy_(kept, non_blocking=True)

    @torch.no_grad()
    def store(self, changed: bool) -> None:
        """Free the tensors' storage. `changed`: first copy their content to the host."""
        for tensor in self._tensors():
            here = local(tensor)
            if tensor not in self.host:
                # Copies from and to pinned memory run at the speed of the bus.
                self.host[tensor] = torch.empty_like(
                    here, device="cpu", pin_memory=here.is_cuda, requires_grad=False
                ).copy_(here)
                # A slice's memory may be larger than the slice: all ranks' slices are gathered as
                # one tensor.
                self._sizes[tensor] = here.untyped_storage().nbytes()
            elif changed:
                self.host[tensor].copy_(here)
            here.untyped_storage().resize_(0)


@contextmanager
def present(offloads: Iterable[Offload], changed: bool) -> Iterator[None]:
    """Make the tensors of `offloads` usable within the block. `changed`: the block changes them."""
    with ExitStack() as stack:
        for offload in offloads:
            offload.load()
            stack.callback(offload.store, changed)
        yield
