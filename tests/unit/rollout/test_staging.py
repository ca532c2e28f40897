"""Staged files are ready before vLLM pauses for a version that comes as deltas."""

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from rollout.vllm.client.weight_loader import LoadRefused, WeightUpdate
from rollout.vllm.weights.served_weights import ServedWeights
from rollout.vllm.weights.staging import Staging, only_whole
from rollout.vllm.weights.weight_follower import WeightFollower
from tests.unit.weights.files import Weights, bits, save_delta, save_full


@pytest.fixture
def versions() -> list[Weights]:
    """Return three deltas. Each changes some values of the version before."""
    random = np.random.default_rng(0)
    first = {"a": bits(random.normal(size=(4, 6))), "b": bits(random.normal(size=(5,)))}
    second = {name: values.copy() for name, values in first.items()}
    second["a"][1, 2] = second["a"][3, 5] = 0x3F80
    third = {name: values.copy() for name, values in second.items()}
    third["b"][:] = 0x4000
    return [first, second, third]


@pytest.fixture
def update(tmp_path: Path, versions: list[Weights]) -> WeightUpdate:
    """Return the update to version a:3, as the learner publishes it."""
    save_full(tmp_path / "v1", versions[0])
    save_delta(tmp_path / "v2", versions[0], versions[1], "a:1", "a:2")
    save_delta(tmp_path / "v3", versions[1], versions[2], "a:2", "a:3")
    deltas = (str(tmp_path / "v2"), str(tmp_path / "v3"))
    return WeightUpdate(str(tmp_path / "v1"), "a:3", 2, "delta", deltas=deltas)


def test_a_server_on_a_cpu_gets_the_whole_version(
    tmp_path: Path, update: WeightUpdate, versions: list[Weights]
) -> None:
    staging = Staging(tmp_path, whole=True)
    staged = staging.stage(update, "a:2")

    assert (staged.path, staged.deltas, staged.patch) == (update.path, update.deltas, "")
    for name, tensor in load_file(staged.whole).items():
        assert tensor.dtype == torch.bfloat16
        assert np.array_equal(tensor.view(torch.uint16).numpy(), versions[2][name])
    staging.clear()
    assert not Path(staged.whole).exists()


def test_a_server_on_a_gpu_gets_the_changes_from_its_version(
    tmp_path: Path, update: WeightUpdate
) -> None:
    staging = Staging(tmp_path, whole=False)
    with safe_open(staging.stage(update, "a:1").patch, framework="pt") as file:
        assert file.metadata() == {"base": "a:1", "tag": "a:3"}
        assert sorted(file.keys()) == [
            "positions/0/a",
            "positions/1/b",
            "values/0/a",
            "values/1/b",
        ]
        assert file.get_tensor("positions/0/a").tolist() == [8, 23]
        assert file.get_tensor("values/0/a").tolist() == [1.0, 1.0]
        # All five values changed: such a delta has no positions.
        assert file.get_tensor("positions/1/b").tolist() == [0, 1, 2, 3, 4]
        assert file.get_tensor("values/1/b").tolist() == [2.0] * 5
    with safe_open(staging.stage(update, "a:2").patch, framework="pt") as file:
        assert sorted(file.keys()) == ["positions/0/b", "values/0/b"]


def test_a_server_without_the_anchor_or_a_delta_loads_all_files(
    tmp_path: Path, update: WeightUpdate
) -> None:
    for live in (None, "none", "b:1", "a:3"):
        assert Staging(tmp_path, whole=False).stage(update, live) == update


def test_files_that_do_not_belong_together_are_refused_before_the_pause(
    tmp_path: Path, update: WeightUpdate, versions: list[Weights]
) -> None:
    # One value that no delta changes differs.
    wrong = {name: values.copy() for name, values in versions[0].items()}
    wrong["a"][0, 0] ^= 1
    save_full(tmp_path / "v1", wrong)
    with pytest.raises(LoadRefused, match="loading a:3: a of version a:3 is wrong"):
        Staging(tmp_path, whole=True).stage(update, "a:2")

    (tmp_path / "v3").write_bytes((tmp_path / "v3").read_bytes()[:-4])
    for whole in (True, False):
        with pytest.raises(LoadRefused, match="loading a:3: cannot read"):
            Staging(tmp_path, whole=whole).stage(update, "a:2")


def test_whole_files_and_adapters_need_no_staging(tmp_path: Path) -> None:
    for kind in ("full", "adapter"):
        update = WeightUpdate("v1", "a:1", 2, kind)
        assert Staging(tmp_path, whole=True).stage(update, "a:0") == update


@pytest.mark.parametrize(
    ("config", "whole"),
    [
        ({"num_experts": 128}, True),
        ({"text_config": {"num_local_experts": 8}}, True),
        ({"kv_lora_rank": 512}, True),
        ({"text_config": {"kv_lora_rank": 512}}, True),
        ({"num_experts": 1, "kv_lora_rank": None}, False),
        ({}, False),
    ],
)
def test_a_patch_is_not_staged_for_a_model_that_vllm_cannot_patch(
    tmp_path: Path, config: dict[str, Any], whole: bool
) -> None:
    """The pause would be spent on reading the files."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert only_whole(tmp_path) is whole


async def test_a_file_staged_while_the_worker_stops_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go, done = threading.Event(), threading.Event(), list[str]()

    class Slow:
        def stage(self, update: WeightUpdate, live: str | None) -> WeightUpdate:
            begun.set()
            go.wait(60)
            done.append("written")
            return update

        def clear(self) -> None:
            done.append("cleared")

    async def fetched(_: object) -> list[Path]:
        return [Path("v1"), Path("v2")]

    async def nothing(*_: object) -> None:
        pass

    loader: Any = SimpleNamespace(live="a:1")
    unused: Any = None
    staging: Any = Slow()
    served = ServedWeights(loader, "keep", unused, lambda: None, nothing)
    follower = WeightFollower("run", unused, unused, served, staging, nothing)
    monkeypatch.setattr(follower, "_fetch", fetched)
    monkeypatch.setattr(follower, "_note_forks", nothing)
    manifest: Any = SimpleNamespace(files=[], tag="a:2", tensors=1, kind="delta")
    applying = asyncio.create_task(follower._apply(manifest))
    assert await asyncio.to_thread(begun.wait, 60)
    applying.cancel()
    await asyncio.sleep(0.1)
    assert done == []
    go.set()
    await asyncio.wait([applying])
    assert (applying.cancelled(), done) == (True, ["written", "cleared"])
