"""Ranks that are threads of one process and exchange messages without a process group."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from learner.distributed import Ranks

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds after which a missing rank fails the test instead of hanging it."""


class Meeting:
    """The place where threads exchange their values."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.values: list[Any] = [None] * size

    def all(self, rank: int, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        self.values[rank] = value
        self.barrier.wait(PATIENCE)
        found = list(self.values)
        self.barrier.wait(PATIENCE)
        return found


@dataclass(frozen=True)
class ThreadRanks(Ranks):
    """One of `size` threads. As with a process group, all must call in the same order."""

    meeting: Meeting = field(default_factory=lambda: Meeting(1))

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        every = torch.tensor(self.meeting.all(self.rank, values), dtype=torch.float64)
        found = every.amax(0) if operation == dist.ReduceOp.MAX else every.sum(0)
        return [float(value) for value in found]

    def gather(self, message: bytes) -> list[bytes]:
        """Every rank's message."""
        return self.meeting.all(self.rank, message)


def on_ranks(size: int, action: Callable[[Ranks], T]) -> list[T]:
    """Return the results of `action` on each of `size` ranks, which run at the same time."""
    meeting = Meeting(size)
    ranks = [ThreadRanks(r, size, torch.device("cpu"), meeting=meeting) for r in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(action, ranks))


def mean_gradients(
    size: int, one: Callable[[Ranks], dict[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """Return the gradients that DDP computes from the gradients of `one` on each rank."""
    found = on_ranks(size, one)
    return {name: torch.stack([each[name] for each in found]).mean(0) for name in found[0]}


def assert_same_gradients(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    """Assert that gradients exist and are equal."""
    largest = max(float(gradient.abs().max()) for gradient in a.values())
    assert largest > 1e-6
    for name, gradient in a.items():
        # Norms and routers of a transformer compute in float32 whatever its type.
        torch.testing.assert_close(b[name], gradient, rtol=0, atol=1e-6 * largest)
