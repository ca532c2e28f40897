"""A whole installation whose Redis has lost a commit: it is not started, and goes on after
`headrace recover`."""

import json
import os
import subprocess
import sys

import pytest

from services.launch.redis_trial import increments
from services.recovery.record_copies import newest_commit
from tests.integration.installation.conftest import RUN, SCRIPTED
from tests.integration.installation.test_reboot import Box, box
from tests.integration.launch.conditions import eventually

__all__ = ["box"]
pytestmark = pytest.mark.timeout(300)

STEPS = 16


def headrace(box: Box, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments, "--data", str(box.data)],
        env=kept | SCRIPTED | {"HEADRACE_API_KEY": "hr-box"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_lost_commit_stops_the_start_and_the_run_goes_on_after_recover(box: Box) -> None:
    box.up()
    box.add_sums()
    first = box.submit("demo_sft", training={"max_steps": 3, "rows_per_step": 8})
    assert box.ended(first)["state"] == "succeeded"
    training = {"max_steps": STEPS, "checkpoint_every": 3}
    config = RUN | {"model": {"path": f"run:{first}"}, "training": training}
    run = box.submit("demo_grpo", **config)

    def committed() -> int:
        return int(box.api.get(f"/v1/runs/{run}")["committed_step"])

    eventually(lambda: committed() >= 3)
    file = increments(box.data / "redis")[-1]
    cut = file.stat().st_size

    def is_copied() -> bool:
        # The copy, which proves the loss, is written after Redis has the commit.
        newest = newest_commit(box.data, run)
        return newest is not None and newest.step >= 6

    eventually(is_copied)
    box.power_cut()
    os.truncate(file, cut)

    up = headrace(box, "up", "--port", "0", "--reward-port", "0", "--redis-port", "0")
    assert up.returncode == 1
    said = " ".join((up.stdout + up.stderr).split())
    assert "has lost acknowledged writes" in said
    assert f"({run}) has a checkpoint of step" in said
    assert "headrace recover" in said

    recovered = headrace(box, "recover", "--yes")
    assert recovered.returncode == 0, recovered.stderr
    assert f"({run}) goes on from step " in recovered.stdout

    box.up()
    record = box.ended(run)
    assert (record["state"], record["step"]) == ("succeeded", STEPS), record["reason"]
    audit = box.api.get(f"/v1/runs/{run}/audit")
    assert (audit["lost"], audit["duplicated"], audit["in_flight"]) == (0, 0, 0)
    assert audit["trained"] == STEPS * 4
    assert "has a checkpoint of step" in audit["unknown"][0]
    lines = (box.data / f"runs/{run}/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, STEPS + 1))
