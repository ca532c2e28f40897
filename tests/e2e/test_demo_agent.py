"""`headrace demo --agent` for a few steps: its processes, and OpenAI's client in each session.

tests/demo has it learn, which takes both cores for five minutes.
"""

from pathlib import Path

import pytest

from tests.demo_run import run_demo


@pytest.mark.timeout(900)
def test_an_agent_is_trained_for_a_few_steps(tmp_path: Path) -> None:
    told = run_demo(tmp_path, "--agent", "--quick")

    assert told["steps"] == 2
    assert 0 <= told["reward_before"] <= 1
    assert Path(told["report"]).is_file()
    logs = tmp_path / "data" / "agents" / told["run"]
    # Each session's log ends with the reward that its agent printed.
    assert len(list(logs.iterdir())) >= 48
