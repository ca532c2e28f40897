"""Conversations of 5 turns, played through sessions, or by a direct client of the same vLLM.

Both play the same conversations, at the same pace and with the same HTTP client: as many at once,
each begun when another has ended, and an agent that answers at once. The direct client sends token
ids to vLLM's socket, and has neither Redis nor HTTP servers between.
"""

import asyncio
import itertools
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from rollout.http_transport import PerRequestTransport
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

    def take(self, began: float, tokens: int) -> None:
        """A turn has just been answered."""
        now = time.monotonic()
        self.turns.append(Taken(now, now - began, tokens))


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


class Agents:
    """Plays conversations in sessions of one run, as agents do: over HTTP."""

    def __init__(self, url: str, key: str, run: str, played: Played) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=120, transport=PerRequestTransport())
        self._key = key
        self._run, self._played = run, played
        self._groups: dict[int, asyncio.Task[dict[str, Any]]] = {}

    async def ready(self) -> None:
        """Return once a worker plays turns of the run."""
        self._groups[0] = asyncio.create_task(self._lease())
        await self._groups[0]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

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
            began = time.monotonic()
            answer = await self._post(f"{base}/v1/chat/completions", session["key"], body)
            said = answer.raise_for_status().json()
            self._played.take(began, said["usage"]["completion_tokens"])
            chat.append(said["choices"][0]["message"])
        reward = await self._post(f"{base}/reward", session["key"], {"reward": float(index % 2)})
        reward.raise_for_status()
        (await self._post(f"{base}/end", session["key"])).raise_for_status()

    async def _lease(self) -> dict[str, Any]:
        while True:
            leased = await self._post(f"/v1/runs/{self._run}/groups:lease", self._key)
            if leased.status_code != HTTPStatus.TOO_MANY_REQUESTS:
                found: dict[str, Any] = leased.raise_for_status().json()
                return found
            await asyncio.sleep(float(leased.headers["Retry-After"]))

    async def _post(self, path: str, key: str, body: Any = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return await self._http.post(path, json=body, headers=headers)


class SocketTransport(PerRequestTransport):
    """What agents' requests go by, over a Unix socket."""

    def __init__(self, socket: Path) -> None:
        super().__init__()
        self._socket = socket

    def _new(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(verify=self._certificates, uds=str(self._socket))


class Direct:
    """Plays conversations on vLLM itself."""

    def __init__(
        self, socket: Path, tokenizer: TokenizerLike, ends: list[int], played: Played
    ) -> None:
        transport = SocketTransport(socket)
        self._http = httpx.AsyncClient(base_url="http://vllm", timeout=120, transport=transport)
        self._played = played
        self._tokenizer, self._ends = tokenizer, ends

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

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
            began = time.monotonic()
            said = await self._http.post(GENERATE, content=body)
            (sample,) = parse_answer(said.raise_for_status().content, params)
            self._played.take(began, len(sample.token_ids))
            answer = sample.token_ids.tolist()
            chat = [{"role": "assistant", "content": ""}, message(group, index, turn + 1)]
            ids += answer
            ids += await added(chat, 1, [], answer, self._ends, self._tokenizer)
