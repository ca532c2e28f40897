"""Generate requests and answers between a worker and its vLLM: MessagePack, with arrays as bytes.

JSON of a log-probability costs the server more time than sampling the token does on a small model.
Imports neither vLLM nor torch: the worker, vLLM and the stand-ins of tests and benchmarks use it.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

GENERATE = "/headrace/generate"
"""The route, of the plugin (`generate`)."""
STREAM = "/headrace/stream"
"""The route that answers token by token, in lines of JSON (`Delta`)."""
CAPACITY = "/headrace/capacity"
"""The route that says how much the server takes at once."""
UNFINISHED = "/headrace/unfinished"
"""The route that says how many sequences it has now, as a decimal number."""
LOWEST = -9999.0
"""In place of the logarithm of 0, and of what is no number."""
MESSAGE = "/headrace/message"
"""The route that parses an answer: its text, its tool calls, its reasoning."""
ID, LOGPROB = np.dtype("<i4"), np.dtype("<f4")


class Request(msgspec.Struct):
    """`sampling["n"]` samples of one prompt."""

    id: str
    """Serves to abort it."""
    model: str
    token_ids: list[int]
    cache_salt: str
    """Only requests with the same one share a prefix cache."""
    sampling: dict[str, Any]
    """vLLM's `SamplingParams`."""
    priority: int = 0
    """The lower, the earlier it begins, if the server's scheduling policy is `priority`."""


class Choice(msgspec.Struct):
    """One sample. Integers are int32, log-probabilities float32, both little-endian."""

    index: int
    finish_reason: str
    token_ids: bytes
    logprobs: bytes
    """One of each token."""
    versions: list[tuple[str, int, int]]
    """(version of the weights, start, end) of its tokens."""
    counts: bytes = b""
    """Of each token the number of its candidates, if the request asked for them."""
    candidates: bytes = b""
    """The ids of all candidates, those of the first token first."""
    candidate_logprobs: bytes = b""
    """Of all candidates; empty if vLLM has removed the impossible ones."""
    experts: memoryview | None = None
    """Expert routing as a .npy file. Not copied out of the message: up to 206 MB a group."""


class Answer(msgspec.Struct):
    """All samples of a request."""

    choices: list[Choice]
    prompt_logprobs: bytes = b""
    """Of the prompt's tokens but the first, if the request asked for them (`prompt_logprobs`)."""


class Delta(msgspec.Struct, omit_defaults=True):
    """What was sampled since the last one."""

    text: str = ""
    token_ids: list[int] = []
    finish_reason: str | None = None
    """In the last one."""
    versions: list[tuple[str, int, int]] = []
    """In the last one, as in Choice."""
    error: str = ""
    """Why the answer ends before its end."""


class Parsed(msgspec.Struct):
    """An answer to parse as an assistant's message."""

    token_ids: list[int]
    """Without an end of sequence."""
    messages: list[dict[str, Any]]
    """What it answers."""
    tools: list[dict[str, Any]]
    variables: dict[str, Any] = {}
    """Those of the chat template: `enable_thinking` tells a parser whether to expect reasoning."""


class Capacity(msgspec.Struct):
    """What a server takes at once."""

    sequences: int
    """That it runs, at most."""
    cache_tokens: int | None = None
    """Whose keys and values its cache holds; None for a model without such a cache."""


def ids(numbers: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    """Token ids, or counts."""
    return np.asarray(numbers, ID).tobytes()


def logprobs(numbers: Sequence[float] | npt.NDArray[np.floating]) -> bytes:
    """Log-probabilities."""
    found = np.asarray(numbers, LOGPROB)
    return np.nan_to_num(found, nan=LOWEST, neginf=LOWEST).astype(LOGPROB).tobytes()
