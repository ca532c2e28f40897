"""Copy a device's tensors to the host while the device computes.

On CUDA a separate stream copies pieces into two pinned buffers in turn: while one buffer is filled,
the other is emptied into pageable memory. So the host pins only `2 · PIECE` bytes for tensors of
any size, and the training's stream does not wait.
"""

from collections.abc import Iterator, Sequence

import torch

PIECE = 16 << 20
"""Bytes of one pinned buffer."""


class HostCopies:
    """Copies tensors of one device to the host. One thread may use it."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
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
        with torch.cuda.stream(self._stream):
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

    def _empty(self, turn: int, target: torch.Tensor) -> None:
        self._filled[turn].synchronize()
        target.copy_(self._buffers[turn][: len(target)])


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
