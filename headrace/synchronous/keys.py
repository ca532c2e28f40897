"""API keys. `make client` makes this file (deploy/client_code.py)."""
# ruff: noqa: UP028

from collections.abc import Iterator
from typing import Literal

from headrace import operations
from headrace.models import ApiKeyRecord, MadeKey
from headrace.synchronous.connection import Connection


class Keys:
    """The API keys of a gateway, besides its first key. They need a key with the role admin."""

    def __init__(self, client: Connection) -> None:
        self._client = client

    def create(
        self,
        name: str,
        *,
        role: Literal["read", "submit", "admin"] = "admin",
        surface: Literal["all", "openai"] = "all",
        project: str | None = None,
    ) -> MadeKey:
        """Make a key for one person or machine. Only this answer has the key itself, as `key`.
        `role`: read sees everything; submit also submits, changes and deletes; admin also manages
        keys. `surface="openai"` limits the key to OpenAI's API, and `project` to the files and
        jobs of a project there."""
        body = {"name": name, "role": role, "surface": surface, "project": project}
        return self._client.send(operations.keys_create(body=body))

    def list(self) -> Iterator[ApiKeyRecord]:
        """Yield the keys by name and id, oldest first, without the keys themselves."""
        for page in self._client.pages(operations.keys_list):
            for record in page.keys:
                yield record

    def revoke(self, id: str) -> None:
        """Revoke a key by its id: requests with it are refused from now on."""
        self._client.send(operations.keys_delete(id=id))
