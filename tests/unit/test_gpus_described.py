"""A worker reports GPUs as the driver describes them."""

from pathlib import Path

import pytest

from services.contracts.devices import GPUDevice, GPULoad
from services.runtime import gpus


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvidia-smi that lists two GPUs, one of them without its memory."""
    script = tmp_path / "nvidia-smi"
    script.write_text(
        "#!/bin/sh\n"
        "echo '0, GPU-a, NVIDIA H100 80GB HBM3, 81559'\n"
        "echo '1, GPU-b, NVIDIA H200, 143771'\n"
        "echo '2, GPU-c, NVIDIA GB10, [N/A]'\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "installed_device", lambda: "cuda")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return script


def test_gpus_have_names_and_memory(driver: Path) -> None:
    assert gpus.described_gpus() == [
        GPUDevice(uuid="GPU-a", name="NVIDIA H100 80GB HBM3", memory=81559 << 20),
        GPUDevice(uuid="GPU-b", name="NVIDIA H200", memory=143771 << 20),
    ]


def test_only_gpus_that_this_process_sees_are_described(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.uuid for gpu in gpus.described_gpus()] == ["GPU-b"]


def test_a_missing_driver_or_a_cpu_describes_no_gpus(
    driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "installed_device", lambda: "cpu")
    assert gpus.described_gpus() == []
    monkeypatch.setattr(gpus, "installed_device", lambda: "cuda")
    driver.unlink()
    assert gpus.described_gpus() == []


def test_the_driver_says_how_busy_the_gpus_of_a_worker_are(driver: Path) -> None:
    driver.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --query-gpu=uuid,memory.used,utilization.gpu ] || exit 1\n'
        "echo 'GPU-a, 70000, 93'\n"
        "echo 'GPU-b, 1, 0'\n"
        "echo 'GPU-c, 5, [N/A]'\n"
    )
    named = [GPUDevice(uuid=f"GPU-{name}", name="GPU", memory=1) for name in "cax"]
    assert gpus.gpu_loads(named) == [
        GPULoad(uuid="GPU-c", used=5 << 20, busy=None),
        GPULoad(uuid="GPU-a", used=70000 << 20, busy=0.93),
    ]
    driver.unlink()
    assert gpus.gpu_loads(named) == []
