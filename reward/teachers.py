"""Teachers of distillation: vLLM servers that score the policy's tokens.

A run names a teacher; the operator has set its URL, as with judges (`remote_endpoints`). A server
scores a prompt at temperature 1, without its prefix cache. So it reads the prompt once for each
completion, and answers about 80 bytes of JSON a token.
"""

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from reward.remote_endpoints import Endpoint, EndpointError, PassingError, client
from reward.verifiers.remote.judge import chosen

ATTEMPTS = 3
SECONDS = 600.0
"""Seconds for one sequence, retries included. Then the caller retries."""
REPLY_PER_TOKEN = 1024
"""Bytes. The reply holds the text of each token, which may be long."""
IMPOSSIBLE = 1e-3
"""Larger log-probabilities are invalid. Rounding may lift a valid one slightly above 0."""


class _Logprob(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Logprob] | None]


class _ScoredTokens(msgspec.Struct):
    choices: list[_Choice]


class _Text(msgspec.Struct):
    prompt: str


class Teachers:
    """All teachers of this service. They belong to one event loop, until `close`."""

    def __init__(self, endpoints: Mapping[str, Endpoint], at_once: int) -> None:
        """Each teacher scores at most `at_once` sequences at the same time."""
        self._endpoints = endpoints
        self._turns = {name: asyncio.Semaphore(at_once) for name in endpoints}
        self._http = client()

    async def close(self) -> None:
        """Close the connections. Requests in flight end with an error."""
        await self._http.aclose()

    def check(self, name: str) -> None:
        """Raise ValueError, with a sentence for the caller, if the teacher is unknown."""
        chosen(self._endpoints, name, "teacher", "--teachers")

    async def logprobs(
        self, name: str, model: str | None, prompt: list[int], completion: list[int]
    ) -> list[float]:
        """Return log-probabilities of the tokens of `completion`, after `prompt`.

        Raises ValueError for an unknown teacher, PassingError if a retry may succeed, EndpointError
        if not.
        """
        endpoint = chosen(self._endpoints, name, "teacher", "--teachers")
        tokens = [*prompt, *completion]
        body: dict[str, Any] = {"prompt": tokens, "prompt_logprobs": 0, "max_tokens": 1}
        async with self._turns[endpoint.name]:
            path = "/v1/completions"
            reply = await self._ask(endpoint, path, _named(body, model), len(tokens))
        scored = _as(reply, _ScoredTokens, endpoint, path).choices
        positions = scored[0].prompt_logprobs if scored else []
        if len(positions) != len(tokens):
            raise EndpointError(
                f"endpoint {endpoint.name!r} scored {len(positions)} of {len(tokens)} tokens: is "
                "it a vLLM server?"
            )
        return [
            _logprob(endpoint, token, of_token)
            for token, of_token in zip(completion, positions[len(prompt) :], strict=True)
        ]

    async def text(self, name: str, model: str | None, tokens: list[int]) -> str:
        """Return the text that the teacher's tokenizer writes for `tokens`. Raises the errors of
        `logprobs`."""
        endpoint = chosen(self._endpoints, name, "teacher", "--teachers")
        body = _named({"tokens": tokens}, model)
        reply = await self._ask(endpoint, "/detokenize", body, len(tokens))
        return _as(reply, _Text, endpoint, "/detokenize").prompt

    async def _ask(self, endpoint: Endpoint, path: str, body: dict[str, Any], tokens: int) -> Any:
        try:
            async with asyncio.timeout(SECONDS):
                most = (1 << 16) + REPLY_PER_TOKEN * tokens
                return await endpoint.ask(self._http, path, body, ATTEMPTS, max_reply=most)
        except TimeoutError:
            raise PassingError(
                f"endpoint {endpoint.name!r}: no answer to {path} in {SECONDS:g} s"
            ) from None


def _named(body: dict[str, Any], model: str | None) -> dict[str, Any]:
    """Add the model's name to `body`. A server of one model needs no name."""
    return body if model is None else {**body, "model": model}


def _as(reply: Any, kind: type[Any], endpoint: Endpoint, path: str) -> Any:
    try:
        return msgspec.convert(reply, kind)
    except msgspec.ValidationError as error:
        raise EndpointError(
            f"endpoint {endpoint.name!r} answers {path} as no vLLM server does: {error}"
        ) from None


def _logprob(endpoint: Endpoint, token: int, choices: dict[str, _Logprob] | None) -> float:
    choice = (choices or {}).get(str(token))
    if choice is None:
        raise EndpointError(f"endpoint {endpoint.name!r} scored another token than {token}")
    if not (math.isfinite(choice.logprob) and choice.logprob <= IMPOSSIBLE):
        raise EndpointError(
            f"endpoint {endpoint.name!r} answers {choice.logprob:g} for token {token}, which is no "
            "log-probability: start its vLLM without --logprobs-mode raw_logits or processed_logits"
        )
    return min(choice.logprob, 0.0)
