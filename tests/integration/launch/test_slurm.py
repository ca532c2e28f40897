"""`deploy/slurm/headrace.sbatch` on one node, with the real processes. Slurm itself cannot be had
without root: three small commands stand where its own would."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.death_signal import die_with
from services.launch.data_folder import DataFolder
from services.launch.options import LaunchError
from tests.chaos.victims import command_line
from tests.integration.launch.conditions import eventually
from tests.ports import own_ports

ROOT = Path(__file__).parents[3]
BATCH = ROOT / "deploy" / "slurm" / "headrace.sbatch"
# srun starts the step's tasks, and scancel signals every process of the step, as Slurm's do.
COMMANDS = {
    "scontrol": "echo 127.0.0.1",
    "srun": 'shift; SLURM_NODEID=0 SLURMD_NODENAME=127.0.0.1 setsid "$@" & echo $! >"$STEP"; wait',
    "scancel": 'kill "-${1#--signal=}" -- "-$(cat "$STEP")"',
}

pytestmark = pytest.mark.timeout(300)


class Job:
    """One job, as sbatch would start it."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.data, self.log = data, folder / "job.log"
        commands = folder / "bin"
        commands.mkdir(parents=True)
        for name, text in COMMANDS.items():
            (commands / name).write_text(f"#!/bin/bash\n{text}\n")
            (commands / name).chmod(0o755)
        # The virtual environment of this test run, where `make setup` puts that of a checkout.
        home = folder / "home"
        home.mkdir()
        (home / ".venv").symlink_to(sys.prefix)
        gateway, reward, redis = own_ports("127.0.0.1", 3)
        self.url = f"http://127.0.0.1:{gateway}"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["bash", str(BATCH)],
                stdout=log,
                stderr=log,
                preexec_fn=die_with(os.getpid()),
                env=clean
                | {
                    "PATH": f"{commands}:{clean['PATH']}",
                    "PYTHONPATH": str(ROOT),
                    "STEP": str(folder / "step"),
                    "SLURM_SUBMIT_DIR": str(home),
                    "SLURM_JOB_NODELIST": "node",
                    "SLURM_JOB_NUM_NODES": "1",
                    "SLURM_JOB_ID": "7",
                    "GATEWAY_PORT": str(gateway),
                    "REWARD_PORT": str(reward),
                    "REDIS_PORT": str(redis),
                    "HEADRACE_DATA": str(data),
                    "LOCK_SECONDS": "1",
                    # The build for CPUs ignores these devices.
                    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6",
                    "HEADRACE_REWARD_GPUS": "3",
                    "HEADRACE_LEARNER_GPUS": "1",
                    "HEADRACE_GPUS_PER_WORKER": "2",
                },
            )

    @property
    def key(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {(self.data / 'api-key').read_text().strip()}"}

    def said_by(self, process: str) -> str:
        return (self.data / "logs" / f"{process}.log").read_text()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    one = Job(tmp_path, tmp_path / "data of a job")
    yield one
    one.process.send_signal(signal.SIGTERM)
    one.process.wait(60)
    # Slurm kills all that is left of a step; a job that has just begun cannot stop it in order.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(int((tmp_path / "step").read_text()), signal.SIGKILL)


def test_the_slurm_script_is_valid_bash() -> None:
    assert subprocess.run(["bash", "-n", BATCH], check=False).returncode == 0
    declared = re.findall(r"^#SBATCH --([a-z-]+)", BATCH.read_text(), re.MULTILINE)
    assert {"nodes", "gpus-per-node", "signal", "output"} <= set(declared)


def test_a_job_serves_and_stops_in_order(job: Job) -> None:
    def ready() -> bool:
        try:
            return httpx.get(f"{job.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    eventually(ready, within=120)
    assert httpx.get(f"{job.url}/v1/workers").status_code == 401, "others reach it: it has a key"

    def works() -> bool:
        workers = httpx.get(f"{job.url}/v1/workers", headers=job.key).json()["workers"]
        return len(workers) == 2 and "learner ready" in job.said_by("learner-0")

    eventually(works, within=120)
    assert sorted(devices_of(job.data, "rollout")) == ["1,2", "4,5"]
    assert devices_of(job.data, "learner") == ["0"]
    # The rank, and its parent.
    assert devices_of(job.data, "learner.supervise.rank_server") == ["0", "0"]
    assert "1 of the 6 GPUs of node 127.0.0.1 are idle: a worker needs 2" in job.log.read_text()
    password = (job.data / "redis" / "password").read_text().strip()
    assert password not in job.log.read_text()
    assert (job.data / "redis" / "slurm.conf").stat().st_mode & 0o077 == 0

    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(60) == 0
    assert "is now ready to exit" in job.said_by("redis")
    assert "Finished server process" in job.said_by("gateway")
    logs = job.data / "logs"
    ended = {name: (logs / f"{name}.log").stat().st_mtime for name in ("redis", "learner-0")}
    assert ended["learner-0"] <= ended["redis"], "who needs Redis ends before it"
    assert not environments(job.data), "no process is left"


def test_a_job_that_is_stopped_while_it_starts_leaves_no_process(job: Job) -> None:
    eventually(lambda: (job.data / "logs" / "redis.log").exists())
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(60) == 0
    assert not environments(job.data)


def test_one_job_or_headrace_up_at_a_time_works_on_a_folder(job: Job, tmp_path: Path) -> None:
    lock = job.data / "up.lock"
    eventually(lambda: lock.exists() and lock.read_text() == "Slurm job 7\n")

    second = Job(tmp_path / "second", job.data)
    assert second.process.wait(100) == 2
    assert f"{job.data} is in use by Slurm job 7" in second.log.read_text()
    with pytest.raises(LaunchError, match="is in use by Slurm job 7"), DataFolder(job.data):
        pass


def environments(data: Path) -> dict[int, list[str]]:
    """Return the environment of each process with this data folder, by process id."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            environment = (folder / "environ").read_text().split("\0")
        except OSError:
            continue
        if f"HEADRACE_DATA={data}" in environment:
            found[int(folder.name)] = environment
    return found


def devices_of(data: Path, module: str) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each `python -m module`."""
    return [
        variable.partition("=")[2]
        for pid, environment in environments(data).items()
        if f"\0-m\0{module}\0" in command_line(pid)
        for variable in environment
        if variable.startswith("CUDA_VISIBLE_DEVICES=")
    ]
