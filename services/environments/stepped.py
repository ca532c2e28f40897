"""Plays environments with `reset` and `step` over HTTP (docs/environments.md has their
contract)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from services.environments.game import GameStep, played, text_of, user_messages
from services.environments.playing import EnvironmentFailed, Message, NoEnvironment, PlayedEpisode
from services.environments.policy import Policy

MOST_BYTES = 4 << 20
"""Largest answer of an environment."""
CLOSE_SECONDS = 5.0


class ServerEnvironment:
    """An environment behind a URL, whose episodes share their connections."""

    def __init__(self, url: str, turns: int) -> None:
        """Raises NoEnvironment if `url` is invalid."""
        self._url, self._turns = checked_url(url), turns

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with http_client() as self._http:
            yield


class SteppedEnvironment(ServerEnvironment):
    """Plays the episodes of one server that is asked step by step."""

    async def play(self, group: Mapping[str, Any], session: Mapping[str, Any]) -> PlayedEpisode:
        game = _SteppedGame(self._http, self._url, group, session["id"])
        try:
            policy = Policy(self._http, session)
            return await played(game, policy, group["prompt"], self._turns)
        finally:
            await game.close()


class _SteppedGame:
    tools: list[dict[str, Any]] = []

    def __init__(
        self, http: httpx.AsyncClient, url: str, group: Mapping[str, Any], episode: str
    ) -> None:
        self._http, self._url, self._episode = http, url, episode
        self._row = {name: group[name] for name in ("prompt", "answer", "columns", "row", "task")}

    async def reset(self) -> GameStep:
        return await self._ask("reset", {"row": self._row})

    async def step(self, answer: Message) -> GameStep:
        return await self._ask("step", {"action": answer.get("content") or ""})

    async def close(self) -> None:
        """End the episode at the server. Servers may lack this call, and its answer is not read."""
        sent = {"episode": self._episode}
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with (
                asyncio.timeout(CLOSE_SECONDS),
                self._http.stream("POST", f"{self._url}/close", json=sent),
            ):
                pass

    async def _ask(self, call: str, body: dict[str, Any]) -> GameStep:
        """Make one call. It is never retried: the environment may have taken the step without an
        answer."""
        sent = {"episode": self._episode, **body}
        answer = await answer_of(self._http, "POST", f"{self._url}/{call}", sent)
        done = any(answer.get(name) is True for name in ("done", "terminated", "truncated"))
        observation = answer.get("observation")
        if observation is None and not done:
            raise EnvironmentFailed(f"the environment's answer to {call} has no observation")
        text = "" if observation is None else text_of(observation)
        return GameStep(user_messages(text), done, answer.get("reward"), answer.get("components"))


def http_client() -> httpx.AsyncClient:
    """Return a client for all episodes of a server, without the library's default limit of 100
    connections."""
    return httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))


async def answer_of(http: httpx.AsyncClient, method: str, url: str, body: Any) -> dict[str, Any]:
    """Return the JSON object that `url` answers with. Raises EnvironmentFailed."""
    try:
        async with http.stream(method, url, json=body) as response:
            content = bytearray()
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > MOST_BYTES:
                    raise EnvironmentFailed(f"{url} answered with more than {MOST_BYTES:,} bytes")
    except httpx.HTTPError as error:
        raise EnvironmentFailed(f"{url}: {str(error) or type(error).__name__}") from error
    text = content.decode(errors="replace")
    if not response.is_success:
        raise EnvironmentFailed(f"{url} answered {response.status_code}: {text[:300]}")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise EnvironmentFailed(f"{url} answered with no JSON object: {text[:300]}")
    return answer


def checked_url(url: str) -> str:
    """Return `url` without a slash at its end. Raises NoEnvironment."""
    try:
        parsed = httpx.URL(url)
        usable = parsed.scheme in ("http", "https") and parsed.host
    except httpx.InvalidURL:
        usable = ""
    if not usable:
        raise NoEnvironment(f"{url!r} is no address: name one like http://127.0.0.1:8080")
    return url.rstrip("/")
