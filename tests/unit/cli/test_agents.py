"""`headrace agents`: a command's process group, its reward, and what it finds in its
environment."""

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.agents.command_player import (
    KEPT,
    NO_REWARD,
    Ended,
    environment_of,
    play,
    reward_in,
    reward_of,
)
from headrace.cli.agents.players import NO_TURN, Players
from headrace.cli.client import Away, Later
from headrace.cli.output import CliError
from tests.integration.launch.conditions import eventually

SHELL = ["/bin/sh", "-c"]


def shell(script: str, limit: float = 60.0) -> Ended:
    return play([*SHELL, script], dict(os.environ), limit, threading.Event())


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_what_a_command_prints_is_kept_apart() -> None:
    ended = shell("echo thinking; echo oops >&2; echo 0.5")
    assert (ended.exit_code, ended.problem) == (0, "")
    assert (ended.output, ended.errors) == ("thinking\n0.5\n", "oops\n")
    assert reward_of(ended, "last-line", Path()) == {"reward": 0.5}
    assert reward_of(ended, "verifier", Path()) is None


def test_of_much_output_the_end_is_kept() -> None:
    ended = shell("head -c 5000000 /dev/zero | tr '\\0' x; echo; echo 1")
    assert len(ended.output) == KEPT
    assert reward_of(ended, "last-line", Path()) == {"reward": 1}


def test_a_command_that_fails_has_no_reward() -> None:
    for ended in (shell("echo 1; exit 3"), play(["/no/such"], {}, 1, threading.Event())):
        reward = reward_of(ended, "last-line", Path())
        assert reward is not None
        assert reward["reward"] is None
    assert "exit code 3" in shell("exit 3").problem


def test_a_command_past_its_time_is_killed_with_all_it_started() -> None:
    # A busy machine may take longer to begin.
    limit, ended = 0.5, shell("sleep 600 & echo $!; wait", 0.5)
    while not ended.output:
        limit *= 4
        ended = shell("sleep 600 & echo $!; wait", limit)
    assert ended.problem == f"it was stopped after {limit:g} s"
    eventually(lambda: gone(int(ended.output)))


def test_what_a_command_leaves_running_does_not_delay_it() -> None:
    ended = shell("sleep 600 & echo $!")
    assert (ended.problem, ended.seconds < 300) == ("", True)


def test_stopping_ends_an_agent() -> None:
    stop = threading.Event()
    stop.set()
    ended = play([sys.executable, "-c", "import time; time.sleep(600)"], {}, 600, stop)
    assert ended.problem == "it was interrupted"


def test_rewards_that_a_line_says() -> None:
    assert reward_in('x\n{"components": {"a": 1}}\n\n') == {"components": {"a": 1}}
    assert reward_in("1") == {"reward": 1}
    for text in ("", "done", "true", "[1]", '{"score": 1}'):
        with pytest.raises(ValueError, match="no reward"):
            reward_in(text)


@pytest.mark.parametrize(
    "line",
    [
        "NaN",
        "1e999",
        '{"components": {"x": NaN}}',
        '{"components": {"\\ud800": 1}}',
        "[" * 100_000,
        '{"reward":' * 100_000,
    ],
)
def test_a_line_that_cannot_be_sent_is_not_a_reward(line: str) -> None:
    with pytest.raises(ValueError, match="no reward"):
        reward_in(line)


def test_a_reward_may_stand_in_a_file(tmp_path: Path) -> None:
    ended = shell("echo hi")
    missing = reward_of(ended, "file", tmp_path / "reward")
    assert missing is not None
    assert missing["reward"] is None
    (tmp_path / "reward").write_text("0.25\n")
    assert reward_of(ended, "file", tmp_path / "reward") == {"reward": 0.25}


class Earning:
    """A player whose sessions all earn the same."""

    def __init__(self, reward: dict[str, Any] | None = None) -> None:
        self._reward = reward or {"reward": 1}

    def serving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def play(self, group: Any, session: Any, stop: Any) -> tuple[Ended, dict[str, Any]]:
        return Ended(0, 1.0, "1\n", "", ""), self._reward


class Api:
    """A gateway with one group. It is unreachable when the reward is sent."""

    def __init__(self) -> None:
        self.groups: list[Any] = [{"attempt": "a", "row": 0, "sessions": [{"id": "s"}]}, None]
        self.posted: list[tuple[str, Any]] = []

    def get(self, path: str) -> Any:
        return {"state": "succeeded"}

    def post(self, path: str, json: Any = None) -> Any:
        if path.endswith("/lease"):
            if group := self.groups.pop(0):
                return group
            raise CliError("the run has ended")
        self.posted.append((path, json))
        if json == {"reward": 1}:
            raise Away("no gateway")
        return {}


def test_a_reward_that_the_gateway_missed_is_not_reported_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.agents.players.PATIENCE", 0.0)
    api: Any = Api()
    player: Any = Earning()
    players = Players(api, "run", player, tmp_path)
    with ThreadPoolExecutor(1) as pool:
        players.play_all(pool, 1)
    assert {str(told) for _, told in api.posted} == {"{'reward': 1}"}
    assert players.failed == 1


