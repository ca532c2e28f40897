"""Copy a device's tensors to the host while the device computes.

On CUDA a separate stream copies pieces into two pinned buffers in turn: while one buffer is filled,
the other is emptied into pageable memory. So the host pins only `2 · PIECE` bytes for tensors of
any size, and the training's stream does not wait.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from learner.slices import to_host

Tensors = dict[str, torch.Tensor]
PIECE = 16 << 20
"""Bytes of one pinned buffer."""


class HostCopies:
    """Copies tensors of one device to the host. Threads take turns."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._lock = threading.Lock()
        if self._cuda:
            self._stream = torch.cuda.Stream(device)
            self._buffers = [torch.empty(PIECE, dtype=torch.uint8).pin_memory() for _ in "ab"]
            self._filled = [torch.cuda.Event() for _ in "ab"]

    def now(self) -> "torch.cuda.Event | None":
        """Mark the current point of the current stream, for `copied`."""
        if not self._cuda:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def copied(
        self, tensors: Sequence[torch.Tensor], ready: "torch.cuda.Event | None"
    ) -> list[torch.Tensor]:
        """Return `tensors` (contiguous) on the host, as they are at `ready`. They must not change
        before this returns."""
        if not self._cuda:
            return list(tensors)
        hosts = [torch.empty(t.shape, dtype=t.dtype) for t in tensors]
        with self._lock, torch.cuda.stream(self._stream):
            if ready is not None:
                self._stream.wait_event(ready)
            waiting: tuple[int, torch.Tensor] | None = None
            for number, (source, target) in enumerate(_pieces(tensors, hosts)):
                turn = number % 2
                self._buffers[turn][: len(source)].copy_(source, non_blocking=True)
                self._filled[turn].record(self._stream)
                if waiting is not None:
                    self._empty(*waiting)
                waiting = turn, target
            if waiting is not None:
                self._empty(*waiting)
        return hosts

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of `tensor` on the host, as the current stream leaves it."""
        if not self._cuda or tensor.device != self._stream.device:
            return to_host(tensor)
        return self.copied([tensor.contiguous()], self.now())[0]

    def _empty(self, turn: int, target: torch.Tensor) -> None:
        self._filled[turn].synchronize()
        target.copy_(self._buffers[turn][: len(target)])


class LaterCopy(Mapping[str, torch.Tensor]):
    """A host copy of tensors, by name, that is made when it is first read, or before the tensors
    change (`finish`)."""

    def __init__(
        self, tensors: Tensors, copies: HostCopies, named: Callable[[Tensors], Tensors] = dict
    ) -> None:
        """`tensors`: contiguous, as the current stream leaves them; `named`: gives the copies other
        names."""
        self._copies, self._ready, self._named = copies, copies.now(), named
        self._tensors: Tensors | None = tensors
        self._made: Tensors = {}
        self._lock = threading.Lock()

    def finish(self) -> None:
        """Make the copy now, or wait for the thread that makes it."""
        with self._lock:
            if self._tensors is not None:
                hosts = self._copies.copied(list(self._tensors.values()), self._ready)
                # Tensors on the host are not copied yet.
                self._made = self._named(
                    {
                        name: host.clone() if host is tensor else host
                        for (name, tensor), host in zip(self._tensors.items(), hosts, strict=True)
                    }
                )
                self._tensors = None

    def __getitem__(self, name: str) -> torch.Tensor:
        self.finish()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        self.finish()
        return iter(self._made)

    def __len__(self) -> int:
        self.finish()
        return len(self._made)


def _pieces(
    sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield pieces of both tensors' bytes, of at most one buffer each."""
    for source, target in zip(sources, targets, strict=True):
        source_bytes, target_bytes = (
            tensor.reshape(-1).view(torch.uint8) for tensor in (source, target)
        )
        for start in range(0, len(source_bytes), PIECE):
            yield source_bytes[start : start + PIECE], target_bytes[start : start + PIECE]
