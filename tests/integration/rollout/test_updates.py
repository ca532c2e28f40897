"""Weight updates during requests, and aborted requests, with the scripted server. It samples HELD
tokens and stops until the test lets it continue, so that requests in flight do not end before the
update, however slow this machine is."""

import asyncio
import gc
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rollout.vllm.client.policy_client import PastDeadline, PolicyClient
from rollout.vllm.client.response import Sample, check_spans, sampling_params
from rollout.vllm.client.weight_loader import MustRestart
from rollout.vllm.process.server import VLLMServer
from services.contracts.config.rollout import Sampling
from services.runtime.tasks import end
from tests.integration.rollout.test_server import make_server, snapshot
from tests.served import is_paused

LENGTH, HELD = 100, 20
WHOLE = sampling_params(Sampling(max_tokens=LENGTH, ignore_eos=True), [], 128)


@pytest.fixture
def go_on(tmp_path: Path) -> Path:
    """Once this file exists, the server samples to the end."""
    return tmp_path / "go-on"


@pytest.fixture
async def server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go_on: Path
) -> AsyncIterator[VLLMServer]:
    held = {"tokens_per_second": 400, "hang_after": HELD, "hang_until": str(go_on)}
    server = make_server(tmp_path, monkeypatch, **held)
    await (await server.start()).close()
    yield server
    await server.stop()


@pytest.fixture
async def policy(server: VLLMServer, tmp_path: Path) -> AsyncIterator[PolicyClient]:
    client = PolicyClient(server.socket)
    await client.weights.load(snapshot(tmp_path, 1))
    yield client
    await client.close()


async def in_flight(
    policy: PolicyClient, n: int = 2, cut: asyncio.Event | None = None, **more: Any
) -> asyncio.Task[list[Sample]]:
    """Start a request for `n` samples that has sampled HELD tokens."""
    request = asyncio.create_task(policy.generate([1, 2], n, WHOLE | more, cut))
    while (await policy.counters()).tokens < HELD:
        assert not request.done()
    return request


def versions(samples: list[Sample]) -> list[list[str]]:
    for sample in samples:
        assert len(sample.token_ids) == len(sample.logprobs) == LENGTH
        assert sample.finish_reason == "length"
        check_spans(sample.spans, LENGTH)
    return [[span.version for span in sample.spans] for sample in samples]


async def test_mode_abort_resumes_every_sample_under_the_new_version(
    policy: PolicyClient, tmp_path: Path, go_on: Path
) -> None:
    request = await in_flight(policy)

    await policy.weights.load(snapshot(tmp_path, 2), "abort")
    await policy.weights.load(snapshot(tmp_path, 3), "abort")
    go_on.touch()

    assert versions(await request) == [["aaaaaa:1", "aaaaaa:3"]] * 2
    # The tokens from before were not sampled again.
    assert (await policy.counters()).tokens == 2 * LENGTH


async def test_an_aborted_answer_to_a_schema_is_sampled_again_from_its_beginning(
    policy: PolicyClient, tmp_path: Path, go_on: Path
) -> None:
    request = await in_flight(policy, 1, structured_outputs={"json_object": True})
    await policy.weights.load(snapshot(tmp_path, 2), "abort")
    go_on.touch()
    assert versions(await request) == [["aaaaaa:2"]]
    assert (await policy.counters()).tokens == HELD + LENGTH


async def test_mode_wait_lets_requests_in_flight_end_first(
    policy: PolicyClient, tmp_path: Path, go_on: Path
) -> None:
    request = await in_flight(policy)

    loading = asyncio.create_task(policy.weights.load(snapshot(tmp_path, 2), "wait"))
    await asyncio.sleep(0)
    later = asyncio.create_task(policy.generate([1, 2], 1, WHOLE))
    go_on.touch()

    assert versions(await request) == [["aaaaaa:1"]] * 2
    assert versions(await later) == [["aaaaaa:2"]]
    assert loading.done()


async def test_mode_keep_goes_on_under_the_new_version(
    policy: PolicyClient, tmp_path: Path, go_on: Path
) -> None:
    request = await in_flight(policy)
    await policy.weights.load(snapshot(tmp_path, 2), "keep")
    go_on.touch()
    assert versions(await request) == [["aaaaaa:1", "aaaaaa:2"]] * 2


