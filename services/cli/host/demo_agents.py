"""The additions of `headrace demo --agent` to `headrace demo`: conversations with a tool for
supervised training, and `headrace agents`, which plays the sessions of the second run.

The examples call the tool when the question asks for it. For a bare sum they seldom call the tool;
the other answers come at once and forget the carry. Reinforcement learning asks bare sums.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import recipes
from headrace.cli.output import CliError
from headrace.death_signal import die_with

SCRIPT = Path(recipes.__file__).parent / "agents" / "sums.py"
TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
"""As the agent describes it."""
ASKED, CALLS = 0.6, 0.15
"""Share of the conversations whose question asks for the tool, and of the others that call it."""
DIGITS = 3
"""Digits of each result in reinforcement learning."""
PARALLEL = 8
STEPS = (("demo_agent_sft", 20), ("demo_agent_spo", 2))
PLAYED = "rl"
"""The chain's step whose sessions are played."""
GRACE = 20.0
"""Seconds for `headrace agents` to end by itself."""


def conversations(rows: list[dict[str, str]], seed: int = 0) -> list[dict[str, Any]]:
    """Return a conversation for each question of `rows`."""
    chance = random.Random(seed)
    return [_conversation(row["prompt"], chance) for row in rows]


def questions(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows whose results have DIGITS digits: even so small a model reads results of one
    length well."""
    return [row for row in rows if len(row["answer"]) == DIGITS]


def _conversation(question: str, chance: random.Random) -> dict[str, Any]:
    a, b = map(int, question.split("+"))
    asked = chance.random() < ASKED
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": f"calculate {question}" if asked else question}
    ]
    answer = a + b
    if asked or chance.random() < CALLS:
        function = {"name": "calculate", "arguments": {"expression": question}}
        call = {"id": "call", "type": "function", "function": function}
        turns.append({"role": "assistant", "content": None, "tool_calls": [call]})
        turns.append({"role": "tool", "content": str(answer), "tool_call_id": "call"})
    else:
        answer -= 10 * (a % 10 + b % 10 >= 10)
    return {"prompt": turns, "answer": str(answer), "tools": [TOOL]}


def check_client() -> None:
    """Raise CliError if the agent's packages are missing."""
    if find_spec("openai") is None:
        raise CliError(
            "the demo's agent needs OpenAI's client, which is not installed here: run it where "
            "`make setup` has been run, or pip install openai"
        )


class Agents:
    """Runs `headrace agents` as a process of the demo."""

    def __init__(self, data: Path) -> None:
        """`data`: the data folder, which gets its log."""
        self._data = data.absolute()
        self._log = self._data / "logs" / "agents.log"
        self.process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Stop the started processes when the block ends."""
        try:
            yield
            if self.process is not None:
                self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if self.process is not None:
                self.process.kill()
                self.process.wait()

    def start(self, url: str, key: str | None, run: str) -> list[str]:
        """Start to play the sessions of `run`. Return the same command in words for the user,
        without `headrace`."""
        words = ["agents", run, "--parallel", str(PARALLEL), "--", sys.executable, str(SCRIPT)]
        options = ["--gateway", url, "--data", str(self._data)]
        command = [sys.executable, "-P", "-m", "headrace", *words[:2], *options, *words[2:]]
        self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env=os.environ | ({"HEADRACE_API_KEY": key} if key else {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),
            )
        return words

    def check(self) -> None:
        """Raise CliError if it has failed."""
        if self.process is not None and self.process.poll():
            lines = self._log.read_text(errors="replace").strip().splitlines()
            raise CliError(f"headrace agents has failed: {lines[-1] if lines else 'no reason'}")