class Plain(Api):
    """A gateway whose session has `turns` turns, and which refuses rewards that are no numbers."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self._turns = turns

    def post(self, path: str, json: Any = None) -> Any:
        if json == {"reward": "high"}:
            raise CliError("reward: a finite number is wanted")
        if path.endswith("/end"):
            return {"turns": self._turns}
        return super().post(path, json)


@pytest.mark.parametrize(
    ("turns", "reward", "problem"),
    [
        (0, {"reward": None, "error": "it ended with exit code 1"}, "it ended with exit code 1"),
        (0, {"reward": 0.5}, NO_TURN),
        (2, {"reward": "high"}, "reward: a finite number is wanted"),
        (2, {"reward": 0.5}, ""),
    ],
)
def test_the_command_says_why_a_session_is_not_trained(
    tmp_path: Path, turns: int, reward: dict[str, Any], problem: str
) -> None:
    api: Any = Plain(turns)
    players = Players(api, "run", Earning(reward), tmp_path)
    with ThreadPoolExecutor(1) as pool:
        players.play_all(pool, 1)
    first, _, _ = (tmp_path / "agents/run/s.log").read_text().partition("\n")
    assert json.loads(first)["problem"] == problem
    assert players.failed == bool(problem)


def test_an_agent_that_has_posted_its_reward_need_not_write_it(tmp_path: Path) -> None:
    class Posted(Plain):
        def post(self, path: str, json: Any = None) -> Any:
            answer = super().post(path, json)
            return {"reward": 0.5} if path.endswith("/reward") else answer

    silent = {"reward": None, "error": NO_REWARD}
    for api, failed in ((Posted(2), 0), (Plain(2), 1)):
        players = Players(api, "run", Earning(silent), tmp_path)  # type: ignore[arg-type]
        with ThreadPoolExecutor(1) as pool:
            players.play_all(pool, 1)
        assert players.failed == failed
    assert reward_of(Ended(0, 1.0, "", "", ""), "file", tmp_path / "none") == silent


def test_a_long_wait_for_a_group_is_explained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Closed(Api):
        left = 5

        def post(self, path: str, json: Any = None) -> Any:
            self.left -= 1
            if self.left >= 0:
                raise Later("no session can be opened now", 0.01)
            return super().post(path, json)

    player: Any = Earning()
    for quiet, times in ((60.0, 0), (0.0, 1)):
        monkeypatch.setattr("headrace.cli.agents.players.QUIET", quiet)
        api: Any = Closed()
        assert Players(api, "run", player, tmp_path)._lease() is not None
        assert capsys.readouterr().err.count("no session can be opened now") == times


def test_a_log_that_another_command_has_removed_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api: Any = Api()
    player: Any = Earning()
    players = Players(api, "run", player, tmp_path)
    folder = tmp_path / "agents" / "run"
    monkeypatch.setattr(Path, "iterdir", lambda of: iter([*folder.glob("*"), folder / "gone"]))
    players._note(api.groups[0], "s", Ended(0, 1.0, "1\n", "", ""), {"reward": 1}, "")
    assert (players.played, players.failed) == (1, 0)


def test_agents_go_on_when_the_disk_refuses_their_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api: Any = Plain(2)
    api.groups.insert(1, api.groups[0])
    players = Players(api, "run", Earning({"reward": 0.5}), tmp_path)
    (tmp_path / "agents" / "run").rmdir()
    with ThreadPoolExecutor(1) as pool:
        players.play_all(pool, 1)
    assert (players.played, players.failed) == (2, 0)
    assert capsys.readouterr().err.count("what sessions print is not kept") == 1


def test_an_agent_without_disk_space_for_its_files_has_no_reward(tmp_path: Path) -> None:
    class NoRoom(Earning):
        def play(self, group: Any, session: Any, stop: Any) -> tuple[Ended, dict[str, Any]]:
            raise OSError(28, "No space left on device")

    api: Any = Plain(0)
    players = Players(api, "run", NoRoom(), tmp_path)
    with ThreadPoolExecutor(1) as pool:
        players.play_all(pool, 1)
    assert (players.played, players.failed) == (1, 1)
    first, _, _ = (tmp_path / "agents/run/s.log").read_text().partition("\n")
    assert "cannot be played here: [Errno 28]" in json.loads(first)["problem"]


def test_an_agent_gets_its_sessions_key_and_no_other() -> None:
    group = {"prompt": "1+1", "answer": "2", "columns": {}, "row": 3, "task": 7}
    session = {"id": "s", "base_url": "http://h/v1", "key": "hr-session"}
    inherited = {"PATH": "/bin", "HEADRACE_API_KEY": "hr-secret", "OPENAI_API_KEY": "sk-mine"}
    inherited["ANTHROPIC_AUTH_TOKEN"] = "sk-theirs"
    found = environment_of(inherited, group, session, Path("/tmp/r"))
    assert json.loads(found["HEADRACE_ROW"]) == group
    assert (found["OPENAI_BASE_URL"], found["OPENAI_API_KEY"]) == ("http://h/v1", "hr-session")
    assert found["ANTHROPIC_BASE_URL"] == "http://h"
    assert found["ANTHROPIC_API_KEY"] == "hr-session"
    assert "ANTHROPIC_AUTH_TOKEN" not in found
    assert found["PATH"] == "/bin"
    assert "hr-secret" not in found.values()
