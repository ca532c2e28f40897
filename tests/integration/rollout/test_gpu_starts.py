"""Workers that share a GPU start their vLLMs one after another, because vLLM then measures free
memory."""

import asyncio
import json
import select
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

import pytest

from rollout.run_events import RunEvents
from rollout.settings import RolloutSettings
from rollout.vllm.process import serving
from rollout.vllm.process.gpu_lock import start_lock
from services.contracts.config import RLConfig, parse_config
from services.contracts.devices import GPUDevice
from services.contracts.records import WorkerRecord
from services.launch import Stack, UpOptions
from services.runtime.gpu_handover import Handover
from services.store import Store
from tests.integration.rollout.test_server import COMMAND
from tests.integration.store.scene import RUN, record

RAW = {"model": {"path": "m"}, "data": {"dataset": "d"}, "rewards": [{"verifier": "exact"}]}


@pytest.fixture(autouse=True)
def one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose driver knows one GPU."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho '0, GPU-0'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A store in which RUN is the pool's active run."""
    with Stack(UpOptions(data=tmp_path, parts=frozenset({"redis"}))) as stack:
        made = Store.from_url(stack.redis_url)
        await made.runs.submit(record(RUN))
        await made.runs.take("default")
        yield made
        await made.close()


class Starting:
    """A worker's vLLM on GPU-0, before its start."""

    def __init__(self, folder: Path, store: Store, **vllm: Any) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(
            json.dumps({"max_position_embeddings": 64, "dtype": "float32"})
        )
        config = parse_config(RAW | {"rollout": {"vllm": vllm}})
        assert isinstance(config, RLConfig)
        self.settings = RolloutSettings.model_validate({"data": folder, "vllm_command": COMMAND})
        worker = WorkerRecord(
            id="w",
            pool="default",
            host="h",
            pid=1,
            state="idle",
            devices=[GPUDevice(uuid="GPU-0", name="A40", memory=1)],
        )
        self.serving = serving.Serving(self.settings, worker, store)
        self.log = folder / "logs" / "vllm-w.log"
        events = RunEvents(RUN, "w", store)
        self._store, self._start = store, self.serving.serve(config, folder / "model", events, 7)

    async def waiting(self, why: str) -> "asyncio.Task[Any]":
        """Return the start once it waits for the lock."""
        start = asyncio.create_task(self._start)
        while not (found := await self._store.events.read(RUN, "0", wait=1)):
            assert not start.done()
        assert f"vLLM starts once {why}" in str(found)
        assert not self.log.exists()
        return start


async def test_a_vllm_starts_when_the_other_start_on_its_gpu_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(serving, "installed_device", lambda: "cuda")
    one = Starting(tmp_path, store)
    async with start_lock(one.settings):
        start = await one.waiting("no other starts on its GPU")
    served = await start
    assert served is not None
    assert served[0].weights.bytes == 7
    assert one.log.exists()
    await one.serving.stop()


async def test_vllm_is_not_started_for_a_run_that_ended_during_the_wait_for_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(serving, "installed_device", lambda: "cuda")
    one, learner = Starting(tmp_path, store, sleeps=True), Handover(tmp_path / "gpu-locks", "GPU-0")
    assert learner.begin_to_train(lambda: True)
    start = await one.waiting("the learner has left their GPU")
    await store.runs.finish(RUN, "default", "cancelled", "on request")
    learner.leave()
    assert await start is None
    assert not one.log.exists()
    # The GPU is free again.
    assert learner.begin_to_train(lambda: True)
    learner.close()


STARTING = """
import asyncio, os, sys
from rollout.settings import RolloutSettings
from rollout.vllm.process.gpu_lock import start_lock

async def start():
    settings = RolloutSettings.model_validate({"data": sys.argv[1]})
    async with start_lock(settings):
        print("starts", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    print("serves", flush=True)

asyncio.run(start())
"""


def answers(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def test_starts_of_other_processes_wait_and_a_killed_process_releases_its_lock(
    tmp_path: Path,
) -> None:
    processes: list[subprocess.Popen[str]] = []
    try:
        for _ in range(3):
            processes.append(  # noqa: PERF401
                subprocess.Popen(
                    [sys.executable, "-c", STARTING, str(tmp_path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        started: list[subprocess.Popen[str]] = []
        while waiting := [one for one in processes if one not in started]:
            said, _, _ = select.select([answers(one) for one in waiting], [], [], 60)
            (first,) = [one for one in waiting if answers(one) in said]
            assert answers(first).readline() == "starts\n"
            others = [answers(one) for one in waiting if one is not first]
            assert select.select(others, [], [], 0.3)[0] == [], "two start at once"
            if started:
                assert first.communicate()[0] == "serves\n"
            else:
                first.kill()
            started.append(first)
    finally:
        for one in processes:
            one.kill()
            one.communicate()


async def test_a_model_whose_config_names_no_dtype_is_refused_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    settings = RolloutSettings.model_validate({"data": tmp_path})
    record = WorkerRecord(id="w", pool="default", host="h", pid=1, state="idle")
    store = Store.from_url("redis://127.0.0.1:1/0")
    server = serving.Serving(settings, record, store)
    config = parse_config(RAW)
    assert isinstance(config, RLConfig)

    with pytest.raises(ValueError, match=r"config\.json names no dtype"):
        await server.serve(config, tmp_path, RunEvents(RUN, "w", store))
    await store.close()
