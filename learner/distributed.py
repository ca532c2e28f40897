"""The ranks of one learner: their devices, the messages between them, and sums over them.

Only bytes and sums are exchanged, never pickles: a message is msgpack or JSON made by the caller.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store

from learner.errors import PeerFailed, RunCannotGoOn
from learner.listeners import accept_no_more
from learner.settings import RENDEZVOUS
from learner.transient_errors import passes
from services.contracts.config import ConfigError
from services.datasets import DatasetError
from services.store import Fenced, Unreadable
from services.volume import DamagedFile

T = TypeVar("T")

USER_ERRORS: tuple[type[Exception], ...] = (
    RunCannotGoOn,
    ConfigError,
    DatasetError,
    DamagedFile,
    Unreadable,
)
"""Errors that the user can fix: the run fails with the message, and the learner serves the next
run."""
ENDINGS: tuple[type[Exception], ...] = (Fenced, *USER_ERRORS)
"""Errors that end this learner's work on a run without ending the learner."""
# Rank 0 waits for groups or a run without a limit, and the other ranks wait for rank 0.
PATIENCE = timedelta(days=30)
FAILED = -1
"""Sent instead of a message's size if rank 0 has no message to send."""
GIVEN_UP = "another rank of the learner cannot go on; its log says why"


@dataclass(frozen=True)
class Context:
    """The ranks that share each row of tokens with this rank (`training.context_parallel`)."""

    rank: int
    """This rank's index among them."""
    size: int
    group: dist.ProcessGroup | None


