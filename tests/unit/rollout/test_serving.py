"""A worker stops its vLLM when the learner needs their GPU."""

import asyncio
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollout.vllm.process.options import ServerConfig
from rollout.vllm.process.server import VLLMFailed, VLLMServer
from rollout.vllm.process.serving import Serving
from services.contracts.config.vllm import VLLM
from services.contracts.devices import GPUDevice, LearnerDevices
from services.contracts.records import RunState
from services.runtime.tasks import end
from tests.unit.estimate.estimating import GB, rl_config
from tests.unit.estimate.known import QWEN3_06B

GPU, OTHER = (GPUDevice(uuid=f"GPU-{name}", name="A40", memory=1) for name in "ab")


class Server:
    """A server that runs until it is stopped."""

    def __init__(self) -> None:
        self.ended = 0

    async def close(self) -> None:
        """The client's weights."""

    async def stop(self) -> None:
        self.ended += 1


def run(share: float | None = None, kind: str = "rl", sleeps: bool = False) -> Any:
    vllm = {"gpu_memory_utilization": share, "sleeps": sleeps}
    config = {"rollout": {"vllm": vllm}} if kind == "rl" else {}
    return SimpleNamespace(id="r", kind=kind, config=config, state=RunState.STARTING)


@pytest.mark.parametrize(
    ("next_run", "trains", "ends"),
    [
        (run(0.3), GPU, False),
        (run(None), GPU, True),
        (run(0.5), GPU, True),
        (run(0.3, sleeps=True), GPU, True),
        (run(kind="sft"), GPU, True),
        (run(0.5), OTHER, False),
        (run(0.5), None, False),
    ],
)
async def test_vllm_ends_before_the_learner_loads_a_run_that_counts_on_its_memory(
    next_run: Any, trains: GPUDevice | None, ends: bool
) -> None:
    async def devices(pool: str) -> LearnerDevices | None:
        return LearnerDevices(ranks=1, gpus=[trains]) if trains else None

    store: Any = SimpleNamespace(pools=SimpleNamespace(devices=devices))
    settings: Any = SimpleNamespace(pool="p")
    record: Any = SimpleNamespace(devices=[GPU])
    serving, server = Serving(settings, record, store), Server()
    await serving.free_memory_for(next_run)
    assert server.ended == 0
    # The run before gave vLLM a share of 0.3.
    serving._running, serving._share = (server, server), 0.3  # type: ignore[assignment]
    await serving.free_memory_for(next_run)
    await serving.free_memory_for(next_run)
    assert server.ended == int(ends)


@pytest.mark.parametrize(
    ("trains", "extra", "told"),
    [(GPU, {}, True), (OTHER, {}, False), (GPU, {"kv_cache_memory_bytes": 1 << 30}, False)],
)
async def test_vllm_gets_the_size_of_its_cache_only_on_the_learners_gpu(
    trains: GPUDevice, extra: dict[str, Any], told: bool
) -> None:
    async def devices(pool: str) -> LearnerDevices:
        return LearnerDevices(ranks=1, gpus=[trains.model_copy(update={"memory": 80 * GB})])

    store: Any = SimpleNamespace(pools=SimpleNamespace(devices=devices))
    record: Any = SimpleNamespace(devices=[GPU.model_copy(update={"memory": 80 * GB})])
    serving = Serving(cast(Any, SimpleNamespace(pool="p")), record, store)
    options = VLLM(max_model_len=1280, gpu_memory_utilization=0.4, extra=extra)
    config = rl_config({"sampling": {"max_tokens": 64}, "rollout": {"vllm": options.model_dump()}})
    flags = await serving._cache_flags(config, options, QWEN3_06B | {"dtype": "bfloat16"})
    assert flags.keys() == ({"kv-cache-memory-bytes"} if told else set())
    assert all(20 * GB < size < 32 * GB for size in flags.values())


async def test_a_stop_that_was_cancelled_can_be_repeated() -> None:
    closing, nothing = asyncio.Event(), cast(Any, None)

    class Slow(Server):
        async def close(self) -> None:
            if not closing.is_set():
                closing.set()
                await asyncio.sleep(3600)

    serving, server = Serving(nothing, nothing, nothing), Server()
    serving._running = (Slow(), server)  # type: ignore[assignment]
    stop = asyncio.create_task(serving.stop())
    await closing.wait()
    await end([stop])
    assert server.ended == 0
    await serving.stop()
    assert server.ended == 1
    assert serving._running is None


def sleeping() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])


async def test_a_failure_of_a_running_server_names_the_cause_in_its_log(
    tmp_path: Path,
) -> None:
    log, nothing = tmp_path / "vllm-w.log", cast(Any, None)
    log.write_text("(EngineCore pid=2) ERROR 11-21 04:29:17 [core.py:9] RuntimeError: head_dim=16")
    server = VLLMServer(ServerConfig(tmp_path, VLLM(), "float32", "cpu"), log)
    process = server._process = sleeping()
    serving = Serving(nothing, nothing, nothing)
    error = VLLMFailed("vLLM could not be brought to a:1 in 3 tries")
    assert await serving.explained(error) == str(error)
    serving._running = (nothing, server)
    told = await serving.explained(error)
    assert told.splitlines()[0] == (
        f"{error}: RuntimeError: head_dim=16. The last lines of its log ({log}):"
    )
    # The error already names its cause.
    assert await serving.explained(VLLMFailed(told, named_cause=True)) == told
    process.kill()
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    error = VLLMFailed("vLLM does not answer /start_weight_update: [Connection refused]")
    told = await serving.explained(error)
    assert told.startswith("vLLM ended with signal SIGKILL: RuntimeError: head_dim=16. The last")
    await asyncio.to_thread(process.wait)
