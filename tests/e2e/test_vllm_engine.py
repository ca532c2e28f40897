"""The weight-transfer engine when a load breaks after it has touched the model.

vLLM's own loading is replaced by one that fails on demand: no file that passes the checks makes
the real one fail.
"""

from pathlib import Path
from typing import Any

import pytest

from rollout.vllm_plugin.weight_file import WEIGHTS_KEPT, WEIGHTS_MIXED

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def engines() -> Any:
    """The module `breakable_engine`."""
    from tests.e2e import breakable_engine

    return breakable_engine


def test_the_last_good_snapshot_is_put_back(engines: Any, tmp_path: Path) -> None:
    engine = engines.Breakable()
    engine.receive_weights(engines.full(tmp_path, "v1"))
    engine.broken = {"v2"}

    with pytest.raises(
        engines.WeightTransferError, match=f"{WEIGHTS_KEPT}: RuntimeError: cannot load v2"
    ):
        engine.receive_weights(engines.full(tmp_path, "v2"))

    assert engine.model_has == "v1"


def test_weights_that_cannot_be_put_back_are_reported_as_mixed(
    engines: Any, tmp_path: Path
) -> None:
    engine = engines.Breakable()
    engine.receive_weights(engines.full(tmp_path, "v1"))
    engine.broken = {"v1", "v2"}

    with pytest.raises(
        engines.WeightTransferError, match=f"{WEIGHTS_MIXED}: .*could not be put back"
    ):
        engine.receive_weights(engines.full(tmp_path, "v2"))


def test_a_first_load_that_breaks_has_nothing_to_go_back_to(engines: Any, tmp_path: Path) -> None:
    engine = engines.Breakable()
    engine.broken = {"v1"}
    with pytest.raises(engines.WeightTransferError, match=WEIGHTS_MIXED):
        engine.receive_weights(engines.full(tmp_path, "v1"))


def test_a_good_snapshot_after_mixed_weights_makes_them_right(engines: Any, tmp_path: Path) -> None:
    engine = engines.Breakable()
    engine.broken = {"v1"}
    with pytest.raises(engines.WeightTransferError):
        engine.receive_weights(engines.full(tmp_path, "v1"))

    engine.receive_weights(engines.full(tmp_path, "v2"))

    assert engine.model_has == "v2"


def test_a_kind_this_worker_does_not_know_is_refused_untouched(
    engines: Any, tmp_path: Path
) -> None:
    engine = engines.Breakable()
    update = engines.full(tmp_path, "v1")
    update.kind = "other"
    with pytest.raises(engines.WeightTransferError, match=f"{WEIGHTS_KEPT}: .* kind 'other'"):
        engine.receive_weights(update)
    assert engine.model_has == "random weights"
