"""The curl lines of the README, as they stand there, against a whole installation."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.installation.conftest import ROOT, Installation
from tests.integration.launch.conditions import eventually

pytestmark = [
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here"),
]

SECONDS_OF_EVENTS = 2
TIMED_OUT = 28
"""curl's exit code at its time limit; the output until then counts."""


def curl_lines() -> list[str]:
    blocks = re.findall(r"^```\w*\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    commands = "".join(blocks).replace("\\\n", " ").splitlines()
    return [one.partition(" #")[0].rstrip() for one in commands if one.startswith("curl ")]


def alias_for_curl(installation: Installation) -> str:
    """Return the README's alias for `curl`, after its command that writes the key."""
    lines = (ROOT / "README.md").read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("alias curl="))
    write, alias = (
        one.replace("headrace-data", str(installation.stack.data)) for one in lines[at - 1 : at + 1]
    )
    subprocess.run(["bash", "-c", write], check=True)
    return alias.removeprefix("alias curl=").strip("'")


@pytest.fixture
def model(installation: Installation) -> str:
    """A model with the context that the recipe `grpo` expects; the demo's has a shorter one."""
    made, _ = installation.ended(
        installation.submit(
            "demo_sft",
            model={"max_length": 2048},
            data={"dataset": "sums"},
            training={"max_steps": 1, "rows_per_step": 8},
        )
    )
    return str(installation.stack.data / made["checkpoint"])


def answered(command: str, folder: Path) -> str:
    """Run `command` and return the gateway's answer, which must be a 2xx."""
    done = subprocess.run(
        ["bash", "-c", f"{command} -sS -w '\\n%{{http_code}}'"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, TIMED_OUT), f"{command}: {done.stderr}"
    body, _, status = done.stdout.rpartition("\n")
    assert status.startswith("2"), f"{command}: {status} {body}"
    return body


def test_every_curl_line_of_the_readme_is_answered(
    installation: Installation, model: str, tmp_path: Path
) -> None:
    rows = ({"question": f"{n}+1", "answer": str(n + 1)} for n in range(64))
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    meant = {"http://127.0.0.1:8000": installation.stack.gateway_url, "/models/mine": model}
    meant["curl -N"] = f"curl -N --max-time {SECONDS_OF_EVENTS}"
    # Bash expands no alias in a script.
    meant["curl "] = f"{alias_for_curl(installation)} "

    def record() -> dict[str, Any]:
        found: dict[str, Any] = installation.api.get(f"/v1/runs/{meant['RUN']}")
        return found

    lines, body = curl_lines(), ""
    assert len(lines) == 12
    for command in lines:
        if command.endswith("/cancel"):
            eventually(lambda: record()["step"] >= 1)
        if "resume_from" in command:
            eventually(lambda: record()["state"] == "cancelled")
        if "DELETE" in command:
            resumed = json.loads(body)
            assert resumed["resume_from"] == meant["RUN"]
            meant["RUN"] = resumed["id"]
            installation.api.post(f"/v1/runs/{meant['RUN']}/cancel")
            eventually(lambda: record()["state"] == "cancelled")
        for written, real in meant.items():
            command = command.replace(written, real)
        body = answered(command, tmp_path)
        if '"recipe"' in command:
            meant["RUN"] = json.loads(body)["id"]

    assert meant["RUN"] not in [run["id"] for run in installation.api.get("/v1/runs")["runs"]]
