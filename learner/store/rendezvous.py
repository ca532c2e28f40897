"""The meeting place of a learner's ranks on several hosts: a torch.distributed store in Redis.

torch's own TCPStore answers anyone who connects. Here a rank needs Redis' password. The values are
bytes that gloo and NCCL parse.
"""

import os
import threading
import time
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from learner.settings import RENDEZVOUS
from learner.store.thread import StoreThread
from services.store.runs.ranks import RankMeetings

POLL_SECONDS = 0.05
USUAL_WAIT = timedelta(minutes=30)


def rendezvous(thread: StoreThread, stop: threading.Event) -> Store | None:
    """Return the store of this start's ranks, or None if they are on one host and meet in a
    file."""
    kind, _, start = os.environ.get(RENDEZVOUS, "").partition(":")
    return RedisStore(thread, start, stop) if kind == "redis" else None


class RedisStore(Store):
    """The ranks' values, under names that begin with the id of their start.

    Torch calls it from its own threads too. Raises RedisError if Redis is away.
    """

    def __init__(self, thread: StoreThread, start: str, stop: threading.Event) -> None:
        super().__init__()
        self._thread, self._start, self._stop = thread, start, stop
        self._meetings: RankMeetings = thread.store.rank_meetings

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        self._thread.call(lambda: self._meetings.put(self._thread.pool, self._name(key), value))

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def add(self, key: str, amount: int) -> int:
        return self._thread.call(
            lambda: self._meetings.add(self._thread.pool, self._name(key), amount)
        )

    def check(self, keys: list[str]) -> bool:
        return None not in self._values(keys)

    def wait(self, keys: list[str], timeout: timedelta = USUAL_WAIT) -> None:
        """Wait until all keys have a value. Raises DistStoreError after `timeout`, or if this rank
        is asked to end."""
        deadline = time.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if time.monotonic() > deadline or self._stop.wait(POLL_SECONDS):
                why = "told to end" if self._stop.is_set() else f"not there after {timeout}"
                raise dist.DistStoreError(f"waiting for other ranks ({', '.join(keys)}): {why}")

    def delete_key(self, key: str) -> bool:
        return self._thread.call(lambda: self._meetings.delete(self._thread.pool, self._name(key)))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.wait(keys)
        return [value or b"" for value in self._values(keys)]

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> Store:
        """Return this store: any thread may use it."""
        return self

    def _values(self, keys: list[str]) -> list[bytes | None]:
        names = [self._name(key) for key in keys]
        return self._thread.call(lambda: self._meetings.get(self._thread.pool, names))

    def _name(self, key: str) -> str:
        return f"{self._start}/{key}"
