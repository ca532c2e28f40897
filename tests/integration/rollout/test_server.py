"""Starting, watching and calling a server process, with the scripted stand-in."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rollout.vllm.client.connection import VLLMUnavailable
from rollout.vllm.client.policy_client import PolicyClient, RequestRefused
from rollout.vllm.client.response import sampling_params
from rollout.vllm.client.weight_loader import LoadRefused, WeightUpdate
from rollout.vllm.process.options import ServerConfig
from rollout.vllm.process.server import VLLMFailed, VLLMServer
from services.contracts.config.rollout import Sampling
from services.contracts.config.vllm import VLLM
from services.runtime.process import started_at
from tests.served import is_paused, live_version

COMMAND = f"{sys.executable} -m tests.scripted_vllm"


def make_server(folder: Path, monkeypatch: pytest.MonkeyPatch, **script: object) -> VLLMServer:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"max_position_embeddings": 128}')
    monkeypatch.setenv("HEADRACE_SCRIPTED_VLLM", json.dumps(script))
    return VLLMServer(
        ServerConfig(
            folder / "model", VLLM(startup_seconds=100), "float32", "cpu", command=COMMAND
        ),
        folder / "vllm.log",
    )


def snapshot(folder: Path, version: int, width: int = 4) -> WeightUpdate:
    path = folder / f"v{version}-{width}.safetensors"
    save_file({"weight": np.full((2, width), version, np.float32)}, path)
    return WeightUpdate(str(path), f"aaaaaa:{version}", tensors=1)


@pytest.fixture
def go_on(tmp_path: Path) -> Path:
    """The server samples 20 tokens, and stops until this file exists."""
    return tmp_path / "go-on"


@pytest.fixture
async def server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go_on: Path
) -> AsyncIterator[VLLMServer]:
    held = {"tokens_per_second": 400, "hang_after": 20, "hang_until": str(go_on)}
    server = make_server(tmp_path, monkeypatch, **held)
    await (await server.start()).close()
    yield server
    await server.stop()


@pytest.fixture
async def policy(server: VLLMServer) -> AsyncIterator[PolicyClient]:
    client = PolicyClient(server.socket)
    yield client
    await client.close()


async def test_a_request_in_flight_over_an_update_shows_both_versions(
    policy: PolicyClient, tmp_path: Path, go_on: Path
) -> None:
    await policy.weights.load(snapshot(tmp_path, 1))
    params = sampling_params(Sampling(max_tokens=100, ignore_eos=True), [], 128)
    request = asyncio.create_task(policy.generate([1, 2], 2, params))
    while (await policy.counters()).tokens < 20:
        assert not request.done()

    await policy.weights.load(snapshot(tmp_path, 2))
    go_on.touch()

    for sample in await request:
        assert [span.version for span in sample.spans] == ["aaaaaa:1", "aaaaaa:2"]
        assert len(sample.token_ids) == 100


async def test_a_refused_version_leaves_the_server_on_the_old_weights(
    policy: PolicyClient, tmp_path: Path
) -> None:
    await policy.weights.load(snapshot(tmp_path, 1))

    with pytest.raises(LoadRefused, match=r"weight is F32 \[2, 5\], the model's was F32 \[2, 4\]"):
        await policy.weights.load(snapshot(tmp_path, 2, width=5))

    assert await live_version(policy.socket) == "aaaaaa:1"
    assert not await is_paused(policy.socket)


async def test_an_unfinished_update_does_not_block_the_next_one(
    policy: PolicyClient, tmp_path: Path
) -> None:
    """A worker died between start and finish, and was replaced."""
    await policy.weights._control("/pause?mode=keep&clear_cache=false")
    await policy.weights._control("/start_weight_update")

    await policy.weights.load(snapshot(tmp_path, 3))

    assert await live_version(policy.socket) == "aaaaaa:3"
    assert not await is_paused(policy.socket)


async def test_the_context_limit_comes_from_the_server(policy: PolicyClient) -> None:
    assert await policy.context_length() == 128
    params = sampling_params(Sampling(max_tokens=4), [], 128)
    with pytest.raises(RequestRefused, match="400 the prompt exceeds the context"):
        await policy.generate([1] * 200, 1, params)


async def test_a_server_that_dies_is_noticed_with_its_signal(
    server: VLLMServer, policy: PolicyClient
) -> None:
    assert server.alive
    params = sampling_params(Sampling(max_tokens=100, ignore_eos=True), [], 128)
    request = asyncio.create_task(policy.generate([1, 2], 1, params))
    while (await policy.counters()).tokens == 0:
        assert not request.done()

    os.kill(server.pid, signal.SIGKILL)

    with pytest.raises(VLLMUnavailable):
        await request
    # Its sockets close a moment before it can be reaped.
    while server.alive:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(VLLMFailed, match="vLLM ended with signal SIGKILL"):
        server.check()


async def test_a_server_listens_on_no_port_that_another_process_could_take(
    server: VLLMServer,
) -> None:
    sockets = {os.readlink(fd) for fd in Path(f"/proc/{server.pid}/fd").iterdir()}
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    assert not [line for line in listening if f"socket:[{line[9]}]" in sockets]
    assert server.socket.parent.stat().st_mode & 0o077 == 0


async def test_stop_leaves_nothing_of_a_server_that_was_killed(
    server: VLLMServer,
) -> None:
    pid, folder = server.pid, server.socket.parent
    assert list(folder.glob("vllm_dist_*"))
    os.kill(pid, signal.SIGKILL)
    await server.stop()
    await server.stop()
    assert started_at(pid) is None
    assert not folder.exists()


async def test_a_start_that_fails_carries_the_reason_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(tmp_path, monkeypatch, fail_start="max_model_len (4096) is too large")
    with pytest.raises(VLLMFailed, match=r"exit code 1(.|\n)*max_model_len \(4096\) is too large"):
        await server.start()


async def test_a_start_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(tmp_path, monkeypatch)
    server.config = replace(server.config, options=VLLM(startup_seconds=0.2))
    with pytest.raises(VLLMFailed, match=r"did not start within .*startup_seconds = 0\.2"):
        await server.start()
    assert not server.alive
