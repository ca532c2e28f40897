"""Own verifiers by URL: a service that answers `POST` with the contract of `/v1/score`.

Items that wait at the same moment share one request. The verifier has the operator's name in both
services. All parameters but `timeout` and `attempts` go to the service.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
from pydantic import ConfigDict, Field, ValidationError

from reward.errors import brief
from reward.remote_endpoints import Endpoint, EndpointError, UnavailableError, client
from reward.verifiers.base import Item, RemoteParams, RemoteVerifier, Verdict, broken
from services.contracts.scores import ScoreResult
from services.contracts.wrong_values import wrong_value


class HttpParams(RemoteParams):
    """The number of tries for an item. All other parameters go to the service."""

    model_config = ConfigDict(extra="allow")

    attempts: int = Field(
        3, ge=1, le=100, description="Tries for an item: after no answer, 429 and 5xx, ask again."
    )


@dataclass(frozen=True, eq=False)
class _Waiting:
    """One item that waits for its verdict."""

    item: Item
    params: HttpParams
    verdict: asyncio.Future[Verdict]


class HttpVerifier(RemoteVerifier[HttpParams]):
    """Sends items to an own verifier in batches."""

    Params = HttpParams

    def __init__(self, endpoint: Endpoint, batch: int = 32) -> None:
        self.name = endpoint.name
        self.description = f"An own verifier, at {_without_password(endpoint.url)}."
        self._endpoint = endpoint
        self._batch = batch
        self._waiting: dict[tuple[float, int], list[_Waiting]] = {}
        """Items without a request, by the parameters of a request as a whole."""
        self._requests: set[asyncio.Task[None]] = set()
        self._http: httpx.AsyncClient

    async def open(self) -> None:
        self._http = client()

    async def close(self) -> None:
        for request in self._requests:
            request.cancel()
        await self._http.aclose()

    async def score(self, item: Item, params: HttpParams) -> Verdict:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(item, params, loop.create_future())
        key = (params.timeout, params.attempts)
        if key not in self._waiting:
            # This runs after all items that arrive in this turn of the loop have joined.
            loop.call_soon(self._send, key)
        self._waiting.setdefault(key, []).append(waiting)
        return await waiting.verdict

    def _send(self, key: tuple[float, int]) -> None:
        """Start requests for all items that wait with these parameters."""
        waiting = [entry for entry in self._waiting.pop(key) if not entry.verdict.done()]
        for start in range(0, len(waiting), self._batch):
            batch = waiting[start : start + self._batch]
            request = asyncio.create_task(self._request(batch))
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)
            for entry in batch:
                entry.verdict.add_done_callback(partial(_end, batch, request))

    async def _request(self, batch: list[_Waiting]) -> None:
        """Ask about a batch. Ask about each item alone if the batch fails as a whole, or takes half
        of an item's time: one item must not fail its neighbours. Ask only once if the service is
        unavailable: the items did not cause that."""
        if len(batch) > 1:
            try:
                async with asyncio.timeout(batch[0].params.timeout / 2) as limit:
                    await self._ask(batch, lambda: limit.reschedule(None))
            except UnavailableError as error:
                for waiting in batch:
                    _settle(waiting, broken(str(error)))
                return
            except Exception:
                batch = [waiting for waiting in batch if not waiting.verdict.done()]
            else:
                return
        await asyncio.gather(*map(self._ask_alone, batch))

    async def _ask_alone(self, waiting: _Waiting) -> None:
        try:
            await self._ask([waiting])
        except Exception as error:
            reason = str(error) if isinstance(error, EndpointError) else brief(error)
            _settle(waiting, broken(reason))

    async def _ask(
        self, batch: list[_Waiting], on_unavailable: Callable[[], None] = lambda: None
    ) -> None:
        """Send one request, and give each item its verdict. Raises EndpointError."""
        items = [
            {
                "id": str(number),
                "verifier": self.name,
                "prompt": waiting.item.prompt,
                "completion": waiting.item.completion,
                **({"prefill": waiting.item.prefill} if waiting.item.prefill else {}),
                **({"truncated": True} if waiting.item.truncated else {}),
                "answer": waiting.item.answer,
                "columns": waiting.item.columns,
                "params": waiting.params.model_extra or {},
            }
            for number, waiting in enumerate(batch)
        ]
        attempts = batch[0].params.attempts
        reply: Any = await self._endpoint.ask(
            self._http, "", {"items": items}, attempts, on_unavailable
        )
        results = _results_by_id(reply)
        if results is None:
            raise EndpointError(f"{self._place} answers no list of results")
        for number, waiting in enumerate(batch):
            _settle(waiting, self._verdict(results.get(str(number))))

    def _verdict(self, raw: Any) -> Verdict:
        if raw is None:
            return broken(f"{self._place} has no result for this item, or several")
        try:
            result = ScoreResult.model_validate(raw)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"]))
            return broken(f"{self._place} answers no score: {where} {wrong_value(problem)}")
        parts = [(part.end, part.score) for part in result.parts]
        return Verdict(result.status, result.reward, result.detail, result.components, parts)

    @property
    def _place(self) -> str:
        return _without_password(self._endpoint.url)


def _results_by_id(reply: Any) -> dict[Any, Any] | None:
    """Return the raw results by the id of their item, with None for an id that occurs twice. Return
    None for a reply without a list of results."""
    results = reply.get("results") if isinstance(reply, dict) else None
    if not isinstance(results, list):
        return None
    by_id: dict[Any, Any] = {}
    for result in results:
        key = result.get("id") if isinstance(result, dict) else None
        if isinstance(key, str):
            by_id[key] = None if key in by_id else result
    return by_id


def _settle(waiting: _Waiting, verdict: Verdict) -> None:
    if not waiting.verdict.done():
        waiting.verdict.set_result(verdict)


def _end(
    batch: list[_Waiting], request: asyncio.Task[None], _verdict: asyncio.Future[Verdict]
) -> None:
    """Cancel `request` once each item of `batch` has its verdict or has given up. This is the
    callback of each verdict."""
    if all(waiting.verdict.done() for waiting in batch):
        request.cancel()


def _without_password(url: str) -> str:
    return str(httpx.URL(url).copy_with(userinfo=b""))
