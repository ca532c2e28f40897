"""Sessions of the page, and links that begin one: hashes, never what a browser shows."""

from typing import Literal

from services.store.keys import token_key
from services.store.scripts import StorePart

Kind = Literal["session", "login"]


class PageSessions(StorePart):
    """Which API key a token was given for, both as digests. Redis forgets it in time."""

    async def begin(self, kind: Kind, token: str, key: str, seconds: int) -> None:
        """Let `token` stand for `key` (both digests) for a time."""
        await self._redis.set(token_key(kind, token), key, ex=seconds)

    async def key_of(self, token: str) -> str | None:
        """The digest of the key that a session's token stands for."""
        found = await self._redis.get(token_key("session", token))
        return found.decode() if found else None

    async def use_login(self, token: str) -> str | None:
        """The digest of the key that a link's token stands for. It can be used once."""
        found = await self._redis.getdel(token_key("login", token))
        return found.decode() if found else None

    async def end(self, token: str) -> None:
        """End a session."""
        await self._redis.delete(token_key("session", token))
