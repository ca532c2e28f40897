"""Generate requests and answers between a worker and its vLLM: MessagePack, with arrays as bytes.

On a small model, JSON of a log-probability takes the server longer than sampling the token. Imports
neither vLLM nor torch: the worker, vLLM, and the stand-ins of tests and benchmarks use it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from services.contracts.policy_calls import TokenScore

GENERATE = "/headrace/generate"
"""The plugin's route for samples (`generate`)."""
STREAM = "/headrace/stream"
"""The route that answers token by token, in lines of JSON (`Delta`)."""
CAPACITY = "/headrace/capacity"
"""The route that returns how many sequences and tokens the server holds at once."""
UNFINISHED = "/headrace/unfinished"
"""The route that returns how many sequences run or wait, as a decimal number."""
LOWEST = -9999.0
"""Replaces the logarithm of 0, and NaN."""
MESSAGE = "/headrace/message"
"""The route that parses an answer: its text, its tool calls, its reasoning."""
ID, LOGPROB = np.dtype("<i4"), np.dtype("<f4")


class GenerateRequest(msgspec.Struct):
    """`sampling["n"]` samples of one prompt."""

    id: str
    """Serves to abort it."""
    model: str
    token_ids: list[int]
    cache_salt: str
    """Only requests with the same salt share a prefix cache."""
    sampling: dict[str, Any]
    """vLLM's `SamplingParams`."""
    priority: int = 0
    """Requests with a lower priority start earlier, if the server's scheduling policy is
    `priority`."""


class Choice(msgspec.Struct):
    """One sample. Integers are int32, log-probabilities float32, both little-endian."""

    index: int
    finish_reason: str
    token_ids: bytes
    logprobs: bytes
    """One for each token."""
    versions: list[tuple[str, int, int]]
    """(version of the weights, start, end) of its tokens."""
    counts: bytes = b""
    """The number of candidates of each token, if the request asked for candidates."""
    candidates: bytes = b""
    """The ids of all candidates, in the order of the tokens."""
    candidate_logprobs: bytes = b""
    """The log-probabilities of all candidates; empty if vLLM has removed the impossible ones."""
    experts: memoryview | None = None
    """Expert routing as a .npy file. Not copied out of the message: up to 206 MB a group."""


class GenerateAnswer(msgspec.Struct):
    choices: list[Choice]
    prompt_logprobs: bytes = b""
    """The log-probabilities of the prompt's tokens but the first, if the request asked for them
    (`prompt_logprobs`)."""


class Delta(msgspec.Struct, omit_defaults=True):
    """The tokens sampled since the previous delta."""

    text: str = ""
    token_ids: list[int] = []
    finish_reason: str | None = None
    """Set in the last delta."""
    versions: list[tuple[str, int, int]] = []
    """Set in the last delta; see Choice."""
    stop: str = ""
    """Set in the last delta: the stop text that ended the answer."""
    error: str = ""
    """Why the answer breaks off."""
    refused: bool = False
    """With `error`: whether a retry would break off, too."""
    scores: list[TokenScore] = []
    """Of these tokens, if the request asks for `logprobs`."""
    prompt_scores: list[TokenScore] = []
    """Of the next tokens of the prompt, if the request asks for `prompt_logprobs`."""


class Parsed(msgspec.Struct):
    """An answer to parse as an assistant's message."""

    token_ids: list[int]
    """Without an end of sequence."""
    messages: list[dict[str, Any]]
    """The conversation before the answer."""
    tools: list[dict[str, Any]]
    variables: dict[str, Any] = {}
    """Variables of the chat template: `enable_thinking` tells a parser whether to expect
    reasoning."""


class Capacity(msgspec.Struct):
    sequences: int
    """The most sequences that vLLM runs at once."""
    cache_tokens: int | None = None
    """The tokens whose keys and values its cache holds; None for a model without such a cache."""


def ids(numbers: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    return np.asarray(numbers, ID).tobytes()


def logprobs(numbers: Sequence[float] | npt.NDArray[np.floating]) -> bytes:
    array = np.asarray(numbers, LOGPROB)
    return np.nan_to_num(array, nan=LOWEST, neginf=LOWEST).astype(LOGPROB).tobytes()


def token_scores(
    token_ids: Sequence[int], places: Sequence[Mapping[int, Any] | None], most: int | None
) -> list[TokenScore]:
    """Return the log-probabilities of tokens, and of the `most` likeliest tokens at their places.
    `places`: vLLM's, one for each token, None for the first of a prompt; or nothing."""
    return [_score(id, place, most or 0) for id, place in zip(token_ids, places, strict=False)]


def _score(id: int, place: Mapping[int, Any] | None, most: int) -> TokenScore:
    if place is None:
        return TokenScore("", None)
    likeliest = sorted(place.values(), key=lambda token: token.logprob, reverse=True)
    top = [(token.decoded_token or "", max(token.logprob, LOWEST)) for token in likeliest[:most]]
    token = place[id]
    return TokenScore(token.decoded_token or "", max(token.logprob, LOWEST), top)
