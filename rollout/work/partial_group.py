"""A partial: what a group's samples had when their worker left. Another worker continues them, as a
worker continues samples that a weight update has interrupted (`vllm.client.resume`). Pure.

A partial is written as a trajectory group without rewards. Samples that were not done have the
finish reason `abort`.
"""

import numpy as np

from rollout.episodes import Completion
from rollout.rewards.combine import SampleScore
from rollout.vllm.client.response import Sample, Span, check_spans
from rollout.vllm.client.resume import Begun
from rollout.work.group import Sampled
from rollout.work.group_assembly import Origin, assemble
from services.contracts.groups.trajectory import TrajectoryGroup
from services.contracts.scores import ScoreStatus
from services.contracts.weights import parse_version_tag

NOT_SCORED = SampleScore(None, ScoreStatus.ERROR, {})


def partial_group(origin: Origin, begun: Begun) -> TrajectoryGroup:
    """Return the trajectory group that stands for `begun`."""
    completions = [
        Completion.of(sample, np.ones(len(sample.token_ids), dtype=np.bool_))
        for sample in begun.samples
    ]
    scores = [NOT_SCORED for _ in completions]
    return assemble(origin, Sampled(begun.prompt, completions, scores))


def begun_group(group: TrajectoryGroup) -> Begun:
    """The inverse of `partial_group`. Raises MalformedAnswer if the versions do not cover the
    tokens, and ValueError if they are no versions."""
    ends, tags = group.lengths.cumsum().tolist(), group.header.tags
    for tag in tags:
        parse_version_tag(tag)
    spans_of: list[list[Span]] = [[] for _ in ends]
    for sample, start, stop, tag in group.spans.tolist():
        if not (0 <= sample < len(ends) and 0 <= tag < len(tags)):
            raise ValueError(f"a span names sample {sample} and version {tag}, which are not there")
        spans_of[sample].append(Span(start, stop, tags[tag]))
    samples = []
    for i, (end, length) in enumerate(zip(ends, group.lengths.tolist(), strict=True)):
        spans = spans_of[i]
        check_spans(spans, length)
        mask = group.sampling_mask
        samples.append(
            Sample(
                token_ids=group.tokens[end - length : end].astype(np.int32),
                logprobs=group.logprobs[end - length : end].astype(np.float32),
                finish_reason=group.header.finish_reasons[i],
                spans=spans,
                sampling_mask=None if mask is None else mask.cut(end - length, end),
            )
        )
    return Begun(group.prompt_tokens.tolist(), samples, group.header.worker)
