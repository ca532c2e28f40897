"""Resumes an interrupted completion. Pure.

vLLM answers an aborted request with the tokens sampled so far. They are appended to the prompt of
the next request, and its tokens are joined to them, each with its log-probability and version.
Episodes that insert tokens do the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import xxhash

from rollout.vllm.client.expert_routing import extended
from rollout.vllm.client.response import Sample, Span
from services.contracts.groups.sampling_mask import SamplingMask

ABORTED = "abort"
"""vLLM's finish reason of an aborted completion."""
DEADLINE = "deadline"
"""Our finish reason of a completion whose group reached `rollout.straggler_deadline`."""
CUT_OFF = ("length", DEADLINE)
"""Finish reasons of a truncated completion."""


@dataclass(frozen=True)
class Begun:
    """The samples of one prompt, some of them interrupted."""

    prompt: list[int]
    samples: list[Sample]
    worker: str = ""
    """The worker that has sampled them, if it is another one."""

    @property
    def tokens(self) -> int:
        return sum(len(sample.token_ids) for sample in self.samples)


def rest_of(sampling: dict[str, Any], index: int, done: int) -> dict[str, Any]:
    """Return vLLM's sampling parameters for the rest of sample `index` after `done` tokens."""
    params = {**sampling, "max_tokens": sampling["max_tokens"] - done}
    if "seed" in sampling:
        # The same seed would repeat the random numbers of the beginning.
        params["seed"] = mixed(sampling["seed"] + index, done)
    return params


def mixed(*numbers: int) -> int:
    """Return a seed of 62 bits made of `numbers`."""
    return xxhash.xxh3_64_intdigest(msgspec.msgpack.encode(numbers)) & ((1 << 62) - 1)


def joined(begun: Sample, rest: Sample) -> Sample:
    """Return `begun` and the tokens sampled after it as one completion."""
    done = len(begun.token_ids)
    spans = list(begun.spans)
    for span in rest.spans:
        moved = Span(span.start + done, span.end + done, span.version)
        if spans and (spans[-1].version, spans[-1].end) == (moved.version, moved.start):
            spans[-1] = replace(spans[-1], end=moved.end)
        else:
            spans.append(moved)
    return Sample(
        token_ids=np.concatenate([begun.token_ids, rest.token_ids]),
        logprobs=np.concatenate([begun.logprobs, rest.logprobs]),
        finish_reason=rest.finish_reason,
        spans=spans,
        sampling_mask=_joined_masks(begun, rest),
        experts=extended(begun.experts, rest.experts),
    )


def _joined_masks(begun: Sample, rest: Sample) -> SamplingMask | None:
    if begun.sampling_mask is None and rest.sampling_mask is None:
        return None
    parts = (begun, rest)
    return SamplingMask.joined(
        [s.sampling_mask or SamplingMask.nothing(len(s.token_ids)) for s in parts]
    )


def begun_by(whole: Sample, length: int) -> Sample:
    """Return the first `length` tokens of `whole`."""
    dropped = len(whole.token_ids) - length
    spans = [replace(s, end=min(s.end, length)) for s in whole.spans if s.start < length]
    return replace(
        whole,
        token_ids=whole.token_ids[:length],
        logprobs=whole.logprobs[:length],
        spans=spans,
        sampling_mask=whole.sampling_mask.cut(0, length) if whole.sampling_mask else None,
        experts=None if whole.experts is None else whole.experts[: len(whole.experts) - dropped],
    )


def not_sampled(token_ids: Sequence[int], finish_reason: str) -> Sample:
    """Return a sample of inserted tokens: no version of the policy sampled them, so their
    log-probabilities are 0. Without tokens, the sample only ends a completion."""
    return Sample(
        token_ids=np.array(token_ids, dtype=np.int32),
        logprobs=np.zeros(len(token_ids), dtype=np.float32),
        finish_reason=finish_reason,
        spans=[],
    )
