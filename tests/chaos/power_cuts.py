"""`python -m tests.chaos.power_cuts [CUTS] [FOLDER]`: the run of `headrace demo`, and a host whose
processes all die at once, at random moments, as often as CUTS says (20).

HEADRACE_CHAOS_VLLM=real samples with a real vLLM. Half of the cuts kill all processes at once; the
other half kills the process group of `headrace up`, and the kernel ends the rest. A second start on
the same FOLDER goes on with its run; CUTS = 0 waits for the run's end. Exit code 0: every `headrace
up` went on with the run, and the audit says lost 0, duplicated 0.
"""

import json
import os
import random
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from headrace.cli.client import Away
from services.cli.host.demo import upload_sums
from tests.chaos.killing import ETA, FINAL, REAL, SEED
from tests.integration.installation.conftest import SCRIPTED
from tests.integration.installation.test_reboot import Box

LONGEST = 75.0 if REAL else 15.0
"""Seconds from a start to the next cut, at most. A start with a real vLLM takes half of them."""
STEPS = 500
SUPERVISED = {"max_steps": 100, "checkpoint_every": 50}


def prepared(box: Box) -> str:
    """The run's id. The first start trains the model that the run begins with."""
    box.up()
    noted = box.data / "power_cuts.txt"
    if not noted.exists():
        upload_sums(box.api)
        config = {"data": {"dataset": "demo-examples"}, "training": SUPERVISED}
        first = box.submit("demo_sft", **config)
        assert box.ended(first)["state"] == "succeeded"
        training = {"max_steps": STEPS, "checkpoint_every": 5}
        config = {"data": {"dataset": "demo-train"}, "training": training}
        noted.write_text(box.submit("demo_grpo", model={"path": f"run:{first}"}, **config))
    return noted.read_text()


def cut(box: Box, whole: bool) -> None:
    """Kill every process at once (`whole`), or the process group of `headrace up`."""
    if not whole and box.process is not None:
        os.killpg(box.process.pid, signal.SIGKILL)
    box.power_cut()


def record(box: Box, run: str) -> dict[str, Any]:
    """The run as the gateway tells it; empty while the gateway starts."""
    try:
        found: dict[str, Any] = box.api.get(f"/v1/runs/{run}")
    except Away:
        return {}
    return found


def main(cuts: int, folder: Path) -> int:
    """Cut, start again, and say what was found."""
    chance = random.Random(SEED)
    print(f"HEADRACE_CHAOS_SEED={SEED}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    box = Box(folder, {} if REAL else SCRIPTED)
    try:
        run = prepared(box)
        for number in range(cuts):
            seconds = chance.uniform(0, LONGEST)
            threading.Event().wait(seconds)
            now = record(box, run)
            cut(box, whole=number % 2 == 0)
            said = f"step {now.get('step', '-')}, {now.get('state', 'no gateway')}"
            print(f"cut {number + 1:2d} after {seconds:4.1f} s: {said}", flush=True)
            assert now.get("state") not in ("failed", "cancelled"), now["reason"]
            box.start()
        box.wait_until_ready()
        while not cuts and (now := record(box, run)).get("state") not in FINAL:
            threading.Event().wait(1)
        audit = box.api.get(f"/v1/runs/{run}/audit")
        now = record(box, run)
        print(f"step {now['step']}, {now['state']}; {json.dumps(audit)}", flush=True)
    finally:
        box.power_cut()
    clean = audit["lost"] == audit["duplicated"] == 0 and audit["max_staleness_seen"] <= ETA
    return 0 if clean else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-power-cuts-") as own:
        arguments = [*sys.argv[1:], *("20", own)[len(sys.argv) - 1 :]]
        sys.exit(main(int(arguments[0]), Path(arguments[1])))
