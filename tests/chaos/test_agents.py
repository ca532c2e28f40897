"""All that plays a part in agents' sessions dies in mid-turn, and every request is sent twice: each
task is trained once, and each sampled token once."""

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.agent import TURNS
from tests.chaos.killing import REAL, RIGHT, ROOT, Chaos
from tests.integration.launch.conditions import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900 if REAL else 600)]

STEPS, GROUPS = 7, 2
VICTIMS = ["gateway", "rollout worker", "vLLM", "learner rank", "agent"]
CONFIG: dict[str, Any] = {
    "data": {"chat_template": "auto"},
    "algorithm": {"prompts_per_step": GROUPS, "samples_per_prompt": 2},
    "sampling": {"max_tokens": 40},
    # Sessions of a killed agent come back after so long.
    "rollout": {"episode": {"type": "sessions", "idle_seconds": 8}},
    "training": {"max_steps": STEPS},
    "evaluation": None,
}


Start = Callable[[str, str], subprocess.Popen[str]]


@pytest.fixture
def agents(chaos: Chaos, tmp_path: Path) -> Iterator[Start]:
    """Starts agents of a run, which play `groups` or `live`, and ends them."""
    started: list[subprocess.Popen[str]] = []

    def start(run: str, what: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.chaos.agent"]
        stack = chaos.stack
        with (tmp_path / f"agent-{len(started)}.log").open("w") as log:
            started.append(
                subprocess.Popen(
                    [*command, stack.gateway_url, stack.api_key, run, what],
                    cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, text=True,
                )
            )  # fmt: skip
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def in_a_turn(chaos: Chaos, run: str) -> bool:
    """Whether a worker plays one, or the run is over."""
    workers = chaos.get("/v1/workers")["workers"]
    over = chaos.record(run)["state"] not in ("queued", "starting", "running")
    return over or any(worker["groups_in_flight"] for worker in workers)


def kill_all(
    chaos: Chaos, run: str, what: str, agents: Start, chance: random.Random
) -> list[subprocess.Popen[str]]:
    """Play the run until its end, while one of each of VICTIMS dies in mid-turn. Returns the agents
    that live."""
    playing = [agents(run, what), agents(run, what)]
    for number, victim in enumerate(chance.sample(VICTIMS, len(VICTIMS))):
        chaos.reaches(run, number + 1, within=300)
        eventually(lambda: in_a_turn(chaos, run), within=120)
        threading.Event().wait(chance.uniform(0, 0.5))
        if victim == "agent":
            playing[0].kill()
            playing[0] = agents(run, what)
            chaos.done.append("agent")
        else:
            chaos.kill(run, [victim], chance)
    record = chaos.ended(run)
    assert (record["state"], record["reason"]) == ("succeeded", ""), chaos.story
    return playing


def each_turn_once(chaos: Chaos, run: str) -> None:
    """A repeated request is one turn, and its sample is trained once."""
    for row in chaos.trained_rows(run, STEPS):
        assert row["session/turns"] == TURNS, chaos.story
        sampled = row["response/tokens_mean"] - row["session/tool_tokens"]
        assert REAL or sampled == pytest.approx(TURNS * len(RIGHT)), (chaos.story, row)
        assert row["session/fork_rate"] == pytest.approx(2 / TURNS), chaos.story


def all_content(chaos: Chaos, playing: list[subprocess.Popen[str]], logs: Path) -> None:
    """No agent has seen two answers to one request."""
    for one in playing:
        assert one.wait(120) == 0, (chaos.story, (logs / "agent-0.log").read_text())


def test_sessions_survive_the_death_of_all_that_plays_them(
    chaos: Chaos, chance: random.Random, agents: Start, tmp_path: Path
) -> None:
    run = chaos.submit(STEPS, **CONFIG)

    playing = kill_all(chaos, run, "groups", agents, chance)

    chaos.clean(run, trained=STEPS * GROUPS)
    each_turn_once(chaos, run)
    all_content(chaos, playing, tmp_path)


def test_sessions_of_live_traffic_survive_the_death_of_all_that_plays_them(
    chaos: Chaos, chance: random.Random, agents: Start, tmp_path: Path
) -> None:
    run = chaos.submit_live(STEPS, GROUPS, idle_seconds=8)

    playing = kill_all(chaos, run, "live", agents, chance)

    chaos.clean(run, trained=STEPS * GROUPS)
    each_turn_once(chaos, run)
    all_content(chaos, playing, tmp_path)
