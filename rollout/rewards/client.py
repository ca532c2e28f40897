"""Client of the reward service. While the service is unreachable, a worker waits and holds its
leases: a failure to score a sample never becomes a reward of 0."""

import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx
import msgspec
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from headrace.redaction import redacted
from services.contracts.programs import PythonOutput, PythonRequest
from services.contracts.scores import ScoreItem, ScoreResponse, ScoreResult
from services.contracts.teaching import (
    TeacherScoreRequest,
    TeacherScores,
    TeacherText,
    TeacherTextRequest,
)
from services.runtime.api_key import authorization
from services.runtime.logs import get_logger
from services.runtime.watched import LOOK_SECONDS, while_healthy

log = get_logger(__name__)

MAX_ITEMS = 4096
LONGEST_SCORING = 10 * 3600.0
"""Seconds. The service limits each item itself: three hours at most, in up to three tries. TCP
notices a dead host much earlier, and `/healthz` a service that hangs."""
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""A peer that vanished, such as a host without power, is noticed after a minute."""
Waits = Callable[[str], Awaitable[None]]
"""Called with the reason before each retry."""


class RewardUnavailable(ConnectionError):
    """The reward service is unreachable or overloaded. A retry may succeed."""


class ScoringRefused(ValueError):
    """The reward service refuses to score these items. Its answer has the reason."""


class RewardClient:
    """Calls `/v1/score`, `/v1/teachers` and `/v1/python` of the reward service at `url`."""

    def __init__(
        self,
        url: str,
        key: Callable[[], str | None] = lambda: None,
        longest_wait: float = 10.0,
        look_seconds: float = LOOK_SECONDS,
        look_limit: float = LOOK_SECONDS,
    ) -> None:
        """`key` is read before each request: the service may create its key after the worker
        started."""
        self._key = key
        self._url = url.rstrip("/")
        self.url = redacted(self._url)
        self._longest_wait = longest_wait
        self._look_seconds = look_seconds
        self._look_limit = look_limit
        self._made: aiohttp.ClientSession | None = None

    @property
    def _http(self) -> aiohttp.ClientSession:
        # Created by the first request, because it belongs to the event loop.
        if self._made is None:
            self._made = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,
                    ssl=httpx.create_ssl_context(trust_env=False),
                    socket_factory=_socket,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(sock_connect=10.0, sock_read=LONGEST_SCORING),
            )
        return self._made

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()

    async def score(self, items: list[ScoreItem]) -> list[ScoreResult]:
        """Return results in the order of `items`. Retries while the service is unreachable. Raises
        ScoringRefused if the request itself is wrong."""
        results: list[ScoreResult] = []
        for start in range(0, len(items), MAX_ITEMS):
            results += await self._score(items[start : start + MAX_ITEMS])
        return results

    async def taught(self, request: TeacherScoreRequest, waits: Waits) -> list[float]:
        """Return the teacher's log-probability of each token of the completion. Retries while the
        teacher or the service is unreachable, and calls `waits` with the reason. Raises
        ScoringRefused."""
        body = msgspec.json.encode(request.model_dump())
        retrying = self._retrying(waits)
        content: bytes = await retrying(self._post, "/v1/teachers/score", body)
        logprobs = TeacherScores.model_validate_json(content).logprobs
        if len(logprobs) != len(request.completion):
            raise ScoringRefused(f"reward service at {self.url} answered for other tokens")
        return logprobs

    async def teachers_text(self, request: TeacherTextRequest, waits: Waits) -> str:
        """Return the text that the teacher's tokenizer decodes. Retries and raises like
        `taught`."""
        body = msgspec.json.encode(request.model_dump())
        content: bytes = await self._retrying(waits)(self._post, "/v1/teachers/text", body)
        return TeacherText.model_validate_json(content).text

    async def python(self, code: str, seconds: float) -> str:
        """Run a program of the policy for at most `seconds`. Return its output, and its error if it
        failed. Retries for `seconds` while the service or its sandbox is unreachable, then raises
        RewardUnavailable. Raises ScoringRefused."""
        body = PythonRequest(code=code, seconds=seconds).model_dump_json().encode()
        retrying = self._retrying().copy(stop=stop_after_delay(seconds), reraise=True)
        content: bytes = await retrying(self._post, "/v1/python", body)
        return PythonOutput.model_validate_json(content).output

    async def _score(self, items: list[ScoreItem]) -> list[ScoreResult]:
        body = msgspec.json.encode({"items": [item.model_dump(mode="json") for item in items]})
        return await self._retrying()(self._ask, body, [item.id for item in items])

    def _retrying(self, waits: Waits | None = None) -> AsyncRetrying:
        async def before_sleep(state: RetryCallState) -> None:
            self._log_wait(state)
            if waits is not None and state.outcome is not None:
                await waits(str(state.outcome.exception()))

        return AsyncRetrying(
            retry=retry_if_exception_type(RewardUnavailable),
            wait=wait_random_exponential(multiplier=0.2, max=self._longest_wait),
            before_sleep=before_sleep,
        )

    async def _ask(self, body: bytes, ids: list[str]) -> list[ScoreResult]:
        results = ScoreResponse.model_validate_json(await self._post("/v1/score", body)).results
        if [result.id for result in results] != ids:
            raise RewardUnavailable(f"reward service at {self.url} answered for other items")
        return results

    async def _post(self, path: str, body: bytes) -> bytes:
        """Return the body of the answer; wait for it while the service is healthy. Raises
        RewardUnavailable, ScoringRefused."""
        try:
            answer = self._answer(path, body)
            status, content = await while_healthy(answer, self._look, self._look_seconds)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            what = str(error) or type(error).__name__
            raise RewardUnavailable(f"reward service at {self.url}: {what}") from error
        if status >= 500 or status in (401, 408, 429):
            raise RewardUnavailable(f"reward service at {self.url}: {_detail(status, content)}")
        if status >= 400:
            raise ScoringRefused(
                f"reward service at {self.url} refuses to score: {_detail(status, content)}"
            )
        return content

    async def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        headers = {"content-type": "application/json"}
        if urlsplit(self._url).username is None:
            # A user and a password in the URL replace the key.
            headers |= authorization(self._key())
        async with self._http.post(
            self._url + path, data=body, headers=headers, allow_redirects=False
        ) as response:
            return response.status, await response.read()

    async def _look(self) -> None:
        limit = aiohttp.ClientTimeout(total=self._look_limit)
        async with self._http.get(f"{self._url}/healthz", timeout=limit) as response:
            await response.read()

    def _log_wait(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number in (1, 5) or state.attempt_number % 20 == 0:
            log.warning("scoring waits", tries=state.attempt_number, error=str(error))


def _socket(address: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(*address[:3])
    for option in KEEPALIVE:
        made.setsockopt(*option)
    return made


def _detail(status: int, content: bytes) -> str:
    """Return the detail of a problem document, or the beginning of any other answer."""
    try:
        return f"{status} {msgspec.json.decode(content)['detail']}"[:500]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return f"{status} {content.decode(errors='replace')[:300]}"
