"""How long vLLM usually takes to start."""

from pathlib import Path

import pytest

from rollout.vllm.process import start_times
from rollout.vllm.process.start_times import FILE, StartTimes, start_key
from services.contracts.config.vllm import VLLM


def test_the_newest_start_with_the_same_model_and_options_is_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_times, "KEPT", 2)
    times = StartTimes(tmp_path)
    assert times.usual("a") is None
    times.add("a", 100.04)
    times.add("b", 20)
    times.add("a", 90)
    assert (StartTimes(tmp_path).usual("a"), times.usual("b")) == (90.0, 20.0)
    times.add("c", 1)
    assert [times.usual(key) for key in "abc"] == [90.0, None, 1.0]


@pytest.mark.parametrize("text", ["", "[1]", '{"a": "x"}', "[" * 100_000])
def test_a_damaged_file_of_start_times_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    times = StartTimes(tmp_path)
    assert times.usual("a") is None
    times.add("a", 3)
    assert times.usual("a") == 3.0


def test_weights_do_not_change_how_long_a_start_takes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    key = start_key(tmp_path, VLLM(), "cpu")
    (tmp_path / "model.safetensors").write_text("other weights")
    assert start_key(tmp_path, VLLM(), "cpu") == key
    assert start_key(tmp_path, VLLM(), "cuda") != key
    assert start_key(tmp_path, VLLM(sleeps=True), "cpu") != key
