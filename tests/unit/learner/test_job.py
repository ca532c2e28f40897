"""Ranks that an engine has started: their variables, their meeting, and the checks of hosts."""

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from learner.distributed import Ranks
from learner.job import checks, meeting
from learner.job.meeting import Hello, code_version, interface_towards, meet
from learner.job.variables import JobError, JobRank, first_host, job_rank
from learner.settings import EXIT_CRASH, RENDEZVOUS
from services.settings import EXIT_SETTINGS
from tests.ports import own_ports
from tests.unit.learner.threads import on_ranks

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.5",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-08],cpu1",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, JobRank(3, 4, 1, 2, "10.0.0.5", 29400, "none/0", True)),
        (SRUN, JobRank(5, 8, 1, None, "gpu07", 29500, "/0", False)),
        (
            SRUN | {"MASTER_ADDR": "10.0.0.7"},
            JobRank(5, 8, 1, None, "10.0.0.7", 29500, "/0", False),
        ),
        ({"RANK": "0", "WORLD_SIZE": "1"}, JobRank(0, 1, 0, None, "", 29500, "/0", False)),
        (SRUN | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        (TORCHRUN | {RENDEZVOUS: "/proc/self/fd/9"}, None),
        ({"MASTER_ADDR": "10.0.0.5"}, None),
    ],
)
def test_a_rank_reads_the_variables_of_its_engine(
    environment: dict[str, str], expected: JobRank | None
) -> None:
    assert job_rank(environment) == expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"RANK": "4"}, "RANK is 4, and WORLD_SIZE is 4: ranks are numbered from 0 to 3"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two': it must be a whole number, 0 or more"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"RANK": None}, "WORLD_SIZE is 4, and RANK is not set: start the ranks with torchrun"),
        ({"WORLD_SIZE": None}, "RANK is 3, and WORLD_SIZE is not set"),
        ({"MASTER_ADDR": None}, "WORLD_SIZE is 4, and MASTER_ADDR is not set: name the host"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is 65536: a port is a number from 1 to 65535"),
    ],
)
def test_variables_that_make_no_sense_are_named(change: dict[str, Any], said: str) -> None:
    given = {name: value for name, value in (TORCHRUN | change).items() if value is not None}
    with pytest.raises(JobError) as error:
        job_rank(given)
    assert said in str(error.value)
    assert error.value.code == EXIT_SETTINGS


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("gpu[01-04,07],cpu2", "gpu01"),
        ("r1,gpu[01-04]", "r1"),
        ("rack[2-3]n[5,7]-ib,x", "rack2n5-ib"),
    ],
)
def test_the_first_host_of_a_slurm_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


# --- the meeting ---------------------------------------------------------------------------------


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return own_ports("127.0.0.1", 1)[0]


def rank(number: int, size: int, port: int, address: str = "127.0.0.1") -> JobRank:
    return JobRank(number, size, 0, None, address, port, "/0", False)


def met(*ranks: JobRank, **hello: Callable[[JobRank], Any]) -> list[JobError | None]:
    """Have the ranks meet as threads. Return the error of each. `hello`: what each says."""
    stop = threading.Event()

    def says(job: JobRank, pool: str) -> Hello:
        said: dict[str, Any] = {"host": "h", "size": job.size, "version": "1", "pool": pool}
        changes = {name: value(job) for name, value in hello.items()}
        return Hello(**(said | {"device": "cpu"} | changes))

    def one(job: JobRank) -> JobError | None:
        try:
            stores.append(meet(job, "default", stop))
        except JobError as error:
            return error
        return None

    stores: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(ranks)) as pool:
        patch.setattr(meeting, "described", says)
        return list(pool.map(one, ranks))


def test_ranks_that_fit_meet_and_know_how_many_are_on_their_host(port: int) -> None:
    assert met(*(rank(n, 3, port) for n in range(3))) == [None] * 3
    assert os.environ["LOCAL_WORLD_SIZE"] == "3"
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"


