"""The learner's pods meet by the chart's own command, and meet again after a rank died.

Two real torchrun agents on one machine."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from services.launch.options import free_ports
from services.runtime.process import die_with
from tests.unit.deploy.test_chart import EVERYTHING, environment, of_kind

RANK = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
met = torch.ones(1)
dist.all_reduce(met)
died = sys.argv[1]
if dist.get_rank() == 1 and not os.path.exists(died):
    open(died, "w").close()
    os._exit(1)
dist.all_reduce(torch.ones(1))
# One write: the ranks share a pipe.
os.write(1, f"rank {dist.get_rank()} of {int(met)}\\n".encode())
"""


@pytest.mark.timeout(240)
def test_learner_pods_meet_again_after_a_rank_died(tmp_path: Path) -> None:
    (job,) = of_kind("Job", EVERYTHING).values()
    (container,) = job["spec"]["template"]["spec"]["containers"]
    shell, flag, command = container["args"]
    (port,) = free_ports("127.0.0.1", 1)
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    # As in the cluster, but for the name of the first pod and what the ranks do.
    command = re.sub(r'"\$\{LEARNER_JOB\}-0\.headrace-learner:29400"', f"127.0.0.1:{port}", command)
    command = command.replace("exec python", f"exec {shlex.quote(sys.executable)}")
    command = command.replace("--nnodes 4", "--nnodes 2").replace("per-node gpu", "per-node 1")
    command = command.replace("-m learner", f"--local-addr 127.0.0.1 {script} {tmp_path / 'died'}")
    given = {name: value for name, value in environment(container).items() if "TORCH" in name}
    nodes = [
        subprocess.Popen(
            [shell, flag, command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | given | {"JOB_COMPLETION_INDEX": str(index), "OMP_NUM_THREADS": "1"},
            preexec_fn=die_with(os.getpid()),
        )
        for index in (1, 0)
    ]
    output = [node.communicate(timeout=200) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "".join(err for _, err in output)
    assert (tmp_path / "died").exists()
    lines = "".join(out for out, _ in output).splitlines()
    assert sorted(lines) == ["rank 0 of 2", "rank 1 of 2"]
