"""`headrace demo` that is interrupted, or loses a process: nothing stays behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.client import Gateway
from services.cli.host.demo import found_by
from services.launch import Stack, UpOptions
from services.runtime.process import INSTANCE, PART, marked
from tests.integration.installation.conftest import SCRIPTED
from tests.integration.launch.conditions import eventually

pytestmark = pytest.mark.timeout(300)

DEMO = (sys.executable, "-m", "headrace", "demo", "--data")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")} | SCRIPTED
# 0.4 s for an answer of 8 tokens: no step is over before the test has seen the one before.
SCRIPT = {"vocabulary": 20, "tokens_per_second": 20}


class Demo:
    """One `headrace demo`, with its output in a file."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.output = folder / "output.txt"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [*DEMO, str(folder / "data"), *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
                env=ENVIRONMENT | {"HEADRACE_SCRIPTED_VLLM": json.dumps(SCRIPT)},
            )

    @property
    def said(self) -> str:
        return self.output.read_text()

    def reaches(self, text: str, within: float = 100.0) -> None:
        eventually(lambda: text in self.said or self.process.poll() is not None, within, text)
        assert self.process.poll() is None, self.said

    def processes(self, **marker: str) -> list[int]:
        """Those of the demo, or those with this in their environment, too."""
        try:
            instance = json.loads((self.folder / "data" / "up.json").read_text())["instance"]
        except FileNotFoundError:
            return []
        return marked({INSTANCE: instance, **marker})


@pytest.fixture
def demo(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Demo]:
    one = Demo(tmp_path, *getattr(request, "param", ()))
    yield one
    if one.process.poll() is None:
        one.process.kill()
        one.process.wait()


def assert_interrupted(demo: Demo, started: list[int]) -> None:
    assert started
    assert demo.process.wait(60) == 130, demo.said
    assert demo.processes() == []
    assert "Traceback" not in demo.said
    assert demo.said.splitlines()[-1] == (
        "interrupted: everything that the demo had started has ended"
    )


def test_what_the_demo_says_to_copy_works_in_any_folder(tmp_path: Path) -> None:
    data, parts = tmp_path / "a folder" / "demo", frozenset({"redis", "gateway"})
    with Stack(UpOptions(data=data, port=0, parts=parts)) as stack:
        api = Gateway(stack.gateway_url, key=stack.api_key, variables=found_by(stack))
        shell = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        done = subprocess.run(
            ["sh", "-c", api.command("runs", "--json")],
            cwd=tmp_path,
            env=shell,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, json.loads(done.stdout)) == (0, []), done.stderr


# `kill` reaches the process that it names, Ctrl-C all of a terminal's processes.
def test_sigterm_while_the_parts_start_leaves_no_process(demo: Demo) -> None:
    eventually(lambda: len(demo.processes()) >= 3)
    started = demo.processes()

    demo.process.terminate()

    assert_interrupted(demo, started)


@pytest.mark.parametrize("demo", [("--quick",)], indirect=True, ids=["quick"])
def test_ctrl_c_during_grpo_leaves_no_process(demo: Demo) -> None:
    demo.reaches("The page")
    started = demo.processes()
    demo.reaches("step 1/4 ", within=120)

    os.killpg(demo.process.pid, signal.SIGINT)

    assert_interrupted(demo, started)


def test_kill_9_leaves_no_process(demo: Demo) -> None:
    demo.reaches("The page")
    started = demo.processes()
    assert started

    demo.process.kill()
    demo.process.wait()

    eventually(lambda: demo.processes() == [])


def test_a_part_that_is_killed_five_times_ends_the_demo_with_the_reason(demo: Demo) -> None:
    demo.reaches("The page")

    def kill_the_learner_until_the_end() -> bool:
        for pid in demo.processes(**{PART: "learner"}):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return demo.process.poll() is not None

    eventually(kill_the_learner_until_the_end, within=120)

    assert demo.process.returncode == 1, demo.said
    assert "error: learner was killed by SIGKILL at each of its 5 starts." in demo.said
    assert "Traceback" not in demo.said
    assert demo.processes() == []
