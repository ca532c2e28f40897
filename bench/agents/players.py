"""Conversations of 5 turns, played through sessions, or by a direct client of the same vLLM.

Both play the same conversations, at the same pace and with the same HTTP client, in one process: as
many at once, each begun when another has ended, and an agent that answers at once. The direct
client sends token ids to vLLM's socket, and has neither Redis nor HTTP servers between.

A turn lasts from the request's first byte to the answer's last: what the client does before and
after, such as tokenizing, is not in it.
"""

import asyncio
import itertools
import math
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench.installation import BenchFailed
from rollout.vllm.chat_rendering import added, opening
from rollout.vllm.model_files import TokenizerLike
from rollout.vllm.options import SERVED_NAME
from rollout.vllm.response import parse_answer, request_body, sampling_params
from rollout.vllm_plugin.wire import GENERATE
from services.contracts.config.rollout import Sampling

AT_ONCE, TURNS = 256, 5
GROUP = 8
"""Sessions that begin with the same messages."""
LONGEST, MEDIAN, SPREAD = 128, 48.0, 0.5
"""Tokens of an answer: lognormal, truncated at LONGEST."""
TIMEOUT_SECONDS = 120.0
Chat = list[dict[str, Any]]


@dataclass(frozen=True)
class Taken:
    """One turn that was answered."""

    ended: float
    """By time.monotonic, as `seconds` is."""
    seconds: float
    tokens: int


@dataclass
class Played:
    """What the players of one side have seen so far."""

    turns: list[Taken] = field(default_factory=list)

    def take(self, began: float, ended: float, tokens: int) -> None:
        """A turn was answered."""
        self.turns.append(Taken(ended, ended - began, tokens))


def length(group: int, index: int, turn: int) -> int:
    """Tokens of an answer."""
    source = random.Random(f"{group}/{index}/{turn}")
    return max(1, min(LONGEST, round(MEDIAN * math.exp(source.gauss(0, SPREAD)))))


def message(group: int, index: int, turn: int) -> dict[str, Any]:
    """What an agent says before an answer. Of the first one all sessions of a group say the same,
    after an instruction that is the same for all groups."""
    if turn == 0:
        text = " ".join(f"{n}+{n + 1}={2 * n + 1}" for n in range(20))
        return {"role": "user", "content": f"{text} {group}+{group}="}
    text = " ".join(f"{index}+{n}={index + n}" for n in range(6))
    return {"role": "user", "content": f"{text} {turn}+{group}="}


async def play(
    conversation: Callable[[int, int], Awaitable[None]], at_once: int, stagger: float
) -> None:
    """Conversations (group, index) one after the other, `at_once` at a time, for ever. The first
    ones begin over `stagger` seconds."""
    numbers: Iterator[tuple[int, int]] = (
        (group, index) for group in itertools.count() for index in range(GROUP)
    )

    async def player(delay: float) -> None:
        await asyncio.sleep(delay)
        while True:
            await conversation(*next(numbers))

    async with asyncio.TaskGroup() as players:
        for number in range(at_once):
            players.create_task(player(stagger * number / at_once))


@dataclass(frozen=True)
class Answer:
    """A server's answer, whole."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    began: float
    """When the request was sent, by time.monotonic."""

    def json(self) -> Any:
        """Its content."""
        return msgspec.json.decode(self.content)


class Client:
    """What both kinds of players send their requests by."""

    def __init__(self, url: str, connector: aiohttp.BaseConnector) -> None:
        # One request in flight for each player: the pool must not hold any of them back.
        assert connector.limit == 0
        self._http = aiohttp.ClientSession(
            url,
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def post(
        self, path: str, body: bytes, headers: dict[str, str], allowed: Collection[int] = ()
    ) -> Answer:
        """Raises BenchFailed for an error whose status is not `allowed`, aiohttp.ClientError."""
        began = time.monotonic()
        async with self._http.post(path, data=body, headers=headers) as said:
            found = Answer(said.status, said.headers, await said.read(), began)
        if found.status >= 400 and found.status not in allowed:
            raise BenchFailed(f"{path}: {found.status} {found.content[:500].decode()}")
        return found


class Agents:
    """Plays conversations in sessions of one run, as agents do: over HTTP."""

    def __init__(self, url: str, key: str, run: str, played: Played) -> None:
        self._client = Client(url, aiohttp.TCPConnector(limit=0))
        self._key = key
        self._run, self._played = run, played
        self._groups: dict[int, asyncio.Task[dict[str, Any]]] = {}

    async def ready(self) -> None:
        """Return once a worker plays turns of the run."""
        self._groups[0] = asyncio.create_task(self._lease())
        await self._groups[0]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def conversation(self, group: int, index: int) -> None:
        """One session, from its first turn to its end."""
        if group not in self._groups:
            self._groups[group] = asyncio.create_task(self._lease())
        session = (await self._groups[group])["sessions"][index]
        base = f"/v1/sessions/{session['id']}"
        chat: Chat = []
        for turn in range(TURNS):
            chat.append(message(group, index, turn))
            body = {"messages": chat, "max_tokens": length(group, index, turn)}
            answer = await self._post(f"{base}/v1/chat/completions", session["key"], body)
            ended = time.monotonic()
            said = answer.json()
            self._played.take(answer.began, ended, said["usage"]["completion_tokens"])
            chat.append(said["choices"][0]["message"])
        await self._post(f"{base}/reward", session["key"], {"reward": float(index % 2)})
        await self._post(f"{base}/end", session["key"])

    async def _lease(self) -> dict[str, Any]:
        while True:
            path = f"/v1/runs/{self._run}/groups:lease"
            leased = await self._post(path, self._key, allowed={HTTPStatus.TOO_MANY_REQUESTS})
            if leased.status != HTTPStatus.TOO_MANY_REQUESTS:
                found: dict[str, Any] = leased.json()
                return found
            await asyncio.sleep(float(leased.headers["Retry-After"]))

    async def _post(
        self, path: str, key: str, body: Any = None, allowed: Collection[int] = ()
    ) -> Answer:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        content = b"" if body is None else msgspec.json.encode(body)
        return await self._client.post(path, content, headers, allowed)


class Direct:
    """Plays conversations on vLLM itself."""

    def __init__(
        self, socket: Path, tokenizer: TokenizerLike, ends: list[int], played: Played
    ) -> None:
        self._client = Client("http://vllm", aiohttp.UnixConnector(str(socket), limit=0))
        self._played = played
        self._tokenizer, self._ends = tokenizer, ends

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def conversation(self, group: int, index: int) -> None:
        """One of them."""
        ids = await opening([message(group, index, 0)], [], self._tokenizer)
        for turn in range(TURNS):
            tokens = length(group, index, turn)
            params = sampling_params(Sampling(max_tokens=tokens), self._ends, tokens)
            # A cache salt of its own: it finds nothing of the sessions in the prefix cache.
            body = request_body(
                ids, 1, params, "direct", SERVED_NAME, f"direct-{group}-{index}-{turn}"
            )
            said = await self._client.post(GENERATE, body, {"Content-Type": "application/msgpack"})
            ended = time.monotonic()
            (sample,) = parse_answer(said.content, params)
            self._played.take(said.began, ended, len(sample.token_ids))
            answer = sample.token_ids.tolist()
            chat = [{"role": "assistant", "content": ""}, message(group, index, turn + 1)]
            ids += answer
            ids += await added(chat, 1, [], answer, self._ends, self._tokenizer)
