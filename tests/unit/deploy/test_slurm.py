"""The files for Slurm. `make test-slurm` runs them on a real one."""

import re
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "deploy" / "slurm"
JOBS = sorted(FOLDER.glob("*.sbatch"))


@pytest.mark.parametrize("file", [*JOBS, FOLDER / "common.sh"], ids=lambda file: file.name)
def test_a_file_for_slurm_is_valid_bash(file: Path) -> None:
    assert subprocess.run(["bash", "-n", file], check=False).returncode == 0


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.name)
def test_a_job_hears_of_its_end_and_is_requeued(file: Path) -> None:
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", file.read_text(), re.MULTILINE))
    assert {"requeue", "signal", "open-mode", "output"} <= options.keys()
    assert options["signal"].startswith("B:TERM@")
    assert file.read_text().rstrip().endswith("\nrequeued")
