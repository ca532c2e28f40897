"""Chains: runs that start one after the other. `make client` makes this file (deploy/client_code.py)."""
# ruff: noqa: E501, UP028

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace import operations
from headrace.errors import BadAnswer
from headrace.models import ChainView
from headrace.synchronous.connection import Connection
from headrace.synchronous.waiting import until_over


class Chains:
    """The chains of a gateway. `chain` is an id or a name."""

    def __init__(self, client: Connection) -> None:
        self._client = client

    def submit(
        self,
        steps: Sequence[Mapping[str, Any]],
        *,
        name: str | None = None,
        note: str | None = None,
        tags: Sequence[str] | None = None,
        pool: str | None = None,
        priority: int | None = None,
    ) -> ChainView:
        """Submit a chain. Each step has a `name`, and a `recipe`, a `config` or both; its
        `model.path` may be `step:NAME`, which is the model that an earlier step made. All steps
        are checked at once. Raises Invalid, whose `problems` name each wrong key."""
        body = {
            "steps": [dict(step) for step in steps],
            "name": name,
            "note": note,
            "tags": None if tags is None else list(tags),
            "pool": pool,
            "priority": priority,
        }
        given = {key: value for key, value in body.items() if value is not None}
        answer = self._client.send(operations.chains_create(body=given))
        if not isinstance(answer, ChainView):
            raise BadAnswer("the gateway did not answer with a chain")
        return answer

    def list(self) -> Iterator[ChainView]:
        """Yield the chains, newest first."""
        for page in self._client.pages(operations.chains_list):
            for record in page.chains:
                yield record

    def get(self, chain: str) -> ChainView:
        """Return a chain: its state, and the runs of its steps."""
        return self._client.send(operations.chains_get(chain=chain))

    def wait(self, chain: str, timeout: float | None = None) -> ChainView:
        """Wait until a chain is over. Raises RunFailed if it failed, and WaitTimeout after
        `timeout` seconds; the chain itself goes on then."""
        request = operations.chains_get(chain=chain)
        for record in until_over(self._client, request, "chain", timeout):
            last = record
        return last

    def cancel(self, chain: str, *, now: bool = False) -> ChainView:
        """Cancel a chain: its present run is cancelled, and no later step begins. `now`: do not
        end the run's step first."""
        return self._client.send(operations.chains_cancel(chain=chain, now=now))
