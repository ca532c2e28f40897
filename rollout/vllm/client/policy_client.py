"""HTTP client of one vLLM server: samples out, weights in. Knows no store.

Every request has the live version as its cache salt, and no request is sent while the version
changes. A request that is queued during an update has the old salt, so the plugin also empties the
prefix cache at every update. So a request that vLLM starts under one version never reads keys and
values of another.

A request that vLLM aborts for an update is resumed from its last token. A request past its deadline
ends. When the worker leaves, requests end with the tokens that they have, for another worker
(`Interrupted`).
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from rollout.aio import together
from rollout.vllm.client import canary_request
from rollout.vllm.client.connection import Reply, VLLMConnection, VLLMUnavailable, message_of
from rollout.vllm.client.progress import Counters, read_counters
from rollout.vllm.client.response import SERVED_NAME, Sample, parse_answer, request_body
from rollout.vllm.client.resume import ABORTED, DEADLINE, Begun, joined, rest_of
from rollout.vllm.client.weight_loader import CONTROL_SECONDS, WeightLoader
from rollout.vllm_plugin.wire import (
    CAPACITY,
    GENERATE,
    MESSAGE,
    STREAM,
    UNFINISHED,
    Capacity,
    Delta,
    Parsed,
)
from services.contracts.canary import Floats
from services.runtime.tasks import end

ABORT_AGAIN_SECONDS = 1.0
MOST_BEGUN = 8
"""Times that an answer with a constraint restarts because updates abort it."""


class RequestRefused(ValueError):
    """The server refuses the request (4xx). A retry would be refused as well."""


class PastDeadline(RuntimeError):
    """A request reached its deadline before anything was sampled."""


@dataclass(frozen=True)
class Ends:
    """What ends a request early."""

    expired: asyncio.Event | None
    leaving: asyncio.Event | None


class Interrupted(RuntimeError):
    """The worker leaves. `begun` has the tokens sampled so far; None: nothing can be continued."""

    def __init__(self, begun: Begun | None) -> None:
        super().__init__("the worker leaves before the samples are done")
        self.begun = begun


class PolicyClient:
    """The client of the server on the Unix socket `socket`. `generate` may be called
    concurrently."""

    def __init__(self, socket: Path, several: bool = False) -> None:
        """`several`: see WeightLoader."""
        self.socket = socket
        self._connection = VLLMConnection(socket)
        self.sampling = 0
        """Calls of `generate` in flight. Without calls, vLLM need not make progress."""
        self.weights = WeightLoader(self._connection, several)

    async def close(self) -> None:
        """Close the connections. Requests in flight fail, and a load stops: do not use the server
        again."""
        await self.weights.close()
        await self._connection.close()

    async def generate(
        self,
        token_ids: list[int],
        n: int,
        sampling: dict[str, Any],
        expired: asyncio.Event | None = None,
        leaving: asyncio.Event | None = None,
        begun: list[Sample] | None = None,
    ) -> list[Sample]:
        """Return `n` samples of the prompt `token_ids` (see `response.sampling_params`), or the
        rest of the samples `begun`. When `expired` is set, they end with the finish reason
        `deadline`; when `leaving` is set, with Interrupted.

        Raises RequestRefused, VLLMUnavailable, MalformedAnswer, and PastDeadline if `expired` was
        set before every sample had a token. Cancelling the call aborts the request in vLLM.
        """
        self.sampling += 1
        try:
            return await self._generate(token_ids, n, sampling, Ends(expired, leaving), begun)
        finally:
            self.sampling -= 1

    async def _generate(
        self,
        token_ids: list[int],
        n: int,
        sampling: dict[str, Any],
        ends: Ends,
        begun: list[Sample] | None,
    ) -> list[Sample]:
        if begun is None:
            if await self._leaves(ends):
                raise Interrupted(None)
            begun = await self._request(token_ids, n, sampling, ends)
        if all(sample.finish_reason != ABORTED for sample in begun):
            return begun
        samples = await together(
            self._finish(token_ids, index, sample, sampling, ends)
            for index, sample in enumerate(begun)
        )
        if any(sample.finish_reason == ABORTED for sample in samples):
            # A constraint covers the whole answer from its first token.
            constrained = "structured_outputs" in sampling
            raise Interrupted(None if constrained else Begun(token_ids, samples))
        return samples

    async def _leaves(self, ends: Ends) -> bool:
        """Wait until requests may be sent, or the worker leaves. Return whether it leaves."""
        if ends.leaving is None:
            return False
        if not self.weights.open.is_set():
            waits = [
                asyncio.create_task(event.wait()) for event in (self.weights.open, ends.leaving)
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end(waits)
        return ends.leaving.is_set()

    async def _finish(
        self,
        token_ids: list[int],
        index: int,
        sample: Sample,
        sampling: dict[str, Any],
        ends: Ends,
    ) -> Sample:
        # A constraint covers the whole answer from its first token, so the answer restarts.
        anew, updates = "structured_outputs" in sampling, 0
        while sample.finish_reason == ABORTED:
            done = [] if anew else sample.token_ids.tolist()
            # Sleeps are not counted: they end, because the learner waits for these answers.
            updates += not self.weights.sleeping
            if anew and updates == MOST_BEGUN:
                raise RequestRefused(
                    f"weights were updated {MOST_BEGUN} times before an answer with a format, or a "
                    "forced call, was whole, and with rollout.update_mode abort it begins anew "
                    "each time: let the run use keep, or ask for fewer tokens"
                )
            if await self._leaves(ends):
                return sample
            if ends.expired is not None and ends.expired.is_set():
                if not done:
                    raise PastDeadline("nothing was sampled before the deadline")
                return replace(sample, finish_reason=DEADLINE)
            remaining = rest_of(sampling, index, len(done))
            if remaining["max_tokens"] < 1:
                return replace(sample, finish_reason="length")
            (more,) = await self._request([*token_ids, *done], 1, remaining, ends)
            sample = joined(sample, more) if done else more
        return sample

    async def _request(
        self, token_ids: list[int], n: int, sampling: dict[str, Any], ends: Ends
    ) -> list[Sample]:
        """Send one request. Aborted samples are returned as they are."""
        await self.weights.open.wait()
        id = secrets.token_hex(8)
        body = request_body(token_ids, n, sampling, self.weights.live, id)
        events = [event for event in (ends.expired, ends.leaving) if event is not None]
        watch = [asyncio.create_task(self._abort_at(event, id)) for event in events]
        try:
            response = await self._connection.send("POST", GENERATE, content=body)
        finally:
            await end(watch)
        if response.refused:
            raise RequestRefused(f"vLLM refused a request: {message_of(response)}")
        if not response.ok:
            raise VLLMUnavailable(f"vLLM failed a request: {message_of(response)}")
        return parse_answer(response.content, sampling)

    async def stream(
        self,
        token_ids: list[int],
        sampling: dict[str, Any],
        priority: int,
        model: str = SERVED_NAME,
    ) -> AsyncGenerator[Delta, None]:
        """Yield one sample as it grows, for calls that are not trained. An update ends it. Closing
        the generator aborts the request in vLLM. `model`: the policy, or the folder of an adapter.
        Raises RequestRefused, VLLMUnavailable."""
        await self.weights.open.wait()
        id = secrets.token_hex(8)
        live = self.weights.live
        body = request_body(token_ids, 1, sampling, live, id, priority, model)
        async with self._connection.stream(STREAM, body) as lines:
            if isinstance(lines, Reply):
                refused = RequestRefused if lines.refused else VLLMUnavailable
                raise refused(f"vLLM refused a request: {message_of(lines)}")
            async for line in lines:
                delta = msgspec.json.decode(line, type=Delta)
                if delta.error:
                    failed = RequestRefused if delta.refused else VLLMUnavailable
                    raise failed(f"vLLM failed a request: {delta.error}")
                yield delta

    async def score(self, tokens: list[int], masks: bool) -> Floats:
        """Return vLLM's log-probabilities of `tokens` but the first, under the live version.
        `masks`: the server returns sampling masks. Raises VLLMUnavailable, and Unscored for any
        other answer."""
        sampling, id = canary_request.sampling(masks), secrets.token_hex(8)
        body = request_body(tokens, 1, sampling, canary_request.SALT, id, priority=-1)
        async with self.weights.unaborted():
            response = await self._connection.send("POST", GENERATE, content=body)
        if not response.ok:
            raise canary_request.Unscored(f"vLLM does not score a prompt: {message_of(response)}")
        return canary_request.parse_scores(response.content, tokens)

    async def message(self, parsed: Parsed) -> dict[str, Any]:
        """Return an answer as an assistant's message, by the server's tool and reasoning parsers.
        Raises VLLMUnavailable, and RequestRefused if they cannot read it."""
        content = msgspec.msgpack.encode(parsed)
        response = await self._connection.send(
            "POST", MESSAGE, content=content, timeout=CONTROL_SECONDS
        )
        if not response.ok:
            raise RequestRefused(f"vLLM does not parse an answer: {message_of(response)}")
        message: dict[str, Any] = msgspec.json.decode(response.content)
        return message

    async def _abort_at(self, event: asyncio.Event, id: str) -> None:
        """When `event` is set, abort the request in vLLM again and again until it has
        answered."""
        await event.wait()
        while True:
            with contextlib.suppress(VLLMUnavailable):
                # Repeated, since vLLM may not have queued all samples yet.
                ids = {"request_ids": [id]}
                await self._connection.send("POST", "/abort_requests", json=ids, timeout=30.0)
            await asyncio.sleep(ABORT_AGAIN_SECONDS)

    async def healthy(self) -> bool:
        """Whether the server answers its health check, within 10 seconds."""
        try:
            return (await self._connection.send("GET", "/health", timeout=10.0)).ok
        except VLLMUnavailable:
            return False

    async def counters(self) -> Counters:
        return read_counters((await self._get("/metrics")).content)

    async def unfinished(self) -> int:
        """Return how many sequences run or wait. Cheaper than `counters`."""
        return int((await self._get(UNFINISHED)).content)

    async def capacity(self) -> Capacity:
        """Return how many sequences and tokens the server holds at once."""
        return msgspec.msgpack.decode((await self._get(CAPACITY)).content, type=Capacity)

    async def context_length(self) -> int:
        """Return the longest prompt with its completion that the server takes, in tokens."""
        models = msgspec.json.decode((await self._get("/v1/models")).content)
        return int(models["data"][0]["max_model_len"])

    async def _get(self, path: str) -> Reply:
        reply = await self._connection.send("GET", path, timeout=30.0)
        if not reply.ok:
            raise VLLMUnavailable(f"vLLM does not answer {path}: {message_of(reply)}")
        return reply
