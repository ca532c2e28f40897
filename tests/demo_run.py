"""`headrace demo` as a user runs it, to its end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from services.runtime.process import INSTANCE, marked

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}


def run_demo(folder: Path, *options: str) -> dict[str, Any]:
    """Run the demo, and return its final figures. It succeeded, and its processes have ended."""
    data = folder / "data"
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "demo", "--data", str(data), *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killing it" not in done.stdout + done.stderr
    instance = json.loads((data / "up.json").read_text())["instance"]
    assert marked({INSTANCE: instance}) == []
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
