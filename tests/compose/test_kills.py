"""A run while containers come, go and are killed: nothing is lost, nothing is trained twice."""

import json

import pytest

from services.cli.host.demo import upload_sums
from tests.compose.installation import Installation, until

pytestmark = pytest.mark.timeout(3600)

VICTIMS = ("rollout-cpu-1", "reward-1", "learner-cpu-1", "gateway-1", "redis-1")
STEPS = 300
"""More than are trained while everything is killed once."""


@pytest.fixture
def model(running: Installation) -> str:
    """The demo's model after a few steps of supervision."""
    api = running.api()
    upload_sums(api)
    run = api.post(
        "/v1/runs", json={"recipe": "demo_sft", "config": {"training": {"max_steps": 20}}}
    )["id"]
    assert running.ended(run)["state"] == "succeeded"
    return f"run:{run}"


def test_a_run_survives_whatever_happens_to_containers(running: Installation, model: str) -> None:
    config = {
        "model": {"path": model},
        "algorithm": {"prompts_per_step": 16, "samples_per_prompt": 4},
        "rollout": {"lease_seconds": 10},
        "training": {"max_steps": STEPS, "checkpoint_every": 5},
        "evaluation": {"rows": 16},
    }
    run = running.api().post("/v1/runs", json={"recipe": "demo_grpo", "config": config})["id"]
    running.reaches(run, 2)

    running.up(rollouts=2)
    until(lambda: running.serving() == 2, "a second worker serves", 400)
    for victim in VICTIMS:
        at = running.step(run)
        running.kill(victim)
        running.up(rollouts=2)
        running.reaches(run, at + 2)
    running.up(rollouts=1)
    until(lambda: running.serving() == 1, "one worker is left", 60)
    assert running.step(run) < STEPS, "over before everything was killed: give it more steps"

    record = running.ended(run)
    assert record["state"] == "succeeded", record["reason"]
    audit = json.loads(running.executed("gateway", "headrace", "audit", run, "--json"))
    assert (audit["lost"], audit["duplicated"]) == (0, 0)
    assert audit["trained"] == 16 * STEPS


def test_what_crashes_is_started_again_without_anybody(running: Installation) -> None:
    before = running.containers()["reward-1"]["State"]["StartedAt"]
    running.executed("reward", "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)")

    def back() -> bool:
        state = running.containers()["reward-1"]["State"]
        return state["StartedAt"] != before and state["Health"]["Status"] == "healthy"

    until(back, "the reward service is healthy again", 60)
