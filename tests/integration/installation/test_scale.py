"""`headrace scale` while a run goes on: workers join and leave, and nothing is lost by it."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.installation.conftest import Installation
from tests.integration.launch.conditions import eventually


def scale(installation: Installation, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", "scale", *arguments],
        env=os.environ | {"HEADRACE_DATA": str(installation.stack.data)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def workers(installation: Installation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = installation.api.get("/v1/workers")["workers"]
    return found


def at_work(installation: Installation, run: str) -> int:
    """Workers that have sampled something for `run`."""
    return sum(w["run"] == run and w["tokens_total"] > 0 for w in workers(installation))


def test_workers_join_and_leave_a_running_run(installation: Installation) -> None:
    run = installation.submit(
        data={"dataset": "sums"},
        training={"max_steps": 2000, "checkpoint_every": 20},
        # One group at a time, or the workers and the learner would take all cores.
        rollout={"max_staleness": 4, "groups_in_flight": 1},
    )
    eventually(lambda: at_work(installation, run) == 1)

    more = scale(installation, "rollout=3", "--json")

    assert more.returncode == 0, more.stdout + more.stderr
    assert json.loads(more.stdout) == {
        "rollout": 3,
        "joined": ["rollout-1", "rollout-2"],
        "left": [],
    }
    eventually(lambda: at_work(installation, run) == 3)
    assert {"rollout-0", "rollout-1", "rollout-2"} <= installation.stack.processes.keys()

    why = installation.api.get(f"/v1/runs/{run}/why")
    assert why["cause"] in ("none", "rollout", "learner"), why["words"]
    assert (len(why["workers"]), why["learner"]["pid"] is not None) == (3, True)
    assert 0 <= why["last_step_seconds_ago"] < 100

    fewer = scale(installation, "rollout=1")

    assert fewer.returncode == 0, fewer.stderr
    assert fewer.stdout.splitlines() == [
        "rollout-1, rollout-2: told to leave, leases are released",
        "1 rollout worker on this machine",
    ]
    assert len(workers(installation)) == 1
    assert not {"rollout-1", "rollout-2"} & installation.stack.processes.keys()
    before = installation.api.get(f"/v1/runs/{run}")["step"]
    eventually(lambda: installation.api.get(f"/v1/runs/{run}")["step"] > before)

    installation.api.post(f"/v1/runs/{run}/cancel")
    record, _ = installation.ended(run)
    assert record["state"] == "cancelled", record["reason"]
    audit = installation.api.get(f"/v1/runs/{run}/audit")
    assert (audit["lost"], audit["duplicated"], audit["dropped"]) == (0, 0, {})
    assert audit["trained"] == record["step"] * 4
    assert audit["max_staleness_seen"] <= 4


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("rollout=-1", "error: rollout=-1: '-1' is not a number of workers"),
        ("rollout=two", "error: rollout=two: 'two' is not a number of workers"),
        ("rollout=1000", "error: rollout=1000: the number of workers on this machine is from 0"),
        ("learner=2", "error: 'learner' cannot be scaled: only rollout workers come and go."),
        ("rollout", "error: 'rollout': say how many, like rollout=2"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    installation: Installation, asked: str, said: str
) -> None:
    refused = scale(installation, asked)
    assert refused.returncode == 1
    assert refused.stderr.startswith(said)


def test_without_headrace_up_scale_names_the_folder_it_checked(installation: Installation) -> None:
    refused = scale(installation, "rollout=2", "--data", "/nowhere")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: no `headrace up` runs on the data folder /nowhere")
