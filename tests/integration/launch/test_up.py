"""`headrace up` as a user meets it: Ctrl-C, a closed terminal, kill -9, a second one."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.runtime.process import INSTANCE, marked
from tests.integration.launch.conditions import eventually

SMALL_PARTS = Path(__file__).with_name("small_parts.py")


class Up:
    """One `headrace up` over small parts, with its output in a file."""

    def __init__(self, data: Path, kind: str, grace: float) -> None:
        self.data = data
        self.output = data.parent / f"output-{kind}.txt"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(SMALL_PARTS), str(data), kind, str(grace)],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.getcwd()},
            )

    @property
    def said(self) -> str:
        return self.output.read_text()

    @property
    def instance(self) -> str:
        return str(json.loads((self.data / "up.json").read_text())["instance"])

    def ready(self) -> None:
        eventually(lambda: "ready in" in self.said or self.process.poll() is not None)
        assert self.process.poll() is None, self.said

    def log(self, part: str) -> str:
        path = self.data / "logs" / f"{part}.log"
        return path.read_text() if path.exists() else ""

    def leaves_nothing(self, instance: str) -> bool:
        return marked({INSTANCE: instance}) == []


Starter = Callable[..., Up]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Starter]:
    started: list[Up] = []

    def start(kind: str, grace: float = 20.0) -> Up:
        started.append(Up(tmp_path / "data", kind, grace))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_in_order(up: Starter, number: signal.Signals) -> None:
    one = up("obedient")
    one.ready()
    eventually(lambda: all("up\n" in one.log(part) for part in ("redis", "gateway", "learner")))
    instance = one.instance
    one.process.send_signal(number)
    assert one.process.wait(100) == 0, one.said
    assert one.leaves_nothing(instance)
    assert all("TERM" in one.log(part) for part in ("redis", "gateway", "learner"))
    stops = [one.said.index(f"{part:<10} stopped") for part in ("learner", "gateway", "redis")]
    assert stops == sorted(stops)
    assert f"{number.name}: stopping, workers first" in one.said


def test_a_part_that_ignores_the_request_is_killed_after_the_grace(up: Starter) -> None:
    one = up("stubborn", grace=0.5)
    one.ready()
    eventually(lambda: "up\n" in one.log("learner"))
    instance = one.instance
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(100) == 0, one.said
    assert one.leaves_nothing(instance)
    assert "did not stop in time" in one.said


def test_a_second_signal_kills_headrace_up_at_once(up: Starter) -> None:
    one = up("stubborn", grace=600)
    one.ready()
    eventually(lambda: "up\n" in one.log("learner"))
    instance = one.instance
    one.process.send_signal(signal.SIGINT)
    eventually(lambda: "SIGINT: stopping" in one.said)
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(100) == 1, one.said
    assert one.leaves_nothing(instance)


@pytest.mark.parametrize("kind", ["obedient", "stubborn", "agent"])
def test_kill_9_leaves_no_process_behind(up: Starter, kind: str) -> None:
    one = up(kind)
    one.ready()
    eventually(lambda: "up\n" in one.log("learner"))
    instance = one.instance
    assert not one.leaves_nothing(instance)
    one.process.kill()
    one.process.wait()
    eventually(lambda: one.leaves_nothing(instance), what=str(marked({INSTANCE: instance})))


@pytest.mark.multirank
def test_kill_9_takes_the_learners_ranks_along(up: Starter) -> None:
    one = up("learner")
    one.ready()
    eventually(lambda: one.log("learner").count("rank up") == 2, what=one.said)
    instance = one.instance
    # The supervisor, its rank server and the ranks.
    assert len(marked({INSTANCE: instance})) == 4
    one.process.kill()
    one.process.wait()
    eventually(lambda: one.leaves_nothing(instance))


def test_headrace_up_ends_what_a_killed_one_left(up: Starter) -> None:
    first = up("agent-with-loose-child")
    first.ready()
    instance = first.instance
    eventually(lambda: len(marked({INSTANCE: instance})) == 3)
    first.process.kill()
    first.process.wait()
    # The agent and the tied child go by themselves; the loose one stays, re-parented.
    eventually(lambda: len(marked({INSTANCE: instance})) == 1)
    loose = marked({INSTANCE: instance})[0]
    second = up("obedient")
    second.ready()
    assert second.leaves_nothing(instance)
    assert "ended processes that an earlier headrace up left" in second.said
    assert str(loose) in second.said


def test_a_second_headrace_up_on_the_same_data_is_refused_with_the_pid_of_the_first(
    up: Starter,
) -> None:
    first = up("obedient")
    first.ready()
    second = up("stubborn")
    assert second.process.wait(100) == 1
    assert f"is in use by a `headrace up` (pid {first.process.pid})" in second.said
    assert "Traceback" not in second.said
    assert first.process.poll() is None


def test_headrace_up_names_a_port_in_use_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = str(taken.getsockname()[1])
        refused = subprocess.run(
            [
                *(sys.executable, "-m", "headrace", "up", "--data", str(tmp_path / "data")),
                *("--port", port, "--reward-port", "0", "--redis-port", "0"),
            ],
            capture_output=True,
            text=True,
            check=False,
            env={k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")},
        )

    assert refused.returncode == 1
    assert refused.stderr == (
        f"error: port {port} on 127.0.0.1 is in use: stop what listens there (`ss -ltnp` names "
        "it), or choose another port with --port\n"
    )
    assert refused.stdout == ""


def test_a_part_that_keeps_dying_ends_everything_and_shows_its_last_words(up: Starter) -> None:
    one = up("crashing")
    assert one.process.wait(100) == 1
    assert "learner exited with code 1 at each of its 2 starts" in one.said
    assert "    the GPU is on fire" in one.said
    assert "Traceback" not in one.said
    assert "TERM" in one.log("redis")
    assert one.leaves_nothing(one.instance)


def test_a_part_with_wrong_settings_ends_everything_at_its_first_start(up: Starter) -> None:
    one = up("misconfigured")
    assert one.process.wait(100) == 1
    assert "reward cannot start: --port (HEADRACE_PORT): not a port" in one.said
    assert "restarting" not in one.said
    assert one.log("reward").count("\nerror:") == 1


def test_a_part_whose_last_words_are_final_is_started_once(up: Starter) -> None:
    hopeless = up("hopeless")
    assert hopeless.process.wait(100) == 1
    assert "learner exited with code 1, which the next start would not change" in hopeless.said
    assert "    the GPU is on fire" in hopeless.said
    assert "restarting" not in hopeless.said
