"""Client of the reward service. If that is away, a worker waits and holds its leases: no sample
gets a 0 because nobody could score it."""

import asyncio
from collections.abc import Callable

import httpx
import msgspec
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    wait_random_exponential,
)

from rollout.http_transport import PerRequestTransport
from services.contracts.scores import ScoreItem, ScoreResponse, ScoreResult
from services.runtime.api_key import authorization
from services.runtime.logs import get_logger
from services.settings import redacted

log = get_logger(__name__)

MAX_ITEMS = 4096
LONGEST_SCORING = 10 * 3600.0
"""Seconds. The service limits each item itself: three hours at most, in up to three tries. A host
that is gone is noticed much earlier by TCP, and a service that hangs by `/healthz`."""
LOOK_SECONDS = 30.0
"""Interval and time limit of health checks while a request waits."""


class RewardUnavailable(ConnectionError):
    """The reward service is away or overloaded; a later try may succeed."""


class ScoringRefused(ValueError):
    """The reward service refuses to score these items: its answer has the reason."""


class RewardClient:
    """`POST /v1/score` at `url`."""

    def __init__(
        self,
        url: str,
        key: Callable[[], str | None] = lambda: None,
        longest_wait: float = 10.0,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`key` is asked before each request: the service may make its key after the worker has
        started."""
        self._key = key
        self.url = redacted(url.rstrip("/"))
        self._longest_wait = longest_wait
        self._look_seconds = look_seconds
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=httpx.Timeout(10.0, read=LONGEST_SCORING),
            transport=PerRequestTransport(),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def score(self, items: list[ScoreItem]) -> list[ScoreResult]:
        """Results in the order of `items`. Retries while the service is away. Raises ScoringRefused
        if the request itself is wrong."""
        results: list[ScoreResult] = []
        for start in range(0, len(items), MAX_ITEMS):
            results += await self._score(items[start : start + MAX_ITEMS])
        return results

    async def _score(self, items: list[ScoreItem]) -> list[ScoreResult]:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(RewardUnavailable),
            wait=wait_random_exponential(multiplier=0.2, max=self._longest_wait),
            before_sleep=self._log_wait,
        )
        body = msgspec.json.encode({"items": [item.model_dump(mode="json") for item in items]})
        return await retrying(self._ask, body, [item.id for item in items])

    async def _ask(self, body: bytes, ids: list[str]) -> list[ScoreResult]:
        try:
            response = await self._answer(body)
        except httpx.TransportError as error:
            what = str(error) or type(error).__name__
            raise RewardUnavailable(f"reward service at {self.url}: {what}") from error
        if response.is_server_error or response.status_code in (401, 408, 429):
            raise RewardUnavailable(f"reward service at {self.url}: {_detail(response)}")
        if response.is_error:
            raise ScoringRefused(
                f"reward service at {self.url} refuses to score: {_detail(response)}"
            )
        results = ScoreResponse.model_validate_json(response.content).results
        if [result.id for result in results] != ids:
            raise RewardUnavailable(f"reward service at {self.url} answered for other items")
        return results

    async def _answer(self, body: bytes) -> httpx.Response:
        """The answer; waits while the service is healthy. Raises TransportError."""
        headers = {"content-type": "application/json"} | authorization(self._key())
        request = asyncio.create_task(self._http.post("/v1/score", content=body, headers=headers))
        try:
            while not (await asyncio.wait([request], timeout=self._look_seconds))[0]:
                await self._http.get("/healthz", timeout=self._look_seconds)
            return request.result()
        finally:
            request.cancel()

    def _log_wait(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number in (1, 5) or state.attempt_number % 20 == 0:
            log.warning("scoring waits", tries=state.attempt_number, error=str(error))


def _detail(response: httpx.Response) -> str:
    """The detail of a problem document, else the beginning of the answer."""
    try:
        return f"{response.status_code} {response.json()['detail']}"[:500]
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code} {response.text[:300]}"
