"""The ranks of one learner: where each runs, and the messages and sums that they exchange.

Bytes and sums only. Nothing is ever pickled: a message is msgpack or JSON made by the caller.
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
from learner.passing import passes
from learner.settings import RENDEZVOUS
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
"""What the user can put right: the run fails with the message, and the learner serves the next."""
ENDINGS: tuple[type[Exception], ...] = (Fenced, *USER_ERRORS)
"""What ends this learner's work on a run, and not the learner."""
# Rank 0 may wait for groups, or for a run, as long as it takes; the others wait for rank 0.
PATIENCE = timedelta(days=30)
FAILED = -1
"""In place of a message's size: rank 0 has none to give."""
GIVEN_UP = "another rank of the learner cannot go on; its log says why"


@dataclass(frozen=True)
class Context:
    """The ranks that share each row of tokens with this one (`training.context_parallel`)."""

    rank: int
    """This one's place among them."""
    size: int
    group: dist.ProcessGroup | None


@dataclass(frozen=True)
class Ranks:
    """This process among its peers. With `size` 1 every call returns what it was given.

    Ranks that share rows (`context`) train the same samples: what is summed over samples counts
    once for all of them.
    """

    rank: int
    size: int
    device: torch.device
    control: dist.ProcessGroup | None = None
    """Gloo, for messages; gradients go over the default group (NCCL on CUDA)."""
    local_size: int = 1
    """Ranks on this host."""
    background: dist.ProcessGroup | None = None
    """Gloo, for messages between threads that write while the others train."""
    context: Context | None = None
    """None: each rank has rows of its own."""
    contexts: dict[int, Context] = field(default_factory=dict, compare=False)
    """Those of earlier runs, by their size."""

    @property
    def first(self) -> bool:
        """True on rank 0, the only one that reads the stream, publishes and commits."""
        return self.rank == 0

    @property
    def parts(self) -> int:
        """Ranks, or groups of ranks that share rows: so many train samples of their own."""
        return self.size // self.context.size if self.context else self.size

    @property
    def part(self) -> int:
        """Which of them this rank is, or is in."""
        return self.rank // self.context.size if self.context else self.rank

    @property
    def counts(self) -> bool:
        """Whether its sums over samples count: those of one rank of several that share rows."""
        return self.context is None or self.context.rank == 0

    def sharing_rows(self, size: int) -> "Ranks":
        """The same ranks, so many of which share rows. All ranks call it together. Raises
        RunCannotGoOn where they do not divide so."""
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
            accept_no_more()
            own = groups[self.rank // size]
            self.contexts[size] = Context(self.rank % size, size, own)
        return replace(self, context=self.contexts.get(size))

    def broadcast(self, message: bytes | None) -> bytes:
        """Rank 0's `message` on every rank (the others pass None). Raises PeerFailed where rank 0
        fails within `announcing` instead."""
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
        """The same ranks, for messages of a thread beside the training."""
        return replace(self, control=self.background)

    @contextmanager
    def announcing(self) -> Iterator[None]:
        """Work of rank 0 alone, while the others wait for its next message. Where it raises one of
        ENDINGS the others raise PeerFailed: else they would take the next message for this one."""
        try:
            yield
        except ENDINGS:
            if self.control is not None:
                dist.broadcast(torch.tensor([FAILED]), 0, group=self.control)
            raise

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        """The message that `make` returns on rank 0, where it may take its time, on every rank.
        It is not called on the others. Raises as `announcing` does."""
        if not self.first:
            return self.broadcast(None)
        with self.announcing():
            message = make()
        return self.broadcast(message)

    def sum(self, values: Sequence[float], own: bool = False) -> list[float]:
        """Element-wise sums over ranks, in float64. `own`: ranks that share rows have values of
        their own, and each counts."""
        counted = values if own or self.counts else [0.0] * len(values)
        return self._reduce(counted, dist.ReduceOp.SUM)

    def sum_named(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sums by name over ranks, which need not have the same names."""
        found: dict[str, float] = {}
        for message in self.gather(msgspec.msgpack.encode(values if self.counts else {})):
            for name, value in msgspec.msgpack.decode(message, type=dict[str, float]).items():
                found[name] = found.get(name, 0.0) + value
        return found

    def gather(self, message: bytes) -> list[bytes]:
        """Every rank's `message` on every rank, in the order of the ranks."""
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
        """Element-wise maxima over ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def together(self, action: Callable[[], T]) -> T:
        """The result of `action`, which must not talk to other ranks, once it worked on all.

        Where it raised one of ENDINGS on some rank, that rank raises it and the others raise
        PeerFailed with its words, so that none waits for a rank that has given up.
        """
        failure: Exception | None = None
        results: list[T] = []
        try:
            results.append(action())
        except ENDINGS as error:
            failure = error
        passing = failure is not None and passes(failure)
        failed, passed = self.max([failure is not None, passing])
        if failed:
            said = self.gather(str(failure or "").encode())
            words = next((text.decode() for text in said if text), GIVEN_UP)
            peer = PeerFailed(words)
            peer.passes = bool(passed)
            raise failure or peer
        return results[0]

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self.control is None:
            return [float(value) for value in values]
        tensor = torch.tensor(list(values), dtype=torch.float64)
        dist.all_reduce(tensor, operation, group=self.control)
        return [float(value) for value in tensor]


def start_ranks(store: Store | None = None) -> Ranks:
    """Join the ranks that the supervisor's environment describes; alone without one. They meet in
    `store`; None: in the file that the environment names."""
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
    accept_no_more()
    return Ranks(rank, size, device, control, local_size, background)


def stop_ranks(ranks: Ranks) -> None:
    """Leave the process group."""
    if ranks.control is not None:
        dist.destroy_process_group()


def set_threads(ranks_here: int) -> None:
    """Share this machine's usable cores between its ranks, unless OMP_NUM_THREADS says how many
    threads each has."""
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    given = int(text) if text.isdigit() else 0
    torch.set_num_threads(given or max(len(os.sched_getaffinity(0)) // ranks_here, 1))
