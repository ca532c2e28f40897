"""The weight-transfer engine when a load breaks after it has touched the model.

vLLM's own loading is replaced by one that fails on demand: no file that passes the checks makes
the real one fail.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollout.vllm.client.weight_loader import WeightUpdate
from rollout.vllm.weights.staging import Staging
from rollout.vllm_plugin.weight_file import WEIGHTS_KEPT, WEIGHTS_MIXED
from tests.unit.weights.files import Weights, bits, save_delta, save_full

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def engines() -> Any:
    """The module `breakable_engine`."""
    from tests.e2e import breakable_engine

    return breakable_engine


def test_a_load_that_breaks_half_way_is_reported_as_mixed_until_a_whole_load(
    engines: Any, tmp_path: Path
) -> None:
    engine = engines.Breakable()
    engine.receive_weights(engines.full(tmp_path, "v1"))
    engine.broken = {"v2"}

    with pytest.raises(
        engines.WeightTransferError, match=f"{WEIGHTS_MIXED}: RuntimeError: cannot load v2"
    ):
        engine.receive_weights(engines.full(tmp_path, "v2"))
    assert engine.model_has == "a mixture"

    engine.receive_weights(engines.full(tmp_path, "v3"))
    assert engine.model_has == "v3"


def test_a_kind_this_worker_does_not_know_is_refused_untouched(
    engines: Any, tmp_path: Path
) -> None:
    engine = engines.Breakable()
    update = engines.full(tmp_path, "v1")
    update.kind = "other"
    with pytest.raises(engines.WeightTransferError, match=f"{WEIGHTS_KEPT}: .* kind 'other'"):
        engine.receive_weights(update)
    assert engine.model_has == "random weights"


@pytest.fixture(scope="module")
def patching() -> Any:
    """The module `patched_model`."""
    from tests.e2e import patched_model

    return patched_model


def steps(folder: Path) -> list[Weights]:
    """Two versions of `patched_model`'s weights, as files: v1, the delta v2, and a patch."""
    random = np.random.default_rng(0)
    shapes = {"gate": (4, 6), "up": (4, 6), "down": (6, 4)}
    first = {name: bits(random.normal(size=shape)) for name, shape in shapes.items()}
    second = {name: values.copy() for name, values in first.items()}
    for name, row, column in [("gate", 1, 5), ("up", 0, 0), ("down", 3, 1), ("down", 5, 3)]:
        second[name][row, column] ^= 0x55
    save_full(folder / "v1", first)
    save_delta(folder / "v2", first, second, "a:1", "a:2")
    return [first, second]


def patch_update(module: Any, folder: Path, live: str = "a:1") -> Any:
    deltas = (str(folder / "v2"),)
    update = WeightUpdate(str(folder / "v1"), "a:2", 3, "delta", deltas=deltas)
    staged = Staging(folder, whole=False).stage(update, live)
    return module.UpdateInfo(
        staged.path, "delta", list(staged.deltas), 3, patch=staged.patch, tag=staged.tag
    )


def assert_has(engine: Any, version: Weights) -> None:
    """Each process has its part of every tensor, bit by bit."""
    fused = np.concatenate([version["gate"], version["up"]])
    assert np.array_equal(engine.model.gate_up.view(torch.uint16).numpy(), fused)
    assert np.array_equal(engine.model.down.view(torch.uint16).numpy(), version["down"][:, 2:])


def test_a_patch_reaches_the_parts_of_fused_and_sharded_weights(
    patching: Any, tmp_path: Path
) -> None:
    engine, (first, second) = patching.Patched(), steps(tmp_path)
    engine.receive_weights(patching.UpdateInfo(str(tmp_path / "v1"), tensors=3, tag="a:1"))
    assert_has(engine, first)

    engine.receive_weights(patch_update(patching, tmp_path))

    assert_has(engine, second)
    assert engine.loads == 1


def test_after_a_patch_that_breaks_half_way_the_whole_version_is_loaded(
    patching: Any, tmp_path: Path
) -> None:
    engine, (_, second) = patching.Patched(), steps(tmp_path)
    engine.receive_weights(patching.UpdateInfo(str(tmp_path / "v1"), tensors=3, tag="a:1"))
    engine.model.breaks = True

    with pytest.raises(patching.WeightTransferError, match=f"{WEIGHTS_MIXED}: .*cannot load up"):
        engine.receive_weights(patch_update(patching, tmp_path))

    engine.model.breaks = False
    engine.receive_weights(patch_update(patching, tmp_path))
    assert_has(engine, second)
    assert engine.loads == 2


def test_a_patch_of_another_version_is_refused_untouched(patching: Any, tmp_path: Path) -> None:
    engine, (first, second) = patching.Patched(), steps(tmp_path)
    engine.receive_weights(patching.UpdateInfo(str(tmp_path / "v1"), tensors=3, tag="a:9"))
    with pytest.raises(patching.WeightTransferError, match="leads from a:1 to a:2, not a:9 to a:2"):
        engine.receive_weights(patch_update(patching, tmp_path))
    assert_has(engine, first)

    # A server that has loaded nothing takes the whole version.
    new = patching.Patched()
    new.receive_weights(patch_update(patching, tmp_path))
    assert_has(new, second)
