"""`headrace agents --environment`: a server with reset and step trains a run."""

from pathlib import Path
from typing import Any

from tests.integration.installation.conftest import Installation, played_by
from tests.unit.environments.servers import serving
from tests.upstream import Answer

CONFIG: dict[str, Any] = {
    "data": {"dataset": "sums", "chat_template": "auto"},
    "rewards": [],
    "algorithm": {"prompts_per_step": 2, "samples_per_prompt": 2},
    "training": {"max_steps": 1},
    "sampling": {"max_tokens": 50},
    "rollout": {"episode": {"type": "sessions", "idle_seconds": 120}},
}


def environment(path: str, body: Any) -> Answer:
    """Two steps; the second session of each group meets an error."""
    if path != "/step":
        return 200, {"observation": "="}
    if body["episode"].endswith("-1"):
        return 500, "the game is broken"
    return 200, {"observation": "+1=", "components": {"half": 0.5}}


def test_an_environment_trains_a_run_and_its_errors_mask_sessions(
    installation: Installation, tmp_path: Path
) -> None:
    run = installation.submit(**CONFIG)
    with serving(environment) as url:
        arguments = ["--environment", url, "--turns", "2", "--parallel", "2"]
        played = played_by(installation, run, tmp_path, *arguments)
    assert played.returncode == 0, played.stderr
    assert "2 without a reward" in played.stdout
    assert "the game is broken" in played.stderr
    samples = installation.api.get(f"/v1/runs/{run}/samples")["samples"]
    earned = [one for one in samples if one["reward"] is not None]
    masked = [one for one in samples if one["reward"] is None]
    assert (len(earned), len(masked)) == (2, 2)
    # An episode has one turn if its first answer, of random length, fills the context.
    assert all(one["reward"] == one["components"]["half"] in (0.5, 1.0) for one in earned)
    assert all(one["components"]["half"] is None for one in masked)
    audit = installation.api.get(f"/v1/runs/{run}/audit")
    assert (audit["trained"], audit["problems"]) == (2, [])
