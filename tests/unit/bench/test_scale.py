"""The table of models that fit GPUs, and its arithmetic against a tracker of memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.learner.scale import GB, SPARE, least_ranks, markdown, of_a_rank, shape
from bench.learner.sizes import MODELS
from services.estimate.model_shape import shape_of
from services.estimate.rank_bytes import RUNTIME, Pass

ROOT = Path(__file__).parents[3]


def test_eight_and_thirty_two_billion_fit_eight_gpus_with_a_fifth_to_spare() -> None:
    for name, memory in (("Qwen3-8B", 80 * GB), ("Qwen3-32B", 141 * GB)):
        found = least_ranks(shape(name), memory, checkpointing=True)
        assert found is not None
        ranks, needed = found
        assert ranks <= 8
        assert needed.total <= SPARE * memory


def test_the_document_has_the_table_of_today() -> None:
    assert markdown() in (ROOT / "docs/scale.md").read_text()


def test_the_estimate_is_within_a_tenth_of_a_tracked_peak() -> None:
    """Two layers of Qwen3-0.6B's width, on tensors without data. The simulated ranks belong to a
    process, so the tracker has its own."""
    config = MODELS["Qwen3-0.6B"] | {"num_hidden_layers": 2, "vocab_size": 65_536}
    code = (
        "from tests.unit.bench.tracked_memory import tracked_peak\n"
        f"print(tracked_peak({config!r}, 4, 4096))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    small = shape_of(config)
    assert small is not None
    how = Pass(4, "fsdp", half=True, tokens=4096, checkpointing=True)
    found = of_a_rank(small, how).total - RUNTIME
    assert found == pytest.approx(int(done.stdout.split()[-1]), rel=0.1)
