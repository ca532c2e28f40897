"""Calls of the policy as an endpoint. The gateway owns a call: it chooses the worker, and forgets
the call once it has the answer or its client has gone. All keys expire; nothing here is durable.

Round trips: a call costs one write to ask, one to forget, and one every KEEP_SECONDS; each piece of
its answer costs one write and one read.
"""

from typing import Any

import msgspec

from services.contracts.policy_calls import Piece, PolicyCall
from services.store.keys import policy_key
from services.store.scripts import StorePart
from services.store.unreadable import reading

CALL_SECONDS = 20
"""How long a call lasts without its gateway, and an answer after its last piece."""
KEEP_SECONDS = 5.0

_call = msgspec.msgpack.Decoder(PolicyCall)
_piece = msgspec.msgpack.Decoder(Piece)


class PolicyCalls(StorePart):
    """Calls about the policy endpoint. A call is a key, its answer is a stream, and each worker has
    a list of the calls that wait for it."""

    async def ask(self, run: str, worker: str, id: str, call: PolicyCall) -> None:
        """Have a worker answer a call."""
        queue = policy_key(run, "worker", worker)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.set(policy_key(run, "call", id), msgspec.msgpack.encode(call), ex=CALL_SECONDS)
            pipe.rpush(queue, id)
            pipe.expire(queue, CALL_SECONDS)
            await pipe.execute()

    async def keep(self, run: str, id: str) -> None:
        """Keep a call whose client still waits."""
        await self._redis.expire(policy_key(run, "call", id), CALL_SECONDS)

    async def forget(self, run: str, id: str) -> None:
        """Forget a call for which nobody waits any more. The worker stops once it notices."""
        await self._redis.delete(policy_key(run, "call", id), policy_key(run, "answer", id))

    async def pieces(self, run: str, id: str, after: str, wait: float) -> tuple[str, list[Piece]]:
        """Return the last place, and the pieces of an answer after the place `after`. Waits up to
        `wait` seconds for the first piece."""
        key = policy_key(run, "answer", id)
        reply: Any = await self._redis.xread({key: after}, block=max(1, int(wait * 1000)))
        entries = reply[0][1] if reply else []
        with reading(f"the answer to call {id} of run {run}"):
            pieces = [_piece.decode(fields[b"piece"]) for _, fields in entries]
        return (entries[-1][0].decode() if entries else after), pieces

    # --- workers ------------------------------------------------------------------------------

    async def take(self, run: str, worker: str, wait: float) -> tuple[str, PolicyCall] | None:
        """Return the next call for a worker, waiting up to `wait` seconds."""
        reply = await self._redis.blpop([policy_key(run, "worker", worker)], timeout=wait)
        if reply is None:
            return None
        id = str(reply[1].decode())
        call = await self._redis.get(policy_key(run, "call", id))
        if call is None:
            return None
        with reading(f"call {id} of run {run}"):
            return id, _call.decode(call)

    async def say(self, run: str, id: str, piece: Piece) -> bool:
        """Add a piece to an answer. Returns False if nobody waits for it any more."""
        answer = policy_key(run, "answer", id)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.xadd(answer, {"piece": msgspec.msgpack.encode(piece)})
            pipe.expire(answer, CALL_SECONDS)
            pipe.exists(policy_key(run, "call", id))
            return bool((await pipe.execute())[-1])
