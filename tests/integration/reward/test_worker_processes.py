"""What `reward.workers.processes` reports of workers that die. Real fork server, real workers."""

import asyncio
import os
import signal

from reward.sandbox.host import SandboxOptions
from reward.verifiers.base import Item, Step
from reward.workers.processes import Children
from reward.workers.protocol import Answer, Job, pack_item
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


async def test_jobs_sent_to_a_worker_whose_end_is_not_yet_reported_are_unread() -> None:
    events = Events()
    children = Children(events, 1 << 30, [], SandboxOptions())
    children.start_fork_server()
    try:
        children.fork(0)
        # The worker says that it is ready, and its parent who it is: in either order.
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
        children.send(0, [Job(0, Step.SCORE, pack_item(Item("math", "", "", "", {}, {})))])

        await until(lambda: events.lost, "the worker's end is reported")
        assert events.lost == [(0, True)]
    finally:
        await children.close()
