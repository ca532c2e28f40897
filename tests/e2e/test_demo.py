"""`headrace demo` for real and to its end: a policy learns, and nothing stays behind."""

from pathlib import Path

import pytest

from tests.demo_run import run_demo

pytestmark = pytest.mark.timeout(1200)


def test_the_demo_learns_sums_that_carry(tmp_path: Path) -> None:
    told = run_demo(tmp_path)

    assert told.keys() == {
        *("accuracy_before", "accuracy_after", "steps", "seconds"),
        *("chain", "run", "trained_samples_per_second", "checkpoint", "report"),
    }
    assert told["accuracy_before"] <= 0.5
    assert told["accuracy_after"] >= 0.9
    assert told["steps"] == 40
    assert told["seconds"] > 0
    assert told["trained_samples_per_second"] > 0
    page = Path(told["report"])
    assert "<h2>Step sft: " in page.read_text()
    assert 'aria-label="Held-out accuracy: ' in page.read_text()
    assert (Path(told["checkpoint"]) / "model.safetensors").is_file()
