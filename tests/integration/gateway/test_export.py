"""`headrace export`: what a user gets of a run's checkpoint."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from services.store import Store
from services.volume import checksum
from tests.integration.gateway.servers import GatewayProcess, Headrace, InStore

pytestmark = pytest.mark.usefixtures("sums")


@pytest.fixture
def headrace(headrace_process: Headrace) -> Headrace:
    return headrace_process


def checkpointed(gateway: GatewayProcess, in_store: InStore, run: str, *files: str) -> Path:
    """Give `run` a checkpoint with these files, in addition to the usual files."""
    name = f"runs/{run}/checkpoints/step-000005-9f3a1c"
    listed = {}
    for file in (*files, "tokenizer.json", "training/optimizer.safetensors"):
        path = gateway.data / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file)
        listed[file] = {"bytes": len(file), "xxh3": checksum(path)}
    (gateway.data / name / "manifest.json").write_text(json.dumps({"files": listed}))

    async def train(store: Store) -> None:
        fencing_token = await store.runs.acquire(run, "9f3a1c")
        await store.runs.update(run, fencing_token, {"checkpoint": name, "committed_step": 5})

    in_store(train)
    return gateway.data / name


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("model", ["config.json", "model.safetensors"]),
        ("adapter", ["adapter_config.json", "adapter_model.safetensors"]),
    ],
)
def test_a_checkpoint_is_copied_without_what_only_training_needs(
    headrace: Headrace,
    submit: Any,
    gateway: GatewayProcess,
    in_store: InStore,
    tmp_path: Path,
    kind: str,
    files: list[str],
) -> None:
    run = submit().json()["id"]
    (checkpointed(gateway, in_store, run, *files) / files[-1]).chmod(0o600)

    done = headrace("export", run, "there/out", "--json")
    again = headrace("export", run, "there/out")

    assert json.loads(done.stdout) == {"run": run, "folder": "there/out", "kind": kind}
    assert sorted(p.name for p in (tmp_path / "there/out").rglob("*")) == [*files, "tokenizer.json"]
    modes = {path.stat().st_mode for path in (tmp_path / "there/out").iterdir()}
    assert len(modes) == 1, "whoever may read one of them may read all"
    assert again.returncode == 1
    assert again.stderr.startswith(
        "error: there/out is there already and not an empty folder: name another one"
    )
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["out"]


def test_a_name_of_several_runs_is_refused_with_their_ids_by_every_command(
    headrace: Headrace, api: httpx.Client, submit: Any
) -> None:
    older, newer = (submit(name="twice").json()["id"] for _ in range(2))
    said = "2 runs are called 'twice': name one by its id: "
    asked = [("export", "twice", "out"), ("chat", "twice", "hello"), ("resume", "twice")]
    asked += [(command, "twice") for command in ("report", "watch", "samples", "cancel", "why")]

    for words in asked:
        done = headrace(*words)
        assert done.returncode == 1
        assert said + newer in done.stderr
        assert f", {older} (queued, " in done.stderr
    started = {"recipe": "grpo", "config": {"model": {"path": "run:twice"}}}
    assert said in api.post("/v1/runs", json=started).text


def test_a_failed_export_says_why_and_leaves_no_files(
    headrace: Headrace,
    submit: Any,
    gateway: GatewayProcess,
    in_store: InStore,
    tmp_path: Path,
) -> None:
    run = submit().json()["id"]
    early = headrace("export", run, "out")
    assert early.stderr.startswith(f"error: run grpo ({run}) is queued and has no checkpoint yet")

    folder = checkpointed(gateway, in_store, run, "adapter_model.safetensors")
    (folder / "tokenizer.json").write_text("cut")
    damaged = headrace("export", run, "out")
    assert damaged.stderr.startswith(
        "error: checkpoint step-000005-9f3a1c is damaged: tokenizer.json has 3 bytes"
    )
    (folder / "manifest.json").write_text('{"files": {}}')
    (folder / "tokenizer.json").write_text("{}")
    save_file({"lora_A": np.zeros((2, 2), np.float32)}, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "base_model_name_or_path": "/gone/base", "r": 2}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    merged = headrace("export", run, "out", "--merged")

    assert merged.returncode != 0
    assert "model /gone/base: no such folder" in merged.stderr
    assert "nothing was written" in merged.stderr
    assert not [path for path in tmp_path.iterdir() if path.name.strip(".").startswith("out")]

    (tmp_path / "file").touch()
    below = headrace("export", run, "file/out")
    assert below.stderr == "error: file/out cannot be made: File exists\n"
