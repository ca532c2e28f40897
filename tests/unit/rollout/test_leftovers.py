"""What killed workers have left is bounded, or gone with the next one."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rollout.adapter_slot import slot_for
from rollout.leftovers import forget_logs


def test_logs_of_the_living_stay_and_of_the_others_the_newest_ten(tmp_path: Path):
    dead = [f"vllm-host-{number:02}.log" for number in range(12)]
    names = ["vllm-alive.log", *dead, "gateway.log"]
    for written, name in enumerate(names):
        for path in (tmp_path / name, tmp_path / f"{name}.1"):
            path.touch()
            os.utime(path, (written, written))

    forget_logs(tmp_path, {"alive", "new"})

    assert {path.name for path in tmp_path.iterdir()} == {
        name + end for name in names if name not in dead[:2] for end in ("", ".1")
    }


def test_slots_of_killed_workers_go_and_those_of_the_living_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model, slots = tmp_path / "model", tmp_path / "tmp"
    slots.mkdir()
    (model / "adapter").mkdir(parents=True)
    (model / "adapter/adapter_config.json").write_text(json.dumps({"r": 4, "target_modules": []}))
    (model / "adapter/adapter_model.safetensors").write_text("zeros")
    monkeypatch.setattr(tempfile, "tempdir", str(slots))
    code = (
        "import os, pathlib, rollout.adapter_slot as slots\n"
        f"slots.slot_for(pathlib.Path({str(model)!r}))\n"
        "os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(slots)}, check=False
    )
    assert killed.returncode == -9
    (left,) = slots.iterdir()
    (slots / "headrace-adapter-somebody").mkdir()

    first, second = slot_for(model), slot_for(model)

    assert first is not None
    assert second is not None
    assert not left.exists()
    kept = {first.folder.name, second.folder.name, "headrace-adapter-somebody"}
    assert {path.name for path in slots.iterdir()} == kept
