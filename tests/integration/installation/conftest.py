"""A whole installation as `headrace up` starts it, with the scripted stand-in for vLLM."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.client import Gateway
from headrace.cli.events import Event
from services.launch import Stack, UpOptions

ROOT = Path(__file__).parents[3]
# Fewer ids than the demo model's tokenizer has: every sampled one is one of its characters.
SCRIPT = {"vocabulary": 20, "tokens_per_second": 100}
SCRIPTED = {
    "HEADRACE_VLLM_COMMAND": f"{sys.executable} -m tests.scripted_vllm",
    "HEADRACE_SCRIPTED_VLLM": json.dumps(SCRIPT),
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    # Nothing here needs a GPU, and no number of them limits how many parts there may be.
    "CUDA_VISIBLE_DEVICES": "",
}
RUN: dict[str, Any] = {
    "algorithm": {"prompts_per_step": 4, "samples_per_prompt": 4},
    "training": {"max_steps": 2, "checkpoint_every": 10},
    "evaluation": None,
}


@dataclass
class Installation:
    """A running installation, its API, and a model to start from."""

    stack: Stack
    api: Gateway
    model: str = ""
    requests: Path = Path()
    """vLLM's requests: a line of JSON with prompt and seed for each."""

    def add(self, name: str, rows: list[dict[str, str]]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        files = {"file": (f"{name}.jsonl", text)}
        self.api.post("/v1/datasets", files=files, data={"name": name})

    def submit(self, recipe: str = "demo_grpo", **config: Any) -> str:
        if recipe == "demo_grpo":
            config = {"model": {"path": self.model}} | RUN | config
        run = self.api.post("/v1/runs", json={"recipe": recipe, "config": config})
        return str(run["id"])

    def ended(self, run: str) -> tuple[dict[str, Any], list[Event]]:
        """The run's final record and all its events, once it has ended."""
        events = [event for event in self.api.events(run) if isinstance(event, Event)]
        return self.api.get(f"/v1/runs/{run}"), events


@pytest.fixture(scope="package")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("installation")
    requests = folder / "requests.jsonl"
    script = json.dumps(SCRIPT | {"requests": str(requests)})
    options = UpOptions(
        data=folder / "data",
        port=0,
        reward_port=0,
        environment=SCRIPTED | {"HEADRACE_SCRIPTED_VLLM": script},
        grace=5,
    )
    with Stack(options) as stack:
        requests.touch()
        one = Installation(
            stack, Gateway(stack.gateway_url, stack.check, stack.api_key), requests=requests
        )
        one.add("sums", [{"prompt": f"{n}+1", "answer": str(n + 1)} for n in range(99)])
        training = {"max_steps": 3, "rows_per_step": 8}
        data = {"dataset": "sums"}
        run, _ = one.ended(one.submit("demo_sft", training=training, data=data))
        assert run["state"] == "succeeded", run["reason"]
        one.model = f"run:{run['id']}"
        yield one


def played_by(
    installation: Installation, run: str, data: Path, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    """`headrace agents RUN` with `arguments`, to its end. Its logs go below `data`."""
    return subprocess.run(
        agents_command(run, data, *arguments),
        env=agents_environment(installation),
        capture_output=True,
        text=True,
        timeout=200,
    )


def agents_command(run: str, data: Path, *arguments: str) -> list[str]:
    """`headrace agents RUN`, whose logs go below `data`."""
    command = [sys.executable, "-m", "headrace", "agents", run, "--data", str(data)]
    return [*command, *arguments]


def agents_environment(installation: Installation) -> dict[str, str]:
    """Return the environment of `headrace agents`."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HEADRACE_GATEWAY_URL": installation.stack.gateway_url,
        "HEADRACE_API_KEY": str(installation.stack.api_key),
    }
