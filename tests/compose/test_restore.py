"""An installation burns down, and another one goes on from its backup, as docs/deploy.md says."""

import json
from pathlib import Path

import pytest

from services.cli.host.demo import upload_sums
from tests.compose.installation import Installation

pytestmark = pytest.mark.timeout(1800)

STEPS = 40


def test_a_run_goes_on_in_a_new_installation(running: Installation, tmp_path: Path) -> None:
    api = running.api()
    upload_sums(api)
    config: dict[str, object] = {"training": {"max_steps": STEPS}}
    first = api.post("/v1/runs", json={"recipe": "demo_sft", "config": config})["id"]
    assert running.ended(first)["state"] == "succeeded"
    config = {
        "model": {"path": f"run:{first}"},
        "algorithm": {"prompts_per_step": 16, "samples_per_prompt": 4},
        "training": {"max_steps": STEPS, "checkpoint_every": 5},
        "evaluation": {"rows": 16},
    }
    run = api.post("/v1/runs", json={"recipe": "demo_grpo", "config": config})["id"]
    running.reaches(run, 7)

    running.executed("gateway", "headrace", "backup", "/data/all.tar")
    running.compose("cp", "gateway:/data/all.tar", str(tmp_path))
    running.down()
    running.up()
    running.put(tmp_path / "all.tar", "gateway", "/data/all.tar")
    running.executed("gateway", "headrace", "restore", "/data/all.tar")

    record = running.ended(run)
    assert (record["state"], record["step"]) == ("succeeded", STEPS), record["reason"]
    audit = json.loads(running.executed("gateway", "headrace", "audit", run, "--json"))
    assert (audit["lost"], audit["duplicated"]) == (0, 0)
