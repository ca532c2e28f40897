"""OpenEnv servers and verifiers tasksets; skipped where these libraries are not installed."""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from services.environments.openenv_server import OpenEnvEnvironment
from services.environments.playing import EnvironmentFailed, NoEnvironment, PlayedEpisode
from services.environments.verifiers_taskset import VerifiersEnvironment, rows_of
from tests.unit.environments.servers import GROUP, Policy, serving, session

openenv = pytest.mark.skipif(find_spec("openenv") is None, reason="openenv is not installed")
verifiers = pytest.mark.skipif(find_spec("verifiers") is None, reason="verifiers is not installed")

TASKSET = """
import verifiers.v1 as vf

__all__ = ["Sums"]

class SumTask(vf.Task[vf.TaskData]):
    pass

class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for n in range(9):
            yield SumTask(vf.TaskData(prompt=f"{n}+1", name=f"sum {n}"), self.config.task)
"""


@pytest.mark.skipif(find_spec("openenv") is not None, reason="openenv is installed")
def test_a_missing_openenv_is_named_with_the_way_out() -> None:
    with pytest.raises(NoEnvironment, match=r"pip install 'headrace-server\[openenv\]'"):
        OpenEnvEnvironment("http://127.0.0.1:1", 1)


@pytest.mark.skipif(find_spec("verifiers") is not None, reason="verifiers is installed")
def test_a_missing_verifiers_is_named_with_the_way_out() -> None:
    with pytest.raises(NoEnvironment, match=r"pip install 'headrace-server\[verifiers\]'"):
        VerifiersEnvironment("textarena", None, 1)


@contextmanager
def guessing(fields: dict[str, Any]) -> Iterator[str]:
    """Run a server whose actions have these fields; `seed` 12 makes the number 3."""
    from openenv.core.env_server import Action, Environment, Observation, State, create_app
    from pydantic import create_model

    class Seen(Observation):
        hint: str = ""

    class Guessing(Environment):
        def reset(self, seed: int = 0, **named: Any) -> Seen:
            self.number = seed // 4
            return Seen(hint="Guess.")

        def step(self, action: Any, **named: Any) -> Seen:
            right = action.number == self.number
            return Seen(hint="no", done=right, reward=float(right))

        @property
        def state(self) -> State:
            return State()

    act = create_model("Guess", __base__=Action, **fields)
    app = create_app(Guessing, act, Seen, env_name="guessing")
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


async def guess(policy: Policy, **fields: Any) -> PlayedEpisode:
    with guessing(fields) as url, serving(policy) as gateway:
        environment = OpenEnvEnvironment(url, 8)
        async with environment.serving():
            return await environment.play(GROUP, session(gateway))


@openenv
async def test_an_answer_is_the_one_field_of_an_action() -> None:
    policy = Policy("1", "three", "3")
    found = await guess(policy, number=(int, ...))

    assert found.reward == {"reward": 1.0}
    said = [messages[-1]["content"] for messages in policy.asked]
    assert said[:2] == ["Count.\n\nGuess.", "no"]
    assert said[2].startswith("This is no valid action.")


@openenv
async def test_an_answer_is_the_json_of_an_action_with_several_fields() -> None:
    policy = Policy("3", '{"number": 3, "player": "a"}')
    found = await guess(policy, number=(int, ...), player=(str, ...))

    assert found.reward == {"reward": 1.0}
    assert "the fields metadata, number, player" in policy.asked[1][-1]["content"]


@openenv
async def test_an_openenv_server_that_is_away_gives_no_reward() -> None:
    environment = OpenEnvEnvironment("http://127.0.0.1:1", 8)
    async with environment.serving():
        with pytest.raises(EnvironmentFailed, match=r"127\.0\.0\.1:1/schema"):
            await environment.play(GROUP, session("http://127.0.0.1:1"))


@verifiers
def test_a_tasksets_tasks_become_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "headrace_sums.py").write_text(TASKSET)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    rows = [json.loads(line) for line in rows_of("headrace-sums", None, 2)]

    assert [row["prompt"] for row in rows] == ["0+1", "1+1"]
    assert rows[1]["verifiers_task"]["idx"] == 1


@verifiers
def test_an_unknown_verifiers_environment_is_refused() -> None:
    with pytest.raises(NoEnvironment, match="'no-such-one' does not load"):
        VerifiersEnvironment("no-such-one", None, 1)
