"""The tokens that `top_k` and `top_p` left each sampled token to be chosen from, as vLLM reports
them. Pure.

On a GPU vLLM reports masks directly (`--return-sampling-mask`). Its CPU runner cannot: there a
request asks for the log-probabilities of a few more tokens than `top_k`; tokens without one were
removed. Both ways need server options, and an answer without a mask is refused.
"""

from typing import Any

from services.contracts.config.rollout import Sampling
from services.contracts.groups.sampling_mask import SamplingMask

TIES = 14
"""On a CPU: tokens that may be exactly as likely as the last of `top_k`; vLLM keeps all of them."""
IMPOSSIBLE = -9000.0
"""vLLM writes −9999 for the logarithm of 0."""


class UnknownMask(ValueError):
    """vLLM's answer does not show what a token was chosen from."""


def server_flags(sampling: Sampling, on_cpu: bool) -> dict[str, Any]:
    """Return the server's options for runs with this sampling."""
    if not sampling.cuts:
        return {}
    if on_cpu:
        return {"max-logprobs": sampling.top_k + TIES}
    return {"return-sampling-mask": True}


def request_params(sampling: Sampling, vocabulary: int | None) -> dict[str, Any]:
    """Return sampling parameters that make vLLM report masks. `vocabulary` is the model's size on a
    CPU, and None on a GPU.

    At a temperature of 0 a GPU refuses to return a mask (`top_k` 1 is the same), and a CPU ignores
    `top_k`.
    """
    if not sampling.cuts:
        return {}
    if sampling.temperature == 0:
        on_gpu = {"temperature": 1.0, "top_k": 1, "top_p": 1.0}
        return on_gpu if vocabulary is None else {"top_k": 0, "top_p": 1.0}
    return {} if vocabulary is None else {"logprobs": min(sampling.top_k + TIES, vocabulary)}


def mask_of(tokens: list[int], allowed: list[list[int]]) -> SamplingMask:
    """Return the mask, from the ids that each of `tokens` was chosen from. Raises UnknownMask."""
    if len(allowed) != len(tokens):
        raise UnknownMask(f"{len(tokens)} tokens were chosen from {len(allowed)} sets")
    for token, ids in zip(tokens, allowed, strict=True):
        if token not in ids:
            raise UnknownMask(f"token {token} is none of the {len(ids)} it was chosen from")
    return SamplingMask.of(allowed)


def allowed_tokens(alternatives: list[tuple[int, float]], top_k: int) -> list[int]:
    """Return the ids that a token was chosen from, by the log-probabilities of the likeliest
    tokens. Raises UnknownMask if there may be more."""
    allowed = [id for id, logprob in alternatives if logprob > IMPOSSIBLE]
    # Fewer alternatives than requested are the whole vocabulary.
    if len(allowed) == len(alternatives) == top_k + TIES:
        raise UnknownMask(
            f"{TIES} tokens or more are exactly as likely as the last of sampling.top_k, and vLLM "
            "keeps all of them without reporting which: set rollout.vllm.dtype to float32, or "
            "sampling.top_k to 0"
        )
    return allowed
