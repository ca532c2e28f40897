"""Builds vLLM's generate requests and parses the answers. Pure.

Token ids are those that were sampled; text is never tokenized again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rollout.vllm.client.expert_routing import Experts, decoded
from rollout.vllm.client.sampling_mask import (
    IMPOSSIBLE,
    UnknownMask,
    allowed_tokens,
    mask_of,
    request_params,
)
from rollout.vllm_plugin.wire import ID, LOGPROB, Choice, GenerateAnswer, GenerateRequest
from services.contracts.config.rollout import Sampling
from services.contracts.groups.sampling_mask import SamplingMask

SERVED_NAME = "policy"
"""vLLM's name for the model that requests sample from."""


class MalformedAnswer(ValueError):
    """vLLM's answer lacks something that was requested, perhaps because its version is not the
    pinned one."""


@dataclass(frozen=True)
class Span:
    """Tokens [start, end) of a completion were sampled under `version`."""

    start: int
    end: int
    version: str


@dataclass
class Sample:
    """One completion. `logprobs` are of the processed distribution (after temperature)."""

    token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    finish_reason: str
    spans: list[Span]
    sampling_mask: SamplingMask | None = None
    """With `sampling.top_k`: the tokens that each one was chosen from."""
    experts: Experts | None = None
    """The routing of the prompt's tokens and of all sampled ones but the last, if vLLM records
    it."""


_decoder = msgspec.msgpack.Decoder(GenerateAnswer)


def request_body(
    token_ids: list[int],
    n: int,
    sampling: dict[str, Any],
    salt: str,
    id: str,
    priority: int = 0,
    model: str = SERVED_NAME,
) -> bytes:
    """Return one generate request for `n` samples of one prompt. `id` serves to abort it; a lower
    `priority` starts earlier. `model`: the policy, or the folder of an adapter.

    `salt` separates the prefix caches of policy versions: new samples must not start from keys and
    values of older weights.
    """
    params = {"logprobs": 0, "detokenize": False, **sampling, "n": n}
    return msgspec.msgpack.encode(GenerateRequest(id, model, token_ids, salt, params, priority))


def sampling_params(
    sampling: Sampling,
    eos_token_ids: list[int],
    tokens_left: int,
    seed: int | None = None,
    vocabulary: int | None = None,
) -> dict[str, Any]:
    """Return vLLM's sampling parameters. `tokens_left`: those between prompt and context
    length; `vocabulary`: see `sampling_mask.request_params`.

    They name the end-of-sequence ids, so that the server's own tokenizer and generation config do
    not decide what ends a completion.
    """
    params: dict[str, Any] = {
        "max_tokens": min(sampling.max_tokens, tokens_left),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "ignore_eos": sampling.ignore_eos,
        **request_params(sampling, vocabulary),
    }
    eos = [] if sampling.ignore_eos else eos_token_ids
    if stop := {*eos, *sampling.stop_token_ids}:
        params["stop_token_ids"] = sorted(stop)
    if sampling.json_schema is not None:
        params["structured_outputs"] = {"json": sampling.json_schema}
    if seed is not None:
        params["seed"] = seed
    return params


def stopping_after(params: dict[str, Any], stop: str, added: dict[str, int]) -> dict[str, Any]:
    """Return `params` for completions that also end after the text `stop`. `added` has the
    tokenizer's added tokens, which no other tokens spell; for any other text vLLM has to
    detokenize."""
    if stop in added:
        ids = {*params.get("stop_token_ids", []), added[stop]}
        return {**params, "stop_token_ids": sorted(ids)}
    return {**params, "stop": [stop], "detokenize": True, "skip_special_tokens": False}


def parse_answer(content: bytes, params: Mapping[str, Any] = MappingProxyType({})) -> list[Sample]:
    """Return the samples of one generate answer, in order. `params` are the request's. Raises
    MalformedAnswer."""
    try:
        answer = _decoder.decode(content)
    except msgspec.MsgspecError as error:
        raise MalformedAnswer(f"vLLM's answer cannot be read: {error}") from error
    return [_sample(choice, params) for choice in sorted(answer.choices, key=lambda c: c.index)]


def _sample(choice: Choice, params: Mapping[str, Any]) -> Sample:
    token_ids = _array(choice, choice.token_ids, ID)
    logprobs = _array(choice, choice.logprobs, LOGPROB)
    if len(logprobs) != len(token_ids):
        raise MalformedAnswer(
            f"sample {choice.index} has {len(token_ids)} tokens and {len(logprobs)} "
            "log-probabilities"
        )
    if (logprobs <= IMPOSSIBLE).any():
        raise MalformedAnswer(
            f"sample {choice.index} has tokens to which the policy gives no probability: they "
            "cannot come from it. Does an option in rollout.vllm change what vLLM samples from?"
        )
    spans = [Span(start, end, version) for version, start, end in choice.versions]
    check_spans(spans, len(token_ids))
    return Sample(
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=choice.finish_reason,
        spans=spans,
        sampling_mask=_mask(choice, token_ids.tolist(), params) if params.get("top_k") else None,
        experts=_experts(choice),
    )


def _array(choice: Choice, content: bytes, dtype: "np.dtype[Any]") -> npt.NDArray[Any]:
    if len(content) % dtype.itemsize:
        raise MalformedAnswer(f"sample {choice.index}: {len(content)} bytes are no {dtype} array")
    return np.frombuffer(content, dtype)


def _mask(choice: Choice, token_ids: list[int], params: Mapping[str, Any]) -> SamplingMask:
    candidates = _array(choice, choice.candidates, ID)
    ends = np.cumsum(_array(choice, choice.counts, ID))
    if len(ends) and (ends[-1] != len(candidates) or (np.diff(ends, prepend=0) < 0).any()):
        raise MalformedAnswer(f"sample {choice.index}: its counts do not fit its candidates")
    sets = [each.tolist() for each in np.split(candidates, ends[:-1])] if len(ends) else []
    try:
        if "logprobs" in params:
            logprobs = _array(choice, choice.candidate_logprobs, LOGPROB)
            if len(logprobs) != len(candidates):
                raise UnknownMask(
                    f"{len(candidates)} candidates, {len(logprobs)} log-probabilities"
                )
            parts = np.split(logprobs, ends[:-1]) if len(ends) else []
            sets = [
                allowed_tokens(list(zip(each, part.tolist(), strict=True)), params["top_k"])
                for each, part in zip(sets, parts, strict=True)
            ]
        return mask_of(token_ids, sets)
    except UnknownMask as error:
        raise MalformedAnswer(f"sample {choice.index}: {error}") from error


def _experts(choice: Choice) -> Experts | None:
    if choice.experts is None:
        return None
    try:
        return decoded(choice.experts)
    except ValueError as error:
        raise MalformedAnswer(f"the expert routing of sample {choice.index}: {error}") from error


def check_spans(spans: list[Span], length: int) -> None:
    """Raise MalformedAnswer unless `spans` cover tokens 0..length without gap or overlap."""
    starts = [0, *(span.end for span in spans)]
    joined = all(start == span.start < span.end for start, span in zip(starts, spans, strict=False))
    if not joined or starts[-1] != length:
        raise MalformedAnswer(
            f"version spans {[(s.start, s.end, s.version) for s in spans]} do not cover the "
            f"{length} sampled tokens: was vLLM started with its weight-version endpoints?"
        )
