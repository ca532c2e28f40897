"""The request with which vLLM scores a sequence of the canary, and its answer. Pure."""

from typing import Any

import msgspec
import numpy as np

from rollout.vllm_plugin.wire import LOGPROB, LOWEST, GenerateAnswer
from services.contracts.canary import Floats

SALT = "canary"
"""The same for all versions, so that a prefix cache that was not emptied shows at once."""
_decoder = msgspec.msgpack.Decoder(GenerateAnswer)


class Unscored(ValueError):
    """vLLM's answer holds no log-probabilities of the prompt."""


def sampling(masks: bool) -> dict[str, Any]:
    """Return sampling parameters of a request that scores its prompt. `masks`: the server returns
    sampling masks, and refuses a request without a `top_k`.

    vLLM would bypass its prefix cache for such a request. Here it reads the cache, so keys and
    values of other weights that are left there change the scores.
    """
    return {
        "max_tokens": 1,
        "temperature": 1.0,
        "prompt_logprobs": 0,
        "skip_reading_prefix_cache": False,
        **({"top_k": 1} if masks else {}),
    }


def parse_scores(content: bytes, tokens: list[int]) -> Floats:
    """Return vLLM's log-probabilities of `tokens` but the first, from its answer. Missing values
    count as impossible: a prefix from the cache has no values, or meaningless ones. Raises
    Unscored."""
    try:
        scored = _decoder.decode(content).prompt_logprobs
    except msgspec.MsgspecError as error:
        raise Unscored(f"vLLM's answer cannot be read: {error}") from error
    logprobs = np.frombuffer(scored, LOGPROB)
    if not len(logprobs):
        raise Unscored("vLLM's answer has no log-probabilities of the prompt")
    padded = np.full(len(tokens) - 1, LOWEST, np.float32)
    padded[max(0, len(padded) - len(logprobs)) :] = logprobs[-len(padded) :]
    return padded
