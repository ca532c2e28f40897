"""`headrace agents RUN -- COMMAND` trains a run with a program of its own."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.output import CliError
from tests.integration.installation.conftest import (
    Installation,
    agents_command,
    agents_environment,
    played_by,
)
from tests.integration.launch.conditions import eventually

CONFIG: dict[str, Any] = {
    "data": {"dataset": "sums", "chat_template": "auto"},
    "rewards": [],
    "algorithm": {"prompts_per_step": 2, "samples_per_prompt": 2},
    "training": {"max_steps": 1},
    "sampling": {"max_tokens": 50},
    "rollout": {"episode": {"type": "sessions", "idle_seconds": 120}},
}
# The second session of each group says what no request can have in its body.
AGENT = """
import json, os, openai
row = json.loads(os.environ["HEADRACE_ROW"])
messages = [{"role": "user", "content": row["prompt"]}]
openai.OpenAI().chat.completions.create(model="policy", messages=messages)
print("NaN" if os.environ["HEADRACE_SESSION"].endswith("-1") else 0.5)
"""


def agents(
    installation: Installation, run: str, data: Path, program: str
) -> "subprocess.CompletedProcess[str]":
    """`headrace agents` with a program in Python."""
    return played_by(
        installation, run, data, "--parallel", "2", "--", sys.executable, "-c", program
    )


def test_an_agent_that_prints_nan_does_not_end_the_others(
    installation: Installation, tmp_path: Path
) -> None:
    run = installation.submit(**CONFIG)
    played = agents(installation, run, tmp_path, AGENT)
    assert played.returncode == 0, played.stderr
    assert "its last line is no reward: 'NaN'" in played.stderr
    assert "2 without a reward" in played.stdout
    samples = installation.api.get(f"/v1/runs/{run}/samples")["samples"]
    assert sorted(str(one["reward"]) for one in samples) == ["0.5", "0.5", "None", "None"]
    logs = "".join(file.read_text() for file in (tmp_path / "agents" / run).iterdir())
    assert logs.count("--- output\nNaN") >= 2
    audit = installation.api.get(f"/v1/runs/{run}/audit")
    assert (audit["trained"], audit["problems"]) == (2, [])

    again = agents(installation, run, tmp_path, AGENT)
    assert again.returncode == 1
    assert f"run {run} is over (succeeded): there are no sessions to play" in again.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_agents_that_are_stopped_release_their_groups(
    installation: Installation, tmp_path: Path, number: signal.Signals
) -> None:
    run = installation.submit(**CONFIG)
    program = "import time; print('plays', flush=True); time.sleep(600)"
    command = agents_command(run, tmp_path, "--parallel", "2", "--", sys.executable, "-c", program)
    playing = subprocess.Popen(command, env=agents_environment(installation))
    audit = f"/v1/runs/{run}/audit"
    eventually(lambda: installation.api.get(audit)["in_flight"] > 0)
    held = installation.api.get(audit)["in_flight"]

    playing.send_signal(number)

    assert playing.wait(timeout=60) == 130
    tasks = [installation.api.post(f"/v1/runs/{run}/groups/lease")["task"] for _ in range(held)]
    assert tasks == list(range(held))
    unknown = f"/v1/runs/{run}/groups/unknown/release"
    with pytest.raises(CliError, match=f"run {run} has no group 'unknown'"):
        installation.api.post(unknown)
    installation.api.post(f"/v1/runs/{run}/cancel")


def test_agents_that_never_ask_the_policy_end_with_the_reason(
    installation: Installation, tmp_path: Path
) -> None:
    run = installation.submit(**CONFIG)
    program = "import sys; print('my own model answers', file=sys.stderr); print(1)"
    played = agents(installation, run, tmp_path, program)
    assert played.returncode == 1
    assert "none of the first 16 sessions" in played.stderr
    assert "it asked OPENAI_BASE_URL for nothing" in played.stderr
    assert "(my own model answers)" in played.stderr
    installation.api.post(f"/v1/runs/{run}/cancel")
