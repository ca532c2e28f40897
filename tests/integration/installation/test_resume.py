"""A run that is cancelled in the middle goes on as another one, at its step, with the requests that
a run without a break makes."""

import json
import os
import subprocess
import sys
from typing import Any

from headrace.cli.events import Event
from tests.integration.installation.conftest import Installation

GROUPS, MORE = 4, 3
RUN: dict[str, Any] = {
    "data": {"dataset": "sums"},
    "sampling": {"seed": 5},
    "rollout": {"max_staleness": 0},
}


def training(max_steps: int) -> dict[str, int]:
    return {"max_steps": max_steps, "checkpoint_every": 100}


def headrace(installation: Installation, *arguments: str) -> str:
    """Return the output of a command."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "headrace", *arguments),
            *("--gateway", installation.stack.gateway_url, "--json"),
        ],
        env=os.environ | {"HEADRACE_DATA": str(installation.stack.data)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_accounted(installation: Installation, run: str, steps: int) -> None:
    audit = json.loads(headrace(installation, "audit", run))
    assert (audit["lost"], audit["duplicated"]) == (0, 0), audit["problems"]
    assert audit["trained"] == steps * GROUPS
    assert audit["tasks"] == audit["trained"] + sum(audit["dropped"].values()) + audit["in_flight"]
    assert audit["max_staleness_seen"] == 0


def by_step(lines: list[str]) -> list[list[tuple[tuple[int, ...], int]]]:
    """Prompt and seed of each request, once, by the step that it was for. The requests of a step
    are made together, in no fixed order."""
    every = [json.loads(line) for line in lines]
    once = list(dict.fromkeys((tuple(one["prompt"]), one["seed"]) for one in every))
    return [sorted(once[i : i + GROUPS]) for i in range(0, len(once), GROUPS)]


def test_a_resumed_run_goes_on_at_its_step_with_the_requests_of_a_straight_one(
    installation: Installation,
) -> None:
    def new_requests(before: int) -> list[str]:
        return installation.requests.read_text().splitlines()[before:]

    before = len(installation.requests.read_text().splitlines())
    first = installation.submit(training=training(1000), **RUN)
    for event in installation.api.events(first):
        if isinstance(event, Event) and event.kind == "step" and event.data["step"] == 3:
            headrace(installation, "cancel", first)
    cancelled = installation.api.get(f"/v1/runs/{first}")
    assert cancelled["state"] == "cancelled"
    step = cancelled["committed_step"]
    assert 3 <= step == cancelled["step"] < 1000
    assert_accounted(installation, first, step)

    headrace(installation, "resume", first, "--set", f"training.max_steps={step + MORE}", "--watch")

    runs = installation.api.get("/v1/runs")["runs"]
    second = next(run for run in runs if run["resume_from"] == first)
    assert second["state"] == "succeeded"
    rows = installation.api.get(f"/v1/runs/{second['id']}/metrics")["metrics"]
    assert [row["step"] for row in rows if "staleness/max" in row] == [
        step + n for n in range(1, MORE + 1)
    ]
    assert_accounted(installation, second["id"], step + MORE)
    resumed = new_requests(before)

    straight, _ = installation.ended(installation.submit(training=training(step + MORE), **RUN))

    assert straight["state"] == "succeeded", straight["reason"]
    requests = new_requests(before + len(resumed))
    assert len(requests) == (step + MORE) * GROUPS
    assert len(set(requests)) == len(requests)
    assert by_step(resumed) == by_step(requests)
