"""`headrace demo` for real and to its end: a policy learns, and nothing stays behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.runtime.process import INSTANCE, marked

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}


@pytest.mark.timeout(1200)
def test_the_demo_learns_sums_that_carry(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "demo", "--data", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "killing it" not in done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
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
    assert "sft: Curves" in page.read_text()
    assert (page.parent / "plots" / "rl-accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert (Path(told["checkpoint"]) / "model.safetensors").is_file()
    instance = json.loads((tmp_path / "data" / "up.json").read_text())["instance"]
    assert marked({INSTANCE: instance}) == []
