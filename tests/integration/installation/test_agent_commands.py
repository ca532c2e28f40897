"""`headrace agents RUN -- COMMAND` trains a run with a program of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration.installation.conftest import ROOT, Installation

CONFIG: dict[str, Any] = {
    "data": {"dataset": "sums"},
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


def test_an_agent_that_prints_nan_does_not_end_the_others(
    installation: Installation, tmp_path: Path
) -> None:
    run = installation.submit(**CONFIG)
    stack = installation.stack
    command = [sys.executable, "-m", "services.cli", "agents", run, "--parallel", "2"]
    played = subprocess.run(
        [*command, "--data", str(tmp_path), "--", sys.executable, "-c", AGENT],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HEADRACE_GATEWAY_URL": stack.gateway_url,
            "HEADRACE_API_KEY": str(stack.api_key),
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert played.returncode == 0, played.stderr
    assert "its last line is no reward: 'NaN'" in played.stderr
    assert "2 without a reward" in played.stdout
    samples = installation.api.get(f"/v1/runs/{run}/samples")["samples"]
    assert sorted(str(one["reward"]) for one in samples) == ["0.5", "0.5", "None", "None"]
    logs = "".join(file.read_text() for file in (tmp_path / "agents" / run).iterdir())
    assert logs.count("--- output\nNaN") >= 2
    audit = installation.api.get(f"/v1/runs/{run}/audit")
    assert (audit["trained"], audit["problems"]) == (2, [])
