"""The way in: a gateway with its runs, chains, evaluations, datasets, verifiers, workers, keys. `make client` makes this file (deploy/client_code.py)."""
# ruff: noqa: E501, UP028

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace import operations
from headrace.models import (
    MadeVerifier,
    OpenAIAnswer,
    ScoredAnswer,
    VerifierInfo,
    WorkerRecord,
)
from headrace.request import reward_body, turns_of
from headrace.synchronous.chains import Chains
from headrace.synchronous.connection import Connection
from headrace.synchronous.datasets import Datasets
from headrace.synchronous.evaluations import Evaluations
from headrace.synchronous.keys import Keys
from headrace.synchronous.runs import Runs


class Client(Connection):
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
        self.runs = Runs(self)
        self.chains = Chains(self)
        self.evaluations = Evaluations(self)
        self.datasets = Datasets(self)
        self.verifiers = Verifiers(self)
        self.workers = Workers(self)
        self.keys = Keys(self)

    def chat(
        self, model: str, messages: str | Sequence[Mapping[str, Any]], **options: Any
    ) -> OpenAIAnswer:
        """Ask the policy of a run: `model` is `RUN` or `RUN@latest`. A text is the turn of a user.
        `options` are those of OpenAI's API: max_tokens, temperature, …"""
        if options.get("stream"):
            raise ValueError("chat does not stream: use a client of OpenAI's API for that")
        body = {"model": model, "messages": turns_of(messages), **options}
        return self.send(operations.chat_completions_create(body=body))

    def reward(self, session: str, reward: float | Mapping[str, float]) -> float | None:
        """Say what the session of an id has earned, also after its end: a number, or the parts of
        a sum by name. Return what counts, which is the session's first reward."""
        request = operations.sessions_reward(session=session, body=reward_body(reward))
        return (self.send(request)).reward

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Verifiers:
    """The verifiers of the reward service."""

    def __init__(self, client: Connection) -> None:
        self._client = client

    def list(self) -> Iterator[VerifierInfo]:
        """Yield the verifiers."""
        for page in self._client.pages(operations.verifiers_list):
            for record in page.verifiers:
                yield record

    def add(
        self, file: str | Path, *, name: str | None = None, object: str | None = None
    ) -> MadeVerifier:
        """Add a Python file as the next version of its verifier. `object`: its class or function,
        if it has several. `name`: by default that of the object."""
        path = Path(file)
        body = {"file": path.name, "source": path.read_text(), "name": name, "object": object}
        return self._client.send(operations.verifiers_create(body=body))

    def score(
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
        return self._client.send(request)

    def delete(self, verifier: str) -> None:
        """Delete a verifier that was added."""
        self._client.send(operations.verifiers_delete(verifier=verifier))


class Workers:
    """The rollout workers of a gateway."""

    def __init__(self, client: Connection) -> None:
        self._client = client

    def list(self, pool: str | None = None) -> Iterator[WorkerRecord]:
        """Yield the workers, or those of a pool."""
        for page in self._client.pages(operations.workers_list, pool=pool):
            for record in page.workers:
                yield record
