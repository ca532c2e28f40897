"""A command starts quickly: what takes long to import waits until it is needed."""

import subprocess
import sys

import pytest

HEAVY = {
    "fastapi",
    "headrace.models",
    "httpx",
    "numpy",
    "pydantic",
    "rapidfuzz",
    "redis",
    "services.contracts.config",
    "services.launch",
    "services.store",
    "huggingface_hub",
    "matplotlib",
    "pandas",
    "pygments",
    "torch",
    "transformers",
    "yaml",
}
"""Each takes 20 ms or more."""
CLIENT = {"httpx", "pydantic"}
"""Modules that a request to the gateway needs; typer imports pydantic for some options."""


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["--help"], set()),
        (["submit", "--help"], {"pydantic"}),
        (["recipes"], {"pydantic"}),
        (["explain", "optimizer.lr"], {"pydantic"}),
        (["config", "schema"], {"pydantic"}),
        (["init", "/dev/null/run.yaml", "--gateway", "http://127.0.0.1:1"], CLIENT),
        (["doctor", "--help"], {"pydantic"}),
        (["show", "RUN", "--gateway", "http://127.0.0.1:1"], CLIENT),
        (["runs", "--gateway", "http://127.0.0.1:1"], CLIENT),
        (["why", "RUN", "--gateway", "http://127.0.0.1:1"], CLIENT),
        (["submit", "grpo", "--gateway", "http://127.0.0.1:1"], CLIENT),
        (
            ["submit", "grpo", "--set", "optimizer.lr=1e-6", "--gateway", "http://127.0.0.1:1"],
            CLIENT | {"yaml"},
        ),
        (["preview", "sums", "--gateway", "http://127.0.0.1:1"], CLIENT),
        (["watch", "RUN", "--gateway", "http://127.0.0.1:1"], CLIENT),
        (["chat", "RUN", "1+1", "--gateway", "http://127.0.0.1:1"], CLIENT),
        (["agents", "RUN", "--gateway", "http://127.0.0.1:1", "--", "true"], CLIENT),
        (["eval", "RUN", "sums", "--gateway", "http://127.0.0.1:1"], CLIENT),
        (["report", "RUN", "--gateway", "http://127.0.0.1:1"], CLIENT),
        (["audit", "RUN", "--gateway", "http://127.0.0.1:1"], CLIENT),
        (["logs"], {"httpx", "pydantic"}),
        (
            ["scale", "rollout=2", "--data", "/dev/null/none"],
            CLIENT | {"services.launch", "pygments"},
        ),
    ],
)
def test_a_command_imports_only_the_heavy_modules_it_needs(
    arguments: list[str], needed: set[str]
) -> None:
    code = f"""
import sys
sys.argv = ["headrace", *{arguments!r}]
from headrace.cli import app
if "agents" in sys.argv:
    # It waits for a gateway that is away.
    import headrace.cli.agents.players
    headrace.cli.agents.players.PATIENCE = 0.0
try:
    app()
except SystemExit:
    print("imported:", *sorted({HEAVY!r} & set(sys.modules)))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(shown.stdout.splitlines()[-1].split()[1:]) <= needed
