"""Events of `reward.workers.worker_processes` for dying workers. Real fork server, real workers."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from reward.metrics import Metrics
from reward.verifiers.base import Item, ItemWork, Verifier
from reward.verifiers.registry import build_registry, usable
from reward.workers.pool import Pool
from reward.workers.protocol import Answer, Request, WorkerJob, pack_item, request_for
from reward.workers.worker_processes import Children, WorkerOptions
from tests.integration.reward.conftest import alive, until


class Events:
    """An owner that only remembers."""

    def __init__(self) -> None:
        self.ready: list[int] = []
        self.lost: list[tuple[int, bool]] = []

    def on_warm(self, failed: dict[str, str]) -> None: ...

    def on_fork_server_end(self, exit_code: int, workers: list[int]) -> None: ...

    def on_ready(self, worker: int) -> None:
        self.ready.append(worker)

    def on_not_forked(self, worker: int, problem: str) -> None: ...

    def on_answer(self, worker: int, answer: Answer) -> None: ...

    def on_lost(self, worker: int, unread: bool) -> None:
        self.lost.append((worker, unread))

    def on_ending(self, worker: int, cause: str) -> None: ...


@asynccontextmanager
async def started_children() -> AsyncIterator[tuple[Events, Children]]:
    events = Events()
    children = Children(events, WorkerOptions(1 << 30))
    children.start_fork_server()
    try:
        yield events, children
    finally:
        await children.close()


async def test_a_job_sent_to_a_worker_whose_end_is_not_yet_reported_is_unread() -> None:
    async with started_children() as (events, children):
        children.fork(0)
        # The worker reports that it is ready, and its parent reports its id, in either order.
        await until(lambda: events.ready and children.pids, "the worker is ready")
        (pid,) = children.pids
        transport = children._links[0].transport
        assert transport is not None
        os.kill(pid, signal.SIGKILL)
        while alive(pid):
            pass  # The loop must not see the closed socket yet.

        # The loop reads the end of the stream in one round, and reports it in the next.
        while not transport.is_closing():
            assert not events.lost
            await asyncio.sleep(0)
        item = pack_item(Item("math", "", "", "", {}, {}))
        children.send(0, WorkerJob(0, ItemWork.SCORE, item))

        await until(lambda: events.lost, "the worker's end is reported")
        assert events.lost == [(0, True)]


@asynccontextmanager
async def small_pool() -> AsyncIterator[Pool]:
    pool = Pool(
        workers=1,
        spare=1,
        capacity=8,
        options=WorkerOptions(1 << 30),
        metrics=Metrics(),
    )
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()


def right_answer() -> Request:
    registry = build_registry([])
    verifier, params = usable(registry, "exact", {})
    assert isinstance(verifier, Verifier)
    return request_for(Item("exact", "", "5", "5", {}, {}), params, verifier)


def once(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `call` so that it fails the first time, as on a system without resources."""
    failed = False

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal failed
        if not failed:
            failed = True
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return call(*arguments, **named)

    return wrapped


async def test_a_parent_of_the_workers_that_cannot_be_started_is_started_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with small_pool() as pool:
        parent = pool._children._fork_server
        assert parent is not None
        monkeypatch.setattr(subprocess, "Popen", once(subprocess.Popen))
        parent.kill()
        await until(lambda: not pool.ready, "the workers are gone")
        async with asyncio.timeout(60):
            (verdict,) = await pool.score([right_answer()])
        assert verdict.reward == 1


async def test_a_worker_without_a_socket_is_started_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with small_pool() as pool:
        await until(lambda: pool.ready, "a worker is up")
        (pid,) = pool.worker_pids
        monkeypatch.setattr(socket, "socketpair", once(socket.socketpair))
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not pool.worker_pids, "the worker is gone")
        async with asyncio.timeout(60):
            (verdict,) = await pool.score([right_answer()])
        assert verdict.reward == 1


async def test_a_dead_worker_is_collected_though_its_parent_takes_no_more_orders_for_now() -> None:
    async with started_children() as (events, children):
        children.fork(0)
        await until(lambda: events.ready and children.pids, "the worker is ready")
        (pid,) = children.pids
        parent, control = children._fork_server, children._control
        assert parent is not None
        assert control is not None
        control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        parent.send_signal(signal.SIGSTOP)
        for more in range(1, 100):
            try:
                children.fork(more)
            except BlockingIOError:
                break
        else:
            pytest.fail("the control socket takes any number of orders")
        children.kill(0)
        parent.send_signal(signal.SIGCONT)
        await until(lambda: not Path(f"/proc/{pid}").exists(), "the worker is collected")
