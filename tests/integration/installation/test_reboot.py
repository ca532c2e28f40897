"""The whole box goes, in the middle of a run: `headrace up` again, and the run ends as it would
have ended."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.cli.client import Gateway
from headrace.cli.events import Event
from services.runtime.process import INSTANCE, kill_marked, marked
from tests.integration.installation.conftest import RUN, SCRIPTED
from tests.integration.launch.conditions import eventually
from tests.ports import own_ports

pytestmark = pytest.mark.timeout(300)

STEPS = 16


class Box:
    """`headrace up` on one data folder, started as often as is needed."""

    def __init__(self, folder: Path, environment: Mapping[str, str] = SCRIPTED) -> None:
        self.environment = environment
        self.data = folder / "data"
        self.output = folder / "output.txt"
        self.port, self.reward_port = own_ports("127.0.0.1", 2)
        self.api = Gateway(f"http://127.0.0.1:{self.port}", key="hr-box")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def instance(self) -> str:
        return str(json.loads((self.data / "up.json").read_text())["instance"])

    def up(self) -> None:
        self.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        eventually(self._is_up, what=self.output.read_text())
        assert self.process is not None
        assert self.process.poll() is None, self.output.read_text()

    def start(self) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        ports = ("--port", str(self.port), "--reward-port", str(self.reward_port))
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "headrace", "up", "--data", str(self.data)),
                    *(*ports, "--redis-port", "0"),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**kept, **self.environment, "HEADRACE_API_KEY": "hr-box"},
            )

    def _is_up(self) -> bool:
        assert self.process is not None
        return "ready in" in self.output.read_text() or self.process.poll() is not None

    def power_cut(self) -> None:
        """Kill all processes at once, so none can react to another's death."""
        assert self.process is not None
        pids = [self.process.pid, *marked({INSTANCE: self.instance})]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        self.process.wait()
        eventually(lambda: marked({INSTANCE: self.instance}) == [])

    def add_sums(self) -> None:
        text = "".join(json.dumps({"prompt": f"{n}+1", "answer": str(n + 1)}) for n in range(99))
        files = {"file": ("sums.jsonl", text.replace("}{", "}\n{") + "\n")}
        self.api.post("/v1/datasets", files=files, data={"name": "sums"})

    def submit(self, recipe: str, **config: object) -> str:
        given = {"data": {"dataset": "sums"}, **config}
        return str(self.api.post("/v1/runs", json={"recipe": recipe, "config": given})["id"])

    def step(self, run: str) -> int:
        return int(self.api.get(f"/v1/runs/{run}")["step"])

    def ended(self, run: str) -> dict[str, object]:
        for _ in self.api.events(run):
            pass
        record: dict[str, object] = self.api.get(f"/v1/runs/{run}")
        return record


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    one = Box(tmp_path)
    yield one
    if one.process is not None:
        one.process.kill()
        one.process.wait()
        kill_marked({INSTANCE: one.instance})


def test_after_a_power_cut_the_run_goes_on_by_itself(box: Box) -> None:
    box.up()
    box.add_sums()
    first = box.submit("demo_sft", training={"max_steps": 3, "rows_per_step": 8})
    assert box.ended(first)["state"] == "succeeded"
    training = {"max_steps": STEPS, "checkpoint_every": 5}
    config = RUN | {"model": {"path": f"run:{first}"}, "training": training}
    run = box.submit("demo_grpo", **config)
    waits = box.submit("demo_grpo", **config | {"training": {"max_steps": 2}})
    # Beyond a checkpoint and not at the next one: what was trained since is trained again.
    eventually(lambda: box.step(run) >= 7)

    box.power_cut()
    began = time.time()
    box.up()

    record = box.ended(run)
    assert (record["state"], record["step"]) == ("succeeded", STEPS), record["reason"]
    again = [e for e in box.api.events(run) if isinstance(e, Event) and e.time >= began]
    resumed = [e.data["step"] for e in again if e.kind == "step"]
    assert resumed == list(range(resumed[0], STEPS + 1))
    assert resumed[0] > 1, "it began at its first step again"
    audit = box.api.get(f"/v1/runs/{run}/audit")
    assert (audit["lost"], audit["duplicated"], audit["in_flight"]) == (0, 0, 0)
    assert audit["trained"] == STEPS * 4
    assert audit["max_staleness_seen"] <= 1
    lines = (box.data / f"runs/{run}/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, STEPS + 1))
    # The one that waited behind it has its turn, too.
    assert box.ended(waits)["state"] == "succeeded"
