"""A real Slurm on this machine: munge, a controller, and the nodes `one` and `two`."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.death_signal import die_with
from tests.ports import own_ports

ROOT = Path(__file__).parents[2]
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
KillWait=20
SlurmdTimeout=10
ReturnToService=2
MailProg=/bin/true
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs=8
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={two} CPUs=8
PartitionName=spot Nodes=one,two Default=YES PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=one,two PriorityTier=2 PreemptMode=OFF
"""


class Slurm:
    """The daemons, and the commands of a user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = ("controller", "one", "two", "gateway", "redis", "master", "reward")
        self.ports = dict(zip(names, own_ports("127.0.0.1", len(names)), strict=True))
        (folder / "state").mkdir()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        config = folder / "slurm.conf"
        config.write_text(CONFIG.format(host=socket.gethostname(), folder=folder, **self.ports))
        # The virtual environment of this test run, where `make setup` puts that of a checkout.
        home = folder / "home"
        home.mkdir()
        (home / ".venv").symlink_to(sys.prefix)
        (home / "deploy").symlink_to(ROOT / "deploy")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HEADRACE_", "SLURM_"))}
        self.data = folder / "data"
        self.environment = clean | {
            "SLURM_CONF": str(config),
            "PYTHONPATH": str(ROOT),
            "HEADRACE_HOME": str(home),
            "HEADRACE_DATA": str(self.data),
            "GATEWAY_PORT": str(self.ports["gateway"]),
            "REDIS_PORT": str(self.ports["redis"]),
            "REWARD_PORT": str(self.ports["reward"]),
            "MASTER_PORT": str(self.ports["master"]),
            "OMP_NUM_THREADS": "1",
        }

    def start(self) -> None:
        key, at = self.folder / "munge.key", f"--socket={self.folder}/munge.socket"
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("pid", "seed", "log")]
        self._daemon("munge", "munged", "-F", "--force", f"--key-file={key}", at, *files)
        self._until((self.folder / "munge.socket").exists, "munged")
        self._daemon("slurmctld", "slurmctld", "-D")
        for node in ("one", "two"):
            self.start_node(node)
        self._until(
            lambda: self.run("sinfo", "-N", "-h", "-p", "spot", "-o", "%t").split() == ["idle"] * 2,
            "nodes",
        )

    def start_node(self, node: str) -> None:
        (self.folder / f"spool-{node}").mkdir(exist_ok=True)
        self._daemon(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """End a node as a power cut would: its daemon, and every process of its jobs."""
        self._daemons.pop(node).kill()
        for folder in Path("/proc").iterdir():
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = f"HEADRACE_DATA={self.data}".encode() in environment
            if ours and f"SLURMD_NODENAME={node}".encode() in environment:
                os.kill(int(folder.name), 9)

    def stop(self) -> None:
        if "slurmctld" in self._daemons:
            subprocess.run(["scancel", "--full", "--user=root"], env=self.environment, check=False)
            deadline = time.monotonic() + 40
            while self.run("squeue", "-h") and time.monotonic() < deadline:
                time.sleep(1)
        for node in ("one", "two"):
            if node in self._daemons:
                self.kill_node(node)
        for daemon in reversed(self._daemons.values()):
            daemon.kill()
            daemon.wait()

    def run(self, *command: str) -> str:
        """Return the output of a command of Slurm."""
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
        return done.stdout.strip()

    def submit(self, file: str, *options: str) -> str:
        """`sbatch` one of our files. Returns the job's id."""
        script = str(ROOT / "deploy" / "slurm" / file)
        return self.run("sbatch", "--parsable", *options, script)

    def jobs(self) -> dict[str, str]:
        """The state of each job and array task that has not ended."""
        lines = self.run("squeue", "-h", "--array", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def output(self, name: str) -> str:
        return "".join(
            file.read_text() for file in sorted(self.folder.glob(f"headrace-{name}-*.log"))
        )

    def _daemon(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command,
                env=self.environment,
                stdout=log,
                stderr=log,
                preexec_fn=die_with(os.getpid()),
            )

    def _until(self, condition: object, what: str) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                if condition():  # type: ignore[operator]
                    return
            except AssertionError:
                pass
            assert time.monotonic() < deadline, f"{what}: see {self.folder}"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(
            f"needs root and Slurm ({', '.join(missing) or 'present'} missing): "
            "apt-get install slurm-wlm munge"
            if missing
            else "needs root: slurmd starts jobs as their user"
        )
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
