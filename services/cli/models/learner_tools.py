"""Programs of the learner that the command line starts on this machine: they need torch."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from services.caches import cache_variables


def run_tool(tool: str, *arguments: str, capture: bool) -> subprocess.CompletedProcess[str]:
    """Run `python -m learner.tools.TOOL`, with its output in the result if `capture`.

    The caches of its libraries are in a folder that is closed to others and deleted afterwards:
    these programs compile nothing, and their user may not be able to write to a data folder.
    """
    # -P: a `learner.py` where the user stands must not be imported.
    command = [sys.executable, "-P", "-m", f"learner.tools.{tool}", *arguments]
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        return subprocess.run(
            command,
            check=False,
            text=True,
            stdout=subprocess.PIPE if capture else None,
            env={**os.environ, **cache_variables(Path(folder), os.environ)},
        )
