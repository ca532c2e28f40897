"""The standard variables of a torch job: which rank this process is, and where the ranks meet.

Must not import torch: `python -m learner` reads the variables first.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from learner.settings import EXIT_CRASH, RENDEZVOUS
from services.settings import EXIT_SETTINGS

PORT = 29500
"""torch's own default for MASTER_PORT."""
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")


class JobError(Exception):
    """The ranks of a job cannot train together. The message names the variable, the value and the
    way out."""

    code = EXIT_SETTINGS


class RanksMissing(JobError):
    """Ranks did not come in time. They may come at the next start."""

    code = EXIT_CRASH


@dataclass(frozen=True)
class JobRank:
    """This process among the ranks of its job."""

    rank: int
    size: int
    local: int
    """The rank's number on its host."""
    local_size: int | None
    """Ranks on this host; None if the engine does not say."""
    address: str
    """MASTER_ADDR: the host of rank 0, as all ranks reach it. Empty for a job of one rank."""
    port: int
    start: str
    """Distinguishes the starts of a torchrun that starts its ranks again (--max-restarts)."""
    agent: bool
    """Whether torchrun has opened the store. Otherwise rank 0 opens it."""

    @property
    def variables(self) -> dict[str, str]:
        """The standard variables, for libraries that read them."""
        names = {"RANK": self.rank, "WORLD_SIZE": self.size, "LOCAL_RANK": self.local}
        if self.local_size is not None:
            names["LOCAL_WORLD_SIZE"] = self.local_size
        place = {"MASTER_ADDR": self.address, "MASTER_PORT": str(self.port)}
        return {name: str(value) for name, value in names.items()} | place


def job_rank(environment: Mapping[str, str]) -> JobRank | None:
    """Return this process' place in its job. Return None if the process is not a rank, or if our
    own supervisor has started it. Raises JobError if the variables make no sense."""
    if RENDEZVOUS in environment:
        return None
    given = {**_of_slurm(environment), **environment}
    if "RANK" not in given and "WORLD_SIZE" not in given:
        return None
    for name, other in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if name not in given:
            raise JobError(
                f"{other} is {given[other]}, and {name} is not set: start the ranks with torchrun "
                f"or srun, or unset {other} for a learner on this host alone"
            )
    numbers = {name: _number(name, given[name]) for name in NAMES if given.get(name)}
    rank, size, local = numbers["RANK"], numbers["WORLD_SIZE"], numbers.get("LOCAL_RANK", 0)
    if rank >= size:
        raise JobError(
            f"RANK is {rank}, and WORLD_SIZE is {size}: ranks are numbered from 0 to {size - 1}"
        )
    address = given.get("MASTER_ADDR", "")
    if size > 1 and not address:
        raise JobError(
            f"WORLD_SIZE is {size}, and MASTER_ADDR is not set: name the host of rank 0, as all "
            "hosts of the learner reach it"
        )
    port = numbers.get("MASTER_PORT", PORT)
    if not 0 < port < 1 << 16:
        raise JobError(f"MASTER_PORT is {port}: a port is a number from 1 to 65535")
    return JobRank(
        rank,
        size,
        local,
        numbers.get("LOCAL_WORLD_SIZE"),
        address,
        port,
        f"{given.get('TORCHELASTIC_RUN_ID', '')}/{given.get('TORCHELASTIC_RESTART_COUNT', '0')}",
        given.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise JobError(f"{name} is {text[:40]!r}: it must be a whole number, 0 or more")
    return int(text)


def _of_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a task that srun has started with others. In a step of one
    task our own supervisor starts the ranks, so it is no such task."""
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NODELIST")
    values = [environment.get(name, "") for name in names]
    if not all(values) or values[1] == "1":
        return {}
    rank, size, local, hosts = values
    return {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local,
        "MASTER_ADDR": first_host(hosts),
    }


def first_host(hosts: str) -> str:
    """Return the first host of a Slurm list, such as `gpu01` of `gpu[01-04,07],cpu2`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else "")
