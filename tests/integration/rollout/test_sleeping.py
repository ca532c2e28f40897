"""A server that sleeps while the learner wants its GPU: with the scripted stand-in."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollout.vllm.client import PolicyClient
from rollout.vllm.response import sampling_params
from rollout.vllm.server import VLLMServer
from rollout.vllm.sleeping import Sleeper
from services.contracts.config.rollout import Sampling
from services.contracts.config.vllm import VLLM
from services.runtime.gpu_handover import Handover
from tests.integration.rollout.test_server import make_server, snapshot
from tests.served import is_sleeping, live_version

PARAMS = sampling_params(Sampling(max_tokens=100, ignore_eos=True), [], 128)


def never() -> bool:
    return False


@asynccontextmanager
async def sharing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sleeps: bool
) -> AsyncIterator[tuple[VLLMServer, PolicyClient, Sleeper, Handover]]:
    """A server, and the learner's side of its GPU; `sleeps`: whether it was started so."""
    server = make_server(folder, monkeypatch, tokens_per_second=400)
    server.options = VLLM(startup_seconds=30, sleeps=sleeps)
    policy = await server.start()
    handover, learner = Handover(folder, "gpu"), Handover(folder, "gpu")
    await handover.begin_to_sample()
    sleeper = Sleeper(policy, server, handover)
    yield server, policy, sleeper, learner
    await sleeper.stop()
    await policy.close()
    await server.stop()
    sleeper.close()
    learner.close()


async def test_what_a_sleep_cuts_off_goes_on_after_it_under_the_version_that_came_meanwhile(
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
        load = asyncio.create_task(policy.weights.load(snapshot(tmp_path, 2)))
        scores = asyncio.create_task(policy.score([1, 2, 3], False, through_cache=False))
        tokens = (await policy.counters()).tokens
        await asyncio.wait({load, scores, request}, timeout=0.3)
        assert not any(task.done() for task in (load, scores, request))
        # The update would have ended a server that has no weights in its memory.
        assert await live_version(server.socket) == "aaaaaa:1"
        assert (await policy.counters()).tokens == tokens

        learner.leave()
        await load
        await asyncio.wait({scores})
        for sample in await request:
            assert len(sample.token_ids) == 100
            assert [span.version for span in sample.spans] == ["aaaaaa:1", "aaaaaa:2"]
        assert not policy.weights.updating


async def test_a_server_that_cannot_sleep_is_ended_and_the_learner_gets_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sharing(tmp_path, monkeypatch, sleeps=False) as (server, _, sleeper, learner):
        assert await asyncio.to_thread(learner.begin_to_train, never)
        assert not server.alive
        assert "cannot take turns with the learner on its GPU: /sleep: 500" in sleeper.problem
