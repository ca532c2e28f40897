"""Plays sessions with an environment instead of a command, all in one event loop."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.cli.agents.command_player import LOOK_SECONDS, Ended, check_sendable
from headrace.cli.output import CliError
from services.environments.playing import (
    Environment,
    EnvironmentFailed,
    NoEnvironment,
    PlayedEpisode,
)


class EnvironmentPlayer:
    """Plays each session with the environment (see `players.Player`)."""

    def __init__(self, environment: Environment, limit: float, verifier: bool) -> None:
        """`verifier`: whether the run's verifiers, not the environment, reward a session."""
        self._environment, self._limit, self._verifier = environment, limit, verifier
        self._loop = asyncio.new_event_loop()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run the environment while the block plays sessions. Raises CliError if it does not
        start."""
        thread = threading.Thread(target=self._loop.run_forever, name="environment", daemon=True)
        thread.start()
        serving = self._environment.serving()
        try:
            asyncio.run_coroutine_threadsafe(_entered(serving), self._loop).result()
        except Exception as error:
            raise CliError(f"the environment does not start: {error}") from error
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(
                serving.__aexit__(None, None, None), self._loop
            ).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    def play(
        self, group: dict[str, Any], session: dict[str, Any], stop: threading.Event
    ) -> tuple[Ended, dict[str, Any] | None]:
        """Play one session in the environment, and return its outcome and reward."""
        began = time.monotonic()
        playing: Future[PlayedEpisode] = asyncio.run_coroutine_threadsafe(
            self._limited(group, session), self._loop
        )
        output = problem = ""
        reward: dict[str, Any] | None = None
        try:
            outcome = _until(playing, stop)
            output = outcome.transcript
            reward = None if self._verifier else outcome.reward
            check_sendable(reward)
        except TimeoutError:
            problem = f"it was stopped after {self._limit:g} s"
        except (EnvironmentFailed, CancelledError) as error:
            problem = str(error) or "it was interrupted"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            # An environment's own words may have half of a surrogate pair, which cannot be sent.
            problem = problem.encode(errors="replace").decode()
            reward = {"reward": None, "error": problem[:1000]}
        return Ended(None, time.monotonic() - began, output, "", problem), reward

    async def _limited(self, group: dict[str, Any], session: dict[str, Any]) -> PlayedEpisode:
        async with asyncio.timeout(self._limit):
            return await self._environment.play(group, session)


def _until(playing: "Future[PlayedEpisode]", stop: threading.Event) -> PlayedEpisode:
    while True:
        try:
            return playing.result(LOOK_SECONDS)
        except NotYet:
            if playing.done():  # it was the session's own time that is over, or it ended just now
                return playing.result()
            if stop.is_set():
                playing.cancel()


async def _entered(serving: Any) -> None:
    await serving.__aenter__()


def chosen(
    verifiers: str | None, openenv: str | None, url: str | None, config: Path | None, turns: int
) -> Environment:
    """Return the environment of the one option that is set. Raises CliError."""
    try:
        if verifiers:
            from services.environments.verifiers_taskset import VerifiersEnvironment

            return VerifiersEnvironment(verifiers, config, turns)
        if config:
            raise NoEnvironment("--environment-config goes with --verifiers")
        if openenv:
            from services.environments.openenv_server import OpenEnvEnvironment

            return OpenEnvEnvironment(openenv, turns)
        from services.environments.stepped import SteppedEnvironment

        assert url
        return SteppedEnvironment(url, turns)
    except NoEnvironment as error:
        raise CliError(str(error), code=2) from None
