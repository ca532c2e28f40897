"""Notice that a rank of the job is gone, or was asked to end, whatever the other ranks wait for.

A message of gloo fails at once when a process dies, but only ranks that wait for gloo learn it. A
rank in a kernel of NCCL waits on, and a host without power leaves its connections open.
"""

import os
import select
import signal
import socket
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from learner.distributed import Ranks
from learner.listeners import accept_no_more
from learner.settings import EXIT_CRASH
from services.runtime.logs import get_logger

log = get_logger(__name__)

WATCH_SECONDS = 30.0
"""A rank that does not answer for this long is gone."""
EVERY_SECONDS = 2.0
GRACE_SECONDS = 5.0
"""Seconds in which the training thread may fail with an error of its own, which says more."""


class RankWatch:
    """Asks all ranks every EVERY_SECONDS. If a rank does not answer, this process ends."""

    def __init__(self, ranks: Ranks, stop: threading.Event, alive_file: Path | None) -> None:
        """All ranks make it together. `stop`: set once any rank is asked to end."""
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=WATCH_SECONDS))
        accept_no_more(ranks.spared_port)
        self._stop, self._alive_file = stop, alive_file
        self._leaving = threading.Event()
        # The handler of a signal runs late if the training thread waits for a message of gloo.
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._run, name="rank-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """End the watch. All ranks call it together."""
        self._leaving.set()
        self._waker.send(b"\0")
        self._thread.join(WATCH_SECONDS)
        signal.set_wakeup_fd(-1)

    def _run(self) -> None:
        while True:
            state = torch.tensor([self._stop.is_set(), not self._leaving.is_set()]).int()
            try:
                dist.all_reduce(state, dist.ReduceOp.MAX, group=self._group)
            except RuntimeError as error:
                if not self._leaving.wait(GRACE_SECONDS):
                    log.error("a rank of the job is gone: this one ends too", reason=str(error))
                    os._exit(EXIT_CRASH)
                return
            is_stopping, is_watching = state.tolist()
            if not is_watching:
                return
            if is_stopping and not self._stop.is_set():
                log.info("another rank of the job was asked to end: all end")
                self._stop.set()
            if self._alive_file is not None:
                self._alive_file.touch()
            self._wait()

    def _wait(self) -> None:
        """Wait until a signal asks this rank to end, for EVERY_SECONDS at most."""
        woken, _, _ = select.select([self._woken], [], [], EVERY_SECONDS)
        if woken and {signal.SIGTERM, signal.SIGINT} & set(self._woken.recv(64)):
            self._stop.set()
