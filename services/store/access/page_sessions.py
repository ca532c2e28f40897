"""Sessions of the page, and links that begin a session: hashes, never what a browser shows."""

from typing import Literal

from services.store.keys import token_key
from services.store.scripts import StorePart

Kind = Literal["session", "login"]


class PageSessions(StorePart):
    """Calls about sessions of the page. A token stands for an API key, both as digests, and
    expires."""

    async def begin(self, kind: Kind, token: str, key: str, seconds: int) -> None:
        """Let `token` stand for `key` (both digests) for some seconds."""
        await self._redis.set(token_key(kind, token), key, ex=seconds)

    async def key_of(self, token: str) -> str | None:
        """Return the digest of the key that a session's token stands for, or None."""
        key = await self._redis.get(token_key("session", token))
        return key.decode() if key else None

    async def use_login(self, token: str) -> str | None:
        """Return the digest of the key that a link's token stands for, or None. A token works
        once."""
        key = await self._redis.getdel(token_key("login", token))
        return key.decode() if key else None

    async def end(self, token: str) -> None:
        await self._redis.delete(token_key("session", token))
