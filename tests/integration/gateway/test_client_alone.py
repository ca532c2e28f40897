"""The command of a machine that has only the client, against a gateway."""

import json
from pathlib import Path

import pytest

from tests.client_alone import built, installed, run_alone
from tests.integration.gateway.servers import GatewayProcess

CONFIG = """
recipe: grpo
config:
  data: {dataset: alone}
  optimizer: {type: adamw, lr: 1.0e-5}
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheel = built(tmp_path_factory.mktemp("built"))
    return installed(wheel, tmp_path_factory.mktemp("alone"))


def test_a_machine_with_the_client_alone_submits_shows_and_cancels_a_run(
    alone: Path, gateway: GatewayProcess, model: Path
) -> None:
    key = (gateway.data / "api-key").read_text().strip()

    def headrace(*words: str) -> str:
        done = run_alone(
            alone,
            *("-m", "headrace", *words),
            HEADRACE_GATEWAY_URL=gateway.url,
            HEADRACE_API_KEY=key,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    (alone / "alone.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n' * 40)
    (alone / "my.yaml").write_text(CONFIG)
    headrace("datasets", "add", "alone.jsonl")
    settings = ["--set", f"model.path={model}", "--set", "optimizer.type=muon"]
    run = json.loads(headrace("submit", "my.yaml", *settings, "--json"))
    assert run["config"]["optimizer"]["type"] == "muon"
    assert run["config"]["optimizer"]["lr"] == 0.02, "another kind of section replaces it"

    assert run["id"] in headrace("runs")
    assert "my" in headrace("show", run["id"])
    assert "queued" in headrace("why", run["id"])
    assert headrace("preview", "alone", "--recipe", "my.yaml", *settings)
    assert "cancelled my" in headrace("cancel", run["id"])
    assert "grpo" in headrace("recipes")
    assert "learning rate" in headrace("explain", "optimizer.lr").lower()
