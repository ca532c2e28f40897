"""Workers that share a GPU start their vLLMs one after another: vLLM measures free memory then."""

import asyncio
import json
import select
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from rollout.run_events import RunEvents
from rollout.settings import RolloutSettings
from rollout.vllm import serving
from rollout.vllm.gpu_lock import start_lock
from services.contracts.config import RLConfig, parse_config
from services.contracts.records import WorkerRecord
from services.launch import Stack, UpOptions
from services.store import Store
from tests.integration.rollout.test_server import COMMAND
from tests.integration.store.scene import RUN

RAW = {"model": {"path": "m"}, "data": {"dataset": "d"}, "rewards": [{"verifier": "exact"}]}


@pytest.fixture(autouse=True)
def one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's driver knows one GPU."""
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho '0, GPU-0'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


async def test_a_vllm_starts_when_the_other_start_on_its_gpu_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "installed_device", lambda: "cuda")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(
        json.dumps({"max_position_embeddings": 64, "dtype": "float32"})
    )
    settings = RolloutSettings.model_validate({"data": tmp_path, "vllm_command": COMMAND})
    record = WorkerRecord(id="w", pool="default", host="h", pid=1, state="idle")
    config = parse_config(RAW)
    assert isinstance(config, RLConfig)

    with Stack(UpOptions(data=tmp_path, parts=frozenset({"redis"}))) as stack:
        store = Store.from_url(stack.redis_url)
        server = serving.Serving(settings, record, store)
        events = RunEvents(RUN, "w", store)
        async with start_lock(settings):
            start = asyncio.create_task(server.serve(config, tmp_path / "model", events))
            while not (found := await store.events.read(RUN, "0", wait=1)):
                assert not start.done()
            assert "vLLM starts once no other starts on its GPU" in str(found)
            assert not list((tmp_path / "logs").glob("vllm-*"))
        await start
        assert (tmp_path / "logs" / "vllm-w.log").exists()
        await server.stop()
        await store.close()


STARTING = """
import asyncio, os, sys
from rollout.settings import RolloutSettings
from rollout.vllm.gpu_lock import start_lock

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


def test_starts_of_other_processes_wait_and_one_that_is_killed_holds_up_nobody(
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
