"""Idempotency-Keys: the requests that were answered in the last 24 hours, and their answers.

A try claims a key, prolongs its claim while it works, and keeps its answer. If its gateway
dies, the claim lapses, and the next try continues with the same seed, from which ids are made.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from services.store.scripts import StorePart
from services.store.unreadable import reading

KEPT_SECONDS = 24 * 3600
LAPSE_SECONDS = 5.0
"""How long a claim lasts without its gateway."""


@dataclass(frozen=True)
class Claim:
    """The right to work on a request."""

    seed: str
    """The same for all tries of the request."""
    is_repeated: bool
    """Whether an earlier try broke off: it may have done the work."""


@dataclass(frozen=True)
class Answered:
    """The answer to an earlier try."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


@dataclass(frozen=True)
class Open:
    """Another try works on the request."""

    seconds: float
    """Seconds until its claim lapses."""


class IdempotencyKeys(StorePart):
    """Calls about Idempotency-Keys. `key` is a digest of a caller and its key."""

    async def claim(
        self, key: str, request: str, token: str, seed: str
    ) -> Claim | Answered | Open | None:
        """Claim a key for the try `token` of a request. Return None if the key is of another
        request."""
        arguments = [request, token, seed, round(LAPSE_SECONDS * 1000), KEPT_SECONDS * 1000]
        reply: Any = await self._scripts.run("idempotency_claim", arguments, digest=key)
        with reading("an Idempotency-Key"):
            match reply:
                case [b"claimed", kept, repeated]:
                    return Claim(kept.decode(), bool(repeated))
                case [b"done", status, headers, body]:
                    pairs = msgspec.msgpack.decode(headers, type=list[tuple[bytes, bytes]])
                    return Answered(int(status), pairs, body)
                case [b"open", left]:
                    return Open(max(0.0, int(left) / 1000))
        return None

    async def renew(self, key: str, token: str) -> None:
        """Prolong the claim of the try `token`."""
        arguments = [token, round(LAPSE_SECONDS * 1000)]
        await self._scripts.run("idempotency_renew", arguments, digest=key)

    async def release(self, key: str, token: str) -> None:
        """End a claim without an answer. The next try works on the request again."""
        await self._scripts.run("idempotency_renew", [token, 0], digest=key)

    async def forget(self, key: str, token: str) -> None:
        """Forget a key whose request was refused: it may be used for another request. A key that
        another try holds stays."""
        await self._scripts.run("idempotency_forget", [token], digest=key)

    async def finish(self, key: str, token: str, answer: Answered) -> None:
        """Keep the answer to a request."""
        headers = msgspec.msgpack.encode(answer.headers)
        arguments = [token, int(answer.status), headers, answer.body]
        await self._scripts.run("idempotency_finish", arguments, digest=key)
