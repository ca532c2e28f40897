"""Rollout workers take GPUs, with made-up devices and real locks."""

import subprocess
import sys
from pathlib import Path

import pytest

from rollout.vllm.process.gpu_lock import GPUsTaken, take
from rollout.vllm.process.serving import require_gpus
from services.runtime.gpus import GPU, GPUsUnknown, gpu_count, listed_gpus, visible_gpus

FOUR = [GPU(str(n), f"GPU-{n}") for n in range(4)]
HOLDS = """
import sys
from pathlib import Path
from rollout.vllm.process.gpu_lock import take
from services.runtime.gpus import GPU
taken = take(Path(sys.argv[1]), 1, [GPU("1", "GPU-1")], ["0"])
sys.stdin.read()
"""


def indexes(taken: object) -> list[str]:
    return [gpu.index for gpu in taken.gpus]  # type: ignore[attr-defined]


def test_workers_take_different_gpus_and_leave_the_learners(tmp_path: Path) -> None:
    first, second = take(tmp_path, 1, FOUR, ["0"]), take(tmp_path, 1, FOUR, ["0"])

    assert (indexes(first), indexes(second)) == (["1"], ["2"])
    assert second.environment == {"CUDA_VISIBLE_DEVICES": "2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_workers_leave_the_gpus_of_reward_models_alone(tmp_path: Path) -> None:
    assert indexes(take(tmp_path, 1, FOUR, ["0"], ["1"])) == ["2"]
    with pytest.raises(GPUsTaken, match=r"1 is for reward models \(HEADRACE_REWARD_GPUS\)"):
        take(tmp_path, 2, FOUR[:2], [], ["1"])


def test_a_worker_may_take_several(tmp_path: Path) -> None:
    assert indexes(take(tmp_path, 2, FOUR, ["GPU-1"])) == ["0", "2"]


def test_with_too_few_free_gpus_none_is_taken_and_the_error_names_the_holders(
    tmp_path: Path,
) -> None:
    held = take(tmp_path, 2, FOUR, ["0"])

    with pytest.raises(GPUsTaken, match=r"2 free GPUs are needed, and this machine has 1") as said:
        take(tmp_path, 2, FOUR, ["0"])

    assert "0 is the learner's (HEADRACE_LEARNER_GPUS); 1 is held by " in str(said.value)
    assert "3 is free" in str(said.value)
    assert indexes(take(tmp_path, 1, FOUR, ["0"])) == ["3"]
    assert indexes(held) == ["1", "2"]


def test_a_worker_shares_the_learners_gpu_if_it_is_the_only_one(tmp_path: Path) -> None:
    shared = take(tmp_path, 1, FOUR[:1], ["0"])

    assert indexes(shared) == ["0"]
    assert shared.shared
    assert not take(tmp_path / "other", 1, FOUR, ["0"]).shared
    with pytest.raises(GPUsTaken, match="0 is held by"):
        take(tmp_path, 1, FOUR[:1], ["0"])


def test_a_machine_without_a_visible_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GPUsTaken, match="it shows none to this process"):
        take(tmp_path, 1, [], ["0"])


def test_the_gpu_of_a_killed_worker_is_free_at_once(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", HOLDS, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert "GPUs taken" in worker.stdout.readline()
    with pytest.raises(GPUsTaken, match=rf"1 is held by .*, process {worker.pid}\b"):
        take(tmp_path, 1, FOUR[1:2], ["0"])

    worker.kill()
    worker.communicate()

    assert indexes(take(tmp_path, 1, FOUR[1:2], ["0"])) == ["1"]


def test_devices_are_those_that_the_driver_lists_and_the_environment_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\nprintf '0, GPU-0\\n1, GPU-1\\n2, GPU-2\\n'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert listed_gpus() == FOUR[:3]
    assert visible_gpus(FOUR, {}) == FOUR
    assert visible_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": "2,GPU-0"}) == [FOUR[2], FOUR[0]]
    assert visible_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": "1,-1,0"}) == [FOUR[1]]
    assert visible_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": ""}) == []


def test_a_worker_counts_the_gpus_that_cuda_shows_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.runtime.gpus.installed_device", lambda: "cuda")
    monkeypatch.setenv("PATH", str(tmp_path))
    counts = {}
    for names in ("", "-1", "0", "0,-1,1", "MIG-1,GPU-2"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
        counts[names] = gpu_count()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    assert counts == {"": 0, "-1": 0, "0": 1, "0,-1,1": 1, "MIG-1,GPU-2": 2}
    assert gpu_count() is None


def test_a_missing_or_failing_driver_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GPUsUnknown, match="docker compose --profile cpu up"):
        listed_gpus()

    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'No devices were found' >&2\nexit 6\n")
    command.chmod(0o755)
    with pytest.raises(GPUsUnknown, match="nvidia-smi failed: No devices were found"):
        listed_gpus()


def test_a_worker_refuses_a_run_that_needs_more_gpus_than_it_has() -> None:
    require_gpus(4, 4)
    require_gpus(4, None)
    with pytest.raises(
        ValueError, match=r"tensor_parallel_size 4: this worker has 1 GPU\. Set it to 1, or start"
    ):
        require_gpus(4, 1)