@dataclass(frozen=True)
class Ranks:
    """This process among the other ranks. With `size` 1 every call returns its argument.

    Ranks that share rows (`context`) train the same samples, so a sum over samples counts these
    ranks once.
    """

    rank: int
    size: int
    device: torch.device
    control: dist.ProcessGroup | None = None
    """Gloo, for messages. Gradients go over the default group (NCCL on CUDA)."""
    local_size: int = 1
    """Ranks on this host."""
    background: dist.ProcessGroup | None = None
    """Gloo, for messages between threads that write during training."""
    context: Context | None = None
    """None: each rank has its own rows."""
    contexts: dict[int, Context] = field(default_factory=dict, compare=False)
    """Contexts of earlier runs, by size."""
    spared_port: int = 0
    """The port of the ranks' store, if rank 0 has opened one: NCCL connects to it later, too."""

    @property
    def first(self) -> bool:
        """True on rank 0, the only rank that reads the stream, publishes and commits."""
        return self.rank == 0

    @property
    def parts(self) -> int:
        """Number of parts that a batch is dealt to: ranks, or groups of ranks that share rows."""
        return self.size // self.context.size if self.context else self.size

    @property
    def part(self) -> int:
        return self.rank // self.context.size if self.context else self.rank

    @property
    def counts(self) -> bool:
        """Whether this rank's sums over samples count. If several ranks share rows, one of them
        counts."""
        return self.context is None or self.context.rank == 0

    def sharing_rows(self, size: int) -> "Ranks":
        """The same ranks, with `size` of them sharing each row. All ranks call it together. Raises
        RunCannotGoOn if `size` does not divide the ranks."""
        if self.size % size:
            raise RunCannotGoOn(
                f"training.context_parallel {size} does not divide the learner's {self.size} "
                "ranks: choose a divisor"
            )
        if size > 1 and size not in self.contexts:
            kind = "nccl" if self.device.type == "cuda" else "gloo"
            groups = [
                dist.new_group(list(range(first, first + size)), backend=kind)
                for first in range(0, self.size, size)
            ]
            accept_no_more(self.spared_port)
            group = groups[self.rank // size]
            self.contexts[size] = Context(self.rank % size, size, group)
        return replace(self, context=self.contexts.get(size))

    def broadcast(self, message: bytes | None) -> bytes:
        """Return rank 0's `message` on every rank (the others pass None). Raises PeerFailed if rank
        0 fails within `announcing` instead."""
        if self.control is None:
            assert message is not None
            return message
        size = torch.tensor([len(message) if message is not None else 0])
        dist.broadcast(size, 0, group=self.control)
        if int(size) == FAILED:
            raise PeerFailed(GIVEN_UP)
        if message is not None:
            body = torch.frombuffer(bytearray(message or b"\0"), dtype=torch.uint8)
        else:
            body = torch.empty(max(int(size), 1), dtype=torch.uint8)
        dist.broadcast(body, 0, group=self.control)
        return body.numpy().tobytes()[: int(size)]

    def of_threads(self) -> "Ranks":
        """The same ranks, with messages over the process group of the writing threads."""
        return replace(self, control=self.background)

    @contextmanager
    def announcing(self) -> Iterator[None]:
        """Guard work that rank 0 does alone while the others wait for its next message. If the work
        raises one of ENDINGS, the others raise PeerFailed. Otherwise they would mistake the next
        message for this one."""
        try:
            yield
        except ENDINGS:
            if self.control is not None:
                dist.broadcast(torch.tensor([FAILED]), 0, group=self.control)
            raise

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        """Return on every rank the message that `make` returns on rank 0. `make` may take long; the
        other ranks do not call it. Raises as `announcing` does."""
        if not self.first:
            return self.broadcast(None)
        with self.announcing():
            message = make()
        return self.broadcast(message)

    def sum(self, values: Sequence[float], separate: bool = False) -> list[float]:
        """Return element-wise sums over ranks, in float64. `separate`: ranks that share rows have
        different values, and each rank counts."""
        counted = values if separate or self.counts else [0.0] * len(values)
        return self._reduce(counted, dist.ReduceOp.SUM)

    def sum_named(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return sums by name over ranks. Ranks may have different names."""
        sums: dict[str, float] = {}
        for message in self.gather(msgspec.msgpack.encode(values if self.counts else {})):
            for name, value in msgspec.msgpack.decode(message, type=dict[str, float]).items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def gather(self, message: bytes) -> list[bytes]:
        """Return every rank's `message` on every rank, in rank order."""
        if self.control is None:
            return [message]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(message)]), group=self.control)
        longest = max(1, *(int(size) for size in sizes))
        padded = torch.frombuffer(bytearray(message.ljust(longest, b"\0")), dtype=torch.uint8)
        bodies = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(bodies, padded, group=self.control)
        return [b.numpy().tobytes()[: int(n)] for b, n in zip(bodies, sizes, strict=True)]

    def max(self, values: Sequence[float]) -> list[float]:
        """Return element-wise maxima over ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def together(self, action: Callable[[], T]) -> T:
        """Return the result of `action` once it has succeeded on all ranks. `action` must not talk
        to other ranks.

        If `action` raises one of ENDINGS on a rank, that rank raises the error and the others raise
        PeerFailed with its message, so no rank waits for a rank that has given up.
        """
        failure: Exception | None = None
        results: list[T] = []
        try:
            results.append(action())
        except ENDINGS as error:
            failure = error
        later = [failure is not None and passes(failure, is_new) for is_new in (False, True)]
        failed, passing, passing_when_new = self.max([failure is not None, *later])
        if failed:
            messages = self.gather(str(failure or "").encode())
            words = next((text.decode() for text in messages if text), GIVEN_UP)
            peer = PeerFailed(words)
            peer.passes, peer.passes_when_new = bool(passing), bool(passing_when_new)
            raise failure or peer
        return results[0]

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self.control is None:
            return [float(value) for value in values]
        tensor = torch.tensor(list(values), dtype=torch.float64)
        dist.all_reduce(tensor, operation, group=self.control)
        return [float(value) for value in tensor]


def start_ranks(store: Store | None = None, spared_port: int = 0) -> Ranks:
    """Join the ranks that the environment describes, or run alone without one. The ranks meet in
    `store`, or in the file that the supervisor names. `spared_port` of this process goes on to
    accept connections."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", str(size)))
    set_threads(local_size)
    if size == 1:
        return Ranks(0, 1, device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        store=store or FileStore(os.environ[RENDEZVOUS], size),
        rank=rank,
        world_size=size,
    )
    control, background = (dist.new_group(backend="gloo", timeout=PATIENCE) for _ in range(2))
    accept_no_more(spared_port)
    return Ranks(rank, size, device, control, local_size, background, spared_port=spared_port)


def stop_ranks(ranks: Ranks) -> None:
    if ranks.control is not None:
        dist.destroy_process_group()


def set_threads(ranks_here: int) -> None:
    """Share this machine's usable cores between its ranks, unless OMP_NUM_THREADS sets the threads
    of each rank."""
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    given = int(text) if text.isdigit() else 0
    torch.set_num_threads(given or max(len(os.sched_getaffinity(0)) // ranks_here, 1))
