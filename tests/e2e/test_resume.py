"""A run that is cancelled in the middle goes on as another one, at its step, and loses nothing."""

import json
import subprocess
import sys
from typing import Any

import pytest

from services.cli.client import Gateway
from services.contracts.events import Event

pytestmark = pytest.mark.timeout(400)

GROUPS, ETA, MORE = 8, 1, 3


def submitted(api: Gateway, recipe: str, config: dict[str, Any]) -> str:
    run: str = api.post("/v1/runs", json={"recipe": recipe, "config": config})["id"]
    return run


def headrace(api: Gateway, *arguments: str) -> tuple[int, str]:
    """The command, as a user types it: exit code and what it printed."""
    command = [sys.executable, "-m", "services.cli", *arguments, "--gateway", api.url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def audited(api: Gateway, run: str) -> dict[str, Any]:
    code, said = headrace(api, "audit", run)
    found: dict[str, Any] = json.loads(said)
    assert (code, found["lost"], found["duplicated"]) == (0, 0, 0), found["problems"]
    ended = found["trained"] + sum(found["dropped"].values())
    assert found["drawn"] == ended + found["in_flight"]
    assert found["max_staleness_seen"] <= ETA
    return found


def test_a_cancelled_run_goes_on_at_its_step_and_loses_nothing(api: Gateway) -> None:
    small = {"training": {"max_steps": 20, "rows_per_step": 32}}
    model = submitted(api, "demo_midtrain", small)
    for _ in api.events(model):
        pass
    first = submitted(
        api,
        "demo_grpo",
        {
            "model": {"path": f"run:{model}"},
            "algorithm": {"prompts_per_step": GROUPS, "samples_per_prompt": 4},
            "rollout": {"max_staleness": ETA},
            "training": {"max_steps": 1000, "checkpoint_every": 100},
            "evaluation": None,
        },
    )
    asked = False
    for event in api.events(first):
        if isinstance(event, Event) and event.kind == "step" and not asked:
            asked = bool(event.data["step"] >= 3)
            if asked:
                headrace(api, "cancel", first)
    ended = api.get(f"/v1/runs/{first}")
    assert ended["state"] == "cancelled"
    step = ended["committed_step"]
    assert 3 <= step == ended["step"] < 1000
    found = audited(api, first)
    assert found["trained"] == step * GROUPS

    longer = f"training.max_steps={step + MORE}"
    code, _ = headrace(api, "resume", first, "--set", longer, "--watch")
    assert code == 0
    second = next(run for run in api.get("/v1/runs")["runs"] if run["resume_from"] == first)
    assert second["state"] == "succeeded"
    rows = api.get(f"/v1/runs/{second['id']}/metrics")["metrics"]
    trained = [row["step"] for row in rows if "staleness/max" in row]
    assert trained == [step + i for i in range(1, MORE + 1)]
    again = audited(api, second["id"])
    assert again["trained"] == (step + MORE) * GROUPS
    assert again["in_flight"] == 0
