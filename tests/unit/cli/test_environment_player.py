"""An environment in place of an agent's command: its time limit, its errors, and its end."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from headrace.cli.output import CliError
from services.cli.agents.environment_player import EnvironmentPlayer
from services.environments.playing import EnvironmentFailed, PlayedEpisode
from tests.unit.environments.servers import GROUP

Play = Callable[[], Coroutine[Any, Any, PlayedEpisode]]
SESSION = {"id": "run-attempt-0"}


class Given:
    """An environment whose episode is given."""

    def __init__(self, play: Play, error: Exception | None = None) -> None:
        self._play, self._error = play, error
        self.served = False

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        if self._error is not None:
            raise self._error
        yield
        self.served = True

    async def play(self, group: Any, session: Any) -> PlayedEpisode:
        return await self._play()


async def won() -> PlayedEpisode:
    return PlayedEpisode(rewards=[0.25, 0.5], messages=[{"role": "user", "content": "é"}])


async def broken() -> PlayedEpisode:
    raise EnvironmentFailed("the game is broken")


async def faulty() -> PlayedEpisode:
    raise KeyError("board")


async def silent() -> PlayedEpisode:
    return PlayedEpisode()


async def surrogate() -> PlayedEpisode:
    return PlayedEpisode(components={"\ud800": 1.0})


async def endless() -> PlayedEpisode:
    await asyncio.Event().wait()
    raise AssertionError


def played(play: Play, limit: float = 60.0, verifier: bool = False, stopped: bool = False) -> Any:
    environment, stop = Given(play), threading.Event()
    if stopped:
        stop.set()
    player = EnvironmentPlayer(environment, limit, verifier)
    with player.serving():
        ended, reward = player.play(GROUP, SESSION, stop)
    assert environment.served
    return ended, reward


def test_an_episode_has_a_reward_and_a_transcript() -> None:
    ended, reward = played(won)
    assert reward == {"reward": 0.75}
    assert (ended.problem, ended.output) == ("", '{"role": "user", "content": "é"}')
    assert played(won, verifier=True)[1] is None
    assert played(silent, verifier=True)[1] is None


@pytest.mark.parametrize(
    ("play", "said"),
    [
        (broken, "the game is broken"),
        (faulty, "KeyError: 'board'"),
        (silent, "gave no reward before the episode ended"),
        (surrogate, "UnicodeEncodeError"),
    ],
)
def test_an_episode_that_breaks_has_no_reward(play: Play, said: str) -> None:
    ended, reward = played(play)
    assert reward["reward"] is None
    assert said in reward["error"]
    assert said in ended.problem


def test_what_an_environment_says_can_be_sent_whatever_it_is() -> None:
    async def play() -> PlayedEpisode:
        raise EnvironmentFailed("no \ud800")

    ended, reward = played(play)
    assert reward == {"reward": None, "error": "no ?"}
    assert ended.problem == "no ?"


def test_an_episode_ends_with_its_time_and_with_the_command() -> None:
    assert played(endless, limit=0.05)[1]["error"] == "it was stopped after 0.05 s"
    assert played(endless, stopped=True)[1]["error"] == "it was interrupted"


def test_an_environment_that_does_not_start_ends_the_command() -> None:
    player = EnvironmentPlayer(Given(won, OSError("no port is free")), 1, False)
    with (
        pytest.raises(CliError, match="the environment does not start: no port is free"),
        player.serving(),
    ):
        raise AssertionError
