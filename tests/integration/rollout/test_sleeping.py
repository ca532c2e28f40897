"""A server that sleeps while the learner wants its GPU: with the scripted stand-in."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout.vllm.client.canary_request import Unscored
from rollout.vllm.client.policy_client import PolicyClient
from rollout.vllm.client.response import sampling_params
from rollout.vllm.process import server as servers
from rollout.vllm.process.server import VLLMFailed, VLLMServer
from rollout.vllm.process.serving import Serving
from rollout.vllm.process.sleeping import Sleeper
from rollout.work.group import deadline_of
from services.contracts.config.rollout import Sampling
from services.contracts.config.vllm import VLLM
from services.runtime.gpu_handover import Handover
from services.runtime.process import started_at
from tests.integration.rollout.test_server import make_server, snapshot
from tests.served import is_sleeping, live_version

PARAMS = sampling_params(Sampling(max_tokens=100, ignore_eos=True), [], 128)


def never() -> bool:
    return False


@asynccontextmanager
async def sharing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sleeps: bool
) -> AsyncIterator[tuple[VLLMServer, PolicyClient, Sleeper, Handover]]:
    """A server, and the learner's side of its GPU. `sleeps`: whether it was started with sleep
    mode. The server samples 20 tokens, and stops until the file `go-on` exists."""
    held = {"tokens_per_second": 400, "hang_after": 20, "hang_until": str(folder / "go-on")}
    server = make_server(folder, monkeypatch, **held)
    server.config = replace(server.config, options=VLLM(startup_seconds=100, sleeps=sleeps))
    # Frozen weights, as below an adapter: half a second at 50 MB a second.
    with (server.config.model / "model.safetensors").open("w") as base:
        base.truncate(25_000_000)
    policy = await server.start()
    handover, learner = Handover(folder, "gpu"), Handover(folder, "gpu")
    await handover.begin_to_sample()
    sleeper = Sleeper(policy, server, handover)
    try:
        yield server, policy, sleeper, learner
    finally:
        await serving(server, policy, sleeper).stop()
        learner.close()


def serving(server: VLLMServer, policy: PolicyClient, sleeper: Sleeper) -> Serving:
    """A worker's serving state after this server has started."""
    nothing: Any = None
    made = Serving(nothing, nothing, nothing)
    made._running, made._sleeper = (policy, server), sleeper
    return made


async def until_ended(sleeper: Sleeper) -> None:
    """Wait until the server is being stopped."""
    async with asyncio.timeout(60):
        while not sleeper.problem:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_requests_that_a_sleep_aborts_resume_under_the_newest_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sharing(tmp_path, monkeypatch, sleeps=True) as (server, policy, _, learner):
        await policy.weights.load(snapshot(tmp_path, 1))
        request = asyncio.create_task(policy.generate([1, 2], 2, PARAMS))
        while (await policy.counters()).tokens < 20:
            assert not request.done()

        assert await asyncio.to_thread(learner.begin_to_train, never)

        assert await is_sleeping(server.socket)
        assert policy.weights.updating
        opened: list[str] = []
        reopen = policy.weights.open.set

        def open_() -> None:
            opened.append(policy.weights.live)
            reopen()

        monkeypatch.setattr(policy.weights.open, "set", open_)
        load = asyncio.create_task(policy.weights.load(snapshot(tmp_path, 2)))
        scores = asyncio.create_task(policy.score([1, 2, 3], False))
        tokens = (await policy.counters()).tokens
        async with deadline_of("complete", 0.1, policy.weights) as expired:
            await asyncio.wait({load, scores, request}, timeout=0.3)
            assert not any(task.done() for task in (load, scores, request))
            # The update would have ended a server that has no weights in its memory.
            assert await live_version(server.socket) == "aaaaaa:1"
            assert (await policy.counters()).tokens == tokens
            assert expired is not None
            assert not expired.is_set()

            (tmp_path / "go-on").touch()
            learner.leave()
            await expired.wait()
        await load
        # It is answered, though these weights have no canary.
        with pytest.raises(Unscored):
            await scores
        for sample in await request:
            assert len(sample.token_ids) == 100
            assert [span.version for span in sample.spans] == ["aaaaaa:1", "aaaaaa:2"]
        # Between waking and the load nothing may be sampled: it would never be judged.
        assert opened == ["aaaaaa:2"]
        assert not policy.weights.updating


async def test_a_server_that_cannot_sleep_is_ended_and_the_learner_gets_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sharing(tmp_path, monkeypatch, sleeps=False) as (server, _, sleeper, learner):
        assert await asyncio.to_thread(learner.begin_to_train, never)
        assert not server.alive
        assert "cannot take turns with the learner on its GPU: /sleep: 500" in sleeper.problem


async def test_a_hanging_server_keeps_the_gpu_until_it_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "TERM_SECONDS", 0.5)
    async with sharing(tmp_path, monkeypatch, sleeps=True) as (server, policy, sleeper, learner):
        policy.weights.control_seconds, pid = 0.2, server.pid
        # It answers nothing, and ignores SIGTERM.
        os.kill(pid, signal.SIGSTOP)

        def train() -> int | None:
            assert learner.begin_to_train(never)
            return started_at(pid)

        training = asyncio.create_task(asyncio.to_thread(train))
        await until_ended(sleeper)
        worker = serving(server, policy, sleeper)
        with pytest.raises(VLLMFailed, match=r"vLLM has not answered /sleep for 0\.7 s"):
            worker.check()
        # The worker stops it as soon as it notices.
        await worker.stop()
        assert await training is None


async def test_a_server_has_time_to_fall_asleep_before_its_first_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sharing(tmp_path, monkeypatch, sleeps=True) as (server, policy, sleeper, learner):
        policy.weights.control_seconds = 0.2
        policy.weights.bytes += 25_000_000
        os.kill(server.pid, signal.SIGSTOP)
        training = asyncio.create_task(asyncio.to_thread(learner.begin_to_train, never))
        await until_ended(sleeper)
        # Half a second for the weights at its start, and as much for the base.
        assert "vLLM has not answered /sleep for 1.2 s" in sleeper.problem
        os.kill(server.pid, signal.SIGCONT)
        assert await training


async def test_a_server_that_does_not_wake_is_ended_and_the_learner_gets_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sharing(tmp_path, monkeypatch, sleeps=True) as (server, _, sleeper, learner):
        assert await asyncio.to_thread(learner.begin_to_train, never)
        os.kill(server.pid, signal.SIGKILL)
        learner.leave()
        await until_ended(sleeper)
        assert "vLLM does not answer /wake_up" in sleeper.problem
        assert await asyncio.to_thread(learner.begin_to_train, never)


async def test_a_stopped_worker_ends_its_sleeping_server_and_the_next_worker_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sharing(tmp_path, monkeypatch, sleeps=True) as (server, policy, sleeper, learner):
        assert await asyncio.to_thread(learner.begin_to_train, never)
        pid, later = server.pid, Handover(tmp_path, "gpu")
        waiting = asyncio.create_task(later.begin_to_sample())
        await serving(server, policy, sleeper).stop()
        assert started_at(pid) is None
        assert later.wanted
        assert not waiting.done()
        learner.leave()
        await waiting
        later.close()
