"""The benchmark of a GPU, as far as it goes without one."""

from pathlib import Path

import pytest
import torch

from bench.gpu import kernels
from bench.gpu.loop import by_position, config, engine_facts
from bench.gpu.run import STAGES, arguments
from bench.runner import BenchFailed, BenchResults, Figures
from services.contracts.config import parse_config


def test_a_stage_that_does_not_exist_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["kernel"])
    assert "no stage kernel: choose of tests, kernels, learner, loop" in capsys.readouterr().err
    assert arguments([]).stages == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_each_kernel_says_so_and_the_others_go_on() -> None:
    results = BenchResults("gpu")
    for part in STAGES["kernels"](arguments([])):
        results.measure(part)
    assert len(results.failed) > 10
    assert set(results.failed.values()) == {"no GPU: torch sees no CUDA device"}


def test_a_kernel_without_memory_fails_alone() -> None:
    def measured() -> Figures:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB (GPU 0)")

    with pytest.raises(BenchFailed, match=r"out of memory: CUDA out of memory\. Tried .* 9 GiB$"):
        kernels.side(measured)()


def test_differences_are_shown_by_the_place_in_an_answer() -> None:
    # Quarters of an answer of eight tokens, and of one of two: its second token is in the third.
    found = by_position([[0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.8], [0.5, 0.7]])
    assert found["sampler − learner, mean nats"] == pytest.approx(0.36)
    assert found["sampler − learner, most"] == 0.8
    quarters = [found[f"sampler − learner, mean of quarter {n}"] for n in (1, 2, 3, 4)]
    assert quarters == pytest.approx([0.7 / 3, 0.2, 1.3 / 3, 0.6])
    assert by_position([]) == {}


def test_the_engine_is_named_by_its_own_log(tmp_path: Path) -> None:
    log = tmp_path / "vllm-w.log"
    named = "(A pid=1) INFO [a.py:1] Using V2 Model Runner"
    log.write_text(f"{named}\nKV cache usage: 0%\n[b.py:2] Using V2 Model Runner\n")
    assert engine_facts([log]) == ["Using V2 Model Runner"]


def test_the_runs_of_the_loop_are_valid(tmp_path: Path) -> None:
    for vllm in ({}, {"sleeps": True, "gpu_memory_utilization": 0.8}):
        parsed = parse_config(config(tmp_path, 6, vllm))
        assert parsed.training.max_steps == 6
