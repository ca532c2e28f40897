"""Checkpoints of a run over the API and with the command line."""

import tarfile
from pathlib import Path
from typing import Any

import httpx

from tests.integration.gateway.servers import GatewayProcess, Headrace, InStore


def test_checkpoints_are_listed_pinned_and_downloaded(
    api: httpx.Client, submit: Any, gateway: GatewayProcess, in_store: InStore,
    headrace: Headrace, tmp_path: Path,
) -> None:  # fmt: skip
    run = submit(name="kept").json()["id"]
    path = f"/v1/runs/{run}/checkpoints"
    assert api.get(path).json() == {"checkpoints": [], "next": None}
    assert "no checkpoint yet" in headrace("checkpoints", run).stdout
    folder = gateway.data / f"runs/{run}/checkpoints"
    for step in (5, 10, 15):
        made = folder / f"step-{step:06d}-aaa"
        made.mkdir(parents=True)
        (made / "model.safetensors").write_bytes(b"w" * step)

    first = api.get(path, params={"limit": 2}).json()
    rest = api.get(path, params={"cursor": first["next"]}).json()
    listed = first["checkpoints"] + rest["checkpoints"]
    assert [(each["step"], each["bytes"], each["pinned"]) for each in listed] == [
        (15, 15, False), (10, 10, False), (5, 5, False),
    ]  # fmt: skip
    pinned = api.post(f"{path}/10/pin").json()
    assert (pinned["step"], pinned["pinned"]) == (10, True)
    assert pinned["directory"] == f"runs/{run}/checkpoints/step-000010-aaa"
    missing = api.post(f"{path}/11/pin")
    assert missing.status_code == 404
    assert missing.json()["detail"].endswith("it has those of steps: 15, 10, 5")

    sent = api.get(f"{path}/10/download")
    assert (sent.status_code, sent.headers["content-type"]) == (200, "application/x-tar")
    assert int(sent.headers["content-length"]) == len(sent.content)
    target = tmp_path / "model.tar"
    done = headrace("checkpoints", run, "--download", "10", "--to", str(target))
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == sent.content
    with tarfile.open(target) as tar:
        assert tar.getnames() == [f"{run}-step-000010-aaa/model.safetensors"]
    shown = headrace("checkpoints", run, "--unpin", "10")
    assert "pinned" not in shown.stdout
    assert "pinned" in headrace("checkpoints", run, "--pin", "5").stdout
    assert not list(target.parent.glob("*.part"))
