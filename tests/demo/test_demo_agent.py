"""`headrace demo --agent` to its end: an agent with OpenAI's client learns to use its tool."""

from pathlib import Path

import pytest

from tests.demo_run import run_demo


@pytest.mark.timeout(1200)
def test_the_agent_learns_to_use_its_tool(tmp_path: Path) -> None:
    told = run_demo(tmp_path, "--agent")

    assert told["steps"] == 12
    assert told["reward_before"] <= 0.4  # of 24 sessions, so it varies around 0.2
    assert told["reward_after"] >= 0.9