@pytest.mark.parametrize(
    ("hello", "said"),
    [
        (
            {"size": lambda job: 2 + 2 * job.rank},
            "WORLD_SIZE is 2 at rank 0 (h) and 4 at rank 1 (h)",
        ),
        (
            {"version": lambda job: f"0.{job.rank}"},
            "Headrace is 0.0 at rank 0 (h) and 0.1 at rank 1",
        ),
        ({"pool": lambda job: f"p{job.rank}"}, "the pool is 'p0' at rank 0 (h) and 'p1' at rank 1"),
        ({"device": lambda job: ["cuda", "cpu"][job.rank]}, "torch computes on cuda at rank 0 (h)"),
        ({"problem": lambda job: "no GPU" * job.rank}, "rank 1 on h: no GPU"),
    ],
)
def test_all_ranks_hear_why_they_do_not_fit(port: int, hello: Any, said: str) -> None:
    errors = met(rank(0, 2, port), rank(1, 2, port), **hello)
    for error in errors:
        assert error is not None
        assert said in str(error)
        assert error.code == EXIT_SETTINGS


def test_a_missing_rank_is_named_and_may_come_at_the_next_start(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "MEET_SECONDS", 1.0)
    for error in met(rank(0, 3, port), rank(2, 3, port)):
        assert error is not None
        assert (
            f"ranks 1 of WORLD_SIZE 3 did not come to MASTER_ADDR 127.0.0.1, MASTER_PORT {port}"
            in str(error)
        )
        assert error.code == EXIT_CRASH


def test_two_ranks_of_one_number_are_refused(port: int) -> None:
    errors = met(rank(0, 3, port), rank(1, 3, port), rank(1, 3, port), rank(2, 3, port))
    assert [str(error) for error in errors if error] == [
        "two processes of this job have RANK 1: each needs its own"
    ]


@pytest.mark.parametrize(
    ("number", "address", "said"),
    [
        (1, "127.0.0.1", "nobody answers at MASTER_ADDR 127.0.0.1, MASTER_PORT "),
        (1, "no-such-host.invalid", "no host has that name"),
        (0, "192.0.2.1", "rank 0 cannot listen at MASTER_ADDR 192.0.2.1"),
    ],
)
def test_an_address_that_nobody_has_is_named(
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    number: int,
    address: str,
    said: str,
) -> None:
    monkeypatch.setattr(meeting, "MEET_SECONDS", 1.0)
    (error,) = met(rank(number, 2, port, address))
    assert said in str(error)
    # torch prints no stack before our sentence.
    assert "c10d" not in capfd.readouterr().err


def test_the_store_listens_on_the_given_address_alone(port: int) -> None:
    store = meeting._opened(rank(0, 2, port, "127.0.0.3"), time.monotonic() + 10, threading.Event())
    socket.create_connection(("127.0.0.3", port), 5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    del store


def test_a_version_names_code_and_torch() -> None:
    assert code_version() == code_version()
    assert "torch 2." in code_version()
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("::1") is None


# --- the hosts ------------------------------------------------------------------------------------


def said_by(size: int, check: Callable[[Ranks], None]) -> list[str]:
    """Return the message of JobError on each rank, or ''."""

    def one(ranks: Ranks) -> str:
        try:
            check(ranks)
        except JobError as error:
            return str(error)
        return ""

    return on_ranks(size, one)


def test_clocks_that_are_apart_are_refused_on_all_ranks() -> None:
    clocks = (1000.0, 1009.0, 1001.0)
    assert (
        said_by(3, lambda ranks: checks._check_clocks(ranks, lambda: clocks[ranks.rank]))
        == [""] * 3
    )
    clocks = (1000.0, 1075.0, 1001.0)
    host = socket.gethostname()
    expected = f"the clock of {host} is 75 s ahead of the clock of {host}: set them by NTP"
    for said in said_by(3, lambda ranks: checks._check_clocks(ranks, lambda: clocks[ranks.rank])):
        assert said.startswith(expected)


def test_a_folder_that_is_not_shared_is_refused_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "SHARE_SECONDS", 0.2)
    roots = [tmp_path / "a", tmp_path / "a", tmp_path / "b"]
    (tmp_path / "b").mkdir()

    def check(ranks: Ranks) -> None:
        checks._check_folder(ranks, roots[ranks.rank], f"host{ranks.rank}")

    assert said_by(2, check) == ["", ""]
    expected = (
        f"HEADRACE_DATA {roots[2]} on host2 is not the folder that rank 0 has on host0: all hosts "
        "of a learner need to share one data folder"
    )
    assert said_by(3, check) == [expected] * 3
    # The probe is removed.
    assert not list((tmp_path / "a").iterdir())