@pytest.mark.parametrize("mode", ["keep", "abort", "wait"])
async def test_requests_during_and_after_an_update_have_the_new_salt(
    policy: PolicyClient, tmp_path: Path, go_on: Path, mode: str
) -> None:
    request = await in_flight(policy, n=1)

    loading = asyncio.create_task(policy.weights.load(snapshot(tmp_path, 2), mode))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    during = asyncio.create_task(policy.generate([1, 2], 1, WHOLE))
    go_on.touch()
    await loading
    after = asyncio.create_task(policy.generate([1, 2], 1, WHOLE))
    await asyncio.gather(request, during, after)

    reply = await policy._connection.send("GET", "/salts")
    salts = json.loads(reply.content)
    continued = 1 if mode == "abort" else 0
    assert salts == [["aaaaaa:1", "aaaaaa:1"], *[["aaaaaa:2", "aaaaaa:2"]] * (2 + continued)]


async def test_a_request_at_its_deadline_returns_its_tokens(
    policy: PolicyClient, go_on: Path
) -> None:
    cut = asyncio.Event()
    request = await in_flight(policy, 3, cut)
    other = asyncio.create_task(policy.generate([1, 2], 1, WHOLE))
    while (await policy.counters()).unfinished < 4:
        assert not other.done()

    cut.set()

    for sample in await request:
        assert sample.finish_reason == "deadline"
        assert 0 < len(sample.token_ids) == len(sample.logprobs) < LENGTH
        check_spans(sample.spans, len(sample.token_ids))
    go_on.touch()
    # Other requests were not aborted.
    assert versions(await other) == [["aaaaaa:1"]]


async def test_a_request_without_a_token_at_its_deadline_fails(policy: PolicyClient) -> None:
    before, cut = await in_flight(policy), asyncio.Event()
    request = asyncio.create_task(policy.generate([1, 2], 1, WHOLE, cut))
    while (await policy.counters()).unfinished < 3:
        assert not before.done()

    cut.set()

    with pytest.raises(PastDeadline):
        await request
    await end([before])


async def test_a_deadline_during_an_update_of_mode_abort_is_kept(
    policy: PolicyClient, tmp_path: Path
) -> None:
    cut = asyncio.Event()
    request = await in_flight(policy, 2, cut)
    cut.set()
    await policy.weights.load(snapshot(tmp_path, 2), "abort")
    assert {sample.finish_reason for sample in await request} == {"deadline"}


async def test_a_server_that_hangs_in_an_update_gets_no_more_requests(
    policy: PolicyClient,
    server: VLLMServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    go_on: Path,
) -> None:
    go_on.touch()
    monkeypatch.setattr(policy.weights, "control_seconds", 0.5)
    os.kill(server.pid, signal.SIGSTOP)

    with pytest.raises(MustRestart, match=r"vLLM has not answered /start_weight_update for 0\.5 s"):
        await policy.weights.load(snapshot(tmp_path, 2))

    os.kill(server.pid, signal.SIGCONT)
    monkeypatch.undo()
    request = asyncio.create_task(policy.generate([1, 2], 1, WHOLE))
    # Its weights are unknown: it has to be stopped, or loaded again.
    async with asyncio.timeout(100):
        while (await policy.counters()).unfinished:
            assert not request.done()
    assert (await policy.counters()).tokens == 0
    await policy.weights.load(snapshot(tmp_path, 2))
    assert versions(await request) == [["aaaaaa:2"]]


async def test_a_server_of_several_processes_stays_paused_after_a_failed_update(
    server: VLLMServer, tmp_path: Path
) -> None:
    policy = PolicyClient(server.socket, several=True)
    try:
        await policy.weights.load(snapshot(tmp_path, 1))
        # One process reports that it has kept its weights. The others are unknown.
        with pytest.raises(MustRestart, match=r"(?s)weights kept.*may have different weights"):
            await policy.weights.load(snapshot(tmp_path, 2, width=5))
        assert await is_paused(server.socket)
        assert not policy.weights.open.is_set()
    finally:
        await policy.close()


async def test_a_client_that_is_closed_during_an_update_leaves_no_error_behind(
    server: VLLMServer, tmp_path: Path
) -> None:
    """A worker that stops does not wait for a load that has begun."""
    unheard: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
    assert server.pid is not None
    client = PolicyClient(server.socket)
    load = asyncio.create_task(client.weights.load(snapshot(tmp_path, 2)))
    os.kill(server.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(0.1)
        load.cancel()
        await asyncio.wait([load])
        await client.close()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    await asyncio.sleep(0.1)
    gc.collect()
    assert unheard == []
