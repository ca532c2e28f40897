"""The way in: a gateway with its runs, chains, evaluations, datasets, verifiers, workers, keys."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace import operations
from headrace.asynchronous.chains import AsyncChains
from headrace.asynchronous.connection import AsyncConnection
from headrace.asynchronous.datasets import AsyncDatasets
from headrace.asynchronous.evaluations import AsyncEvaluations
from headrace.asynchronous.keys import AsyncKeys
from headrace.asynchronous.runs import AsyncRuns
from headrace.models import (
    MadeVerifier,
    OpenAIAnswer,
    ScoredAnswer,
    VerifierInfo,
    WorkerRecord,
)
from headrace.request import reward_body, turns_of


class AsyncClient(AsyncConnection):
    """A gateway. `url` and `api_key` default to those of the command line: HEADRACE_GATEWAY_URL,
    HEADRACE_API_KEY, HEADRACE_API_KEY_FILE, and the key in the data folder HEADRACE_DATA."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 600.0,
        retries: int = 5,
    ) -> None:
        """`timeout`: seconds that the gateway may take to answer. `retries`: how often a request
        is sent again after a broken connection, 429, 502, 503 or 504."""
        super().__init__(url, api_key, timeout=timeout, retries=retries)
        self.runs = AsyncRuns(self)
        self.chains = AsyncChains(self)
        self.evaluations = AsyncEvaluations(self)
        self.datasets = AsyncDatasets(self)
        self.verifiers = AsyncVerifiers(self)
        self.workers = AsyncWorkers(self)
        self.keys = AsyncKeys(self)

    async def chat(
        self, model: str, messages: str | Sequence[Mapping[str, Any]], **options: Any
    ) -> OpenAIAnswer:
        """Ask the policy of a run: `model` is `RUN` or `RUN@latest`. A text is the turn of a user.
        `options` are those of OpenAI's API: max_tokens, temperature, …"""
        if options.get("stream"):
            raise ValueError("chat does not stream: use a client of OpenAI's API for that")
        body = {"model": model, "messages": turns_of(messages), **options}
        return await self.send(operations.chat_completions_create(body=body))

    async def reward(self, session: str, reward: float | Mapping[str, float]) -> float | None:
        """Say what the session of an id has earned, also after its end: a number, or the parts of
        a sum by name. Return what counts, which is the session's first reward."""
        request = operations.sessions_reward(session=session, body=reward_body(reward))
        return (await self.send(request)).reward

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncVerifiers:
    """The verifiers of the reward service."""

    def __init__(self, client: AsyncConnection) -> None:
        self._client = client

    async def list(self) -> AsyncIterator[VerifierInfo]:
        """Yield the verifiers."""
        async for page in self._client.pages(operations.verifiers_list):
            for record in page.verifiers:
                yield record

    async def add(
        self, file: str | Path, *, name: str | None = None, object: str | None = None
    ) -> MadeVerifier:
        """Add a Python file as the next version of its verifier. `object`: its class or function,
        if it has several. `name`: by default that of the object."""
        path = Path(file)
        body = {"file": path.name, "source": path.read_text(), "name": name, "object": object}
        return await self._client.send(operations.verifiers_create(body=body))

    async def score(
        self,
        verifier: str,
        completion: str,
        *,
        dataset: str | None = None,
        row: int = 0,
        prompt: str | Sequence[Mapping[str, Any]] | None = None,
        answer: Any = None,
        params: Mapping[str, Any] | None = None,
    ) -> ScoredAnswer:
        """Score an answer by a row of a dataset, or by the reference `answer`."""
        body = {
            "completion": completion,
            "dataset": dataset,
            "row": row,
            "prompt": prompt,
            "answer": answer,
            "params": dict(params or {}),
        }
        given = {key: value for key, value in body.items() if value is not None}
        request = operations.verifiers_score(verifier=verifier, body=given)
        return await self._client.send(request)

    async def delete(self, verifier: str) -> None:
        """Delete a verifier that was added."""
        await self._client.send(operations.verifiers_delete(verifier=verifier))


class AsyncWorkers:
    """The rollout workers of a gateway."""

    def __init__(self, client: AsyncConnection) -> None:
        self._client = client

    async def list(self, pool: str | None = None) -> AsyncIterator[WorkerRecord]:
        """Yield the workers, or those of a pool."""
        async for page in self._client.pages(operations.workers_list, pool=pool):
            for record in page.workers:
                yield record
