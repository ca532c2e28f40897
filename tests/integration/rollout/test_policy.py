"""A worker answers calls of the policy while it trains, and stops calls whose client has gone."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from learner.model.loading.scratch import make_model
from services.contracts.policy_calls import Piece, PolicyCall
from services.contracts.records import WorkerRecord
from services.contracts.sessions import Call
from services.store.agents.policy_calls import KEEP_SECONDS
from tests.integration.rollout.working import MODEL, Work, Working
from tests.integration.store.scene import RUN


async def ask(one: Working, worker: str, id: str) -> None:
    call = Call(kind="completions", prompt="1+1=", max_tokens=100)
    asked = PolicyCall(call=call, version=0, max_tokens=100)
    await one.store.policy_calls.ask(RUN, worker, id, asked)


@contextlib.asynccontextmanager
async def waiting(one: Working, id: str) -> AsyncIterator[None]:
    """Keep a client waiting for the call, like the gateway, however slow this machine is."""

    async def keep() -> None:
        while True:
            await one.store.policy_calls.keep(RUN, id)
            await asyncio.sleep(KEEP_SECONDS)

    keeping = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeping.cancel()


async def worker_that(one: Working, is_so: Callable[[WorkerRecord], bool]) -> WorkerRecord:
    """Return the worker, once its heartbeat says so."""
    while True:
        for worker in await one.store.workers.list("default"):
            if is_so(worker):
                return worker
        await asyncio.sleep(0.05)


async def until_text(one: Working, id: str) -> list[Piece]:
    """Return the pieces up to the first text or the end."""
    found: list[Piece] = []
    after = "0"
    while not any(piece.visible for piece in found):
        after, more = await one.store.policy_calls.pieces(RUN, id, after, 1.0)
        found += more
    return found


async def test_a_call_whose_client_has_gone_is_stopped(working: Work, tmp_path: Path) -> None:
    # No answer ends by itself: 100 tokens take 50 s.
    digit = make_model(MODEL, 0).tokenizer.get_vocab()["5"]
    slow = {"tokens_per_second": 2.0, "replies": [[digit] * 200]}
    async with working(tmp_path, ["1+1="], slow, sampling={"max_tokens": 4}) as one:
        worker = await worker_that(one, lambda worker: worker.version is not None)
        await ask(one, worker.id, "one")
        pieces = await until_text(one, "one")
        assert pieces[0].version == 0
        assert "".join(piece.text for piece in pieces)
        await one.store.policy_calls.forget(RUN, "one")
        await ask(one, worker.id, "two")
        async with waiting(one, "two"):
            await until_text(one, "two")
            await worker_that(one, lambda worker: worker.policy_calls == 1)
            # Training continued meanwhile.
            await one.group(1)

            os.kill(worker.pid, signal.SIGTERM)
            after, last = "0", Piece()
            while not last.last:
                after, more = await one.store.policy_calls.pieces(RUN, "two", after, 1.0)
                last = more[-1] if more else last
        assert last.failure is not None
        assert last.failure.status == 503
        assert "another one answers" in last.failure.message
