"""Real torchrun: what a batch teaches does not depend on how many ranks share it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[3]


def gradients(folder: Path, ranks: int, budget: int) -> dict[str, torch.Tensor]:
    output = folder / f"{ranks}-{budget}.safetensors"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--local-addr", "127.0.0.1", "--nproc-per-node", str(ranks)),
        *("-m", "tests.integration.learner.gradient_ranks", str(output), str(budget)),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return load_file(output)


@pytest.mark.multirank
def test_one_and_two_ranks_and_any_budget_give_the_same_gradient(tmp_path: Path) -> None:
    alone = gradients(tmp_path, ranks=1, budget=10_000)
    scale = max(float(grad.abs().max()) for grad in alone.values())
    for ranks, budget in ((2, 10_000), (2, 30)):
        shared = gradients(tmp_path, ranks, budget)
        for name, grad in alone.items():
            torch.testing.assert_close(shared[name], grad, atol=1e-5 * scale, rtol=1e-5)
