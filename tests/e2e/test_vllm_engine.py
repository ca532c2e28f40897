"""The weight-transfer engine when a load breaks after it has touched the model.

vLLM's own loading is replaced by one that fails on demand: no file that passes the checks makes
the real one fail.
"""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rollout.vllm_plugin.engine import SafetensorsEngine, UpdateInfo, WeightTransferError
from rollout.vllm_plugin.weight_file import WEIGHTS_KEPT, WEIGHTS_MIXED

pytestmark = pytest.mark.vllm


class Breakable(SafetensorsEngine):
    """Knows which file's weights the model has; loading a file in `broken` leaves it mixed."""

    def __init__(self) -> None:
        self._live = None
        self._slot = None
        self.model_has = "random weights"
        self.broken: set[str] = set()

    def _load(self, path: Path) -> None:
        self.model_has = "a mixture"
        if path.name in self.broken:
            raise RuntimeError(f"cannot load {path.name}")
        self.model_has = path.name


def full(folder: Path, name: str) -> UpdateInfo:
    save_file({"weight": np.zeros((2, 2), np.float32)}, folder / name)
    return UpdateInfo(str(folder / name), tensors=1)


def test_the_last_good_snapshot_is_put_back(tmp_path: Path) -> None:
    engine = Breakable()
    engine.receive_weights(full(tmp_path, "v1"))
    engine.broken = {"v2"}

    with pytest.raises(WeightTransferError, match=f"{WEIGHTS_KEPT}: RuntimeError: cannot load v2"):
        engine.receive_weights(full(tmp_path, "v2"))

    assert engine.model_has == "v1"


def test_weights_that_cannot_be_put_back_are_reported_as_mixed(tmp_path: Path) -> None:
    engine = Breakable()
    engine.receive_weights(full(tmp_path, "v1"))
    engine.broken = {"v1", "v2"}

    with pytest.raises(WeightTransferError, match=f"{WEIGHTS_MIXED}: .*could not be put back"):
        engine.receive_weights(full(tmp_path, "v2"))


def test_a_first_load_that_breaks_has_nothing_to_go_back_to(tmp_path: Path) -> None:
    engine = Breakable()
    engine.broken = {"v1"}
    with pytest.raises(WeightTransferError, match=WEIGHTS_MIXED):
        engine.receive_weights(full(tmp_path, "v1"))


def test_a_good_snapshot_after_mixed_weights_makes_them_right(tmp_path: Path) -> None:
    engine = Breakable()
    engine.broken = {"v1"}
    with pytest.raises(WeightTransferError):
        engine.receive_weights(full(tmp_path, "v1"))

    engine.receive_weights(full(tmp_path, "v2"))

    assert engine.model_has == "v2"


def test_a_kind_this_worker_does_not_know_is_refused_untouched(tmp_path: Path) -> None:
    engine = Breakable()
    update = full(tmp_path, "v1")
    update.kind = "delta"
    with pytest.raises(WeightTransferError, match=f"{WEIGHTS_KEPT}: .* kind 'delta'"):
        engine.receive_weights(update)
    assert engine.model_has == "random weights"
