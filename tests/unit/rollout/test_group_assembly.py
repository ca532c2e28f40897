"""Completions and scores become a group on the wire; the version of its oldest token is found."""

import numpy as np
import pytest

from rollout.episodes import Completion
from rollout.rewards.combine import SampleScore
from rollout.vllm.client.response import Span
from rollout.work.group import Sampled
from rollout.work.group_assembly import Origin, assemble, oldest_tag
from services.contracts.groups.trajectory import decode, encode

ORIGIN = Origin("run1", 17, "attempt", "w1", 4, "aa", 1.0)


def completion(tokens, mask, spans, reason="stop"):
    return Completion(
        token_ids=np.array(tokens, np.int32),
        loss_mask=np.array(mask, bool),
        logprobs=-np.arange(1, len(tokens) + 1, dtype=np.float32),
        spans=spans,
        finish_reason=reason,
    )


def test_a_group_survives_the_wire_token_for_token():
    completions = [
        completion([5, 6, 7], [1, 0, 1], [Span(0, 1, "aa:3"), Span(2, 3, "aa:4")]),
        completion([8], [1], [Span(0, 1, "aa:4")], "length"),
    ]
    scores = [
        SampleScore(1.0, "correct", {"math": 1.0}),
        SampleScore(None, "error", {"math": None}),
    ]

    group = decode(encode(assemble(ORIGIN, Sampled([0, 9], completions, scores), 0.25)))

    assert group.header.tags == ["aa:3", "aa:4"]
    assert group.spans.tolist() == [[0, 0, 1, 0], [0, 2, 3, 1], [1, 0, 1, 1]]
    assert group.prompt_tokens.tolist() == [0, 9]
    assert group.lengths.tolist() == [3, 1]
    assert group.tokens.tolist() == [5, 6, 7, 8]
    assert group.loss_mask.tolist() == [True, False, True, True]
    assert group.logprobs.tolist() == [-1.0, -2.0, -3.0, -1.0]
    assert group.header.rewards == [1.0, None]
    assert group.header.sampled_reward == 0.25
    assert group.header.components == {"math": [1.0, None]}
    assert group.header.finish_reasons == ["stop", "length"]
    assert (group.header.task, group.header.row, group.header.lineage) == (17, 4, "aa")


def test_expert_routing_is_part_of_the_group():
    first = completion([5, 6], [1, 1], [Span(0, 2, "aa:3")])
    second = completion([8], [1], [Span(0, 1, "aa:3")])
    first.experts = np.array([[[1, 2]], [[3, 4]], [[5, 6]]], np.uint8)
    second.experts = first.experts[:2]
    scores = [SampleScore(1.0, "correct", {"math": 1.0})] * 2

    sampled = Sampled([0, 9], [first, second], scores)

    group = decode(encode(assemble(ORIGIN, sampled, routing=True)))

    assert group.experts is not None
    assert group.routed is not None
    assert group.experts.tolist() == [[[1, 2]], [[3, 4]], [[5, 6]]]
    assert group.routed.tolist() == [1, 0]
    plain = decode(encode(assemble(ORIGIN, sampled)))
    assert plain.experts is None


def test_a_group_takes_at_most_twelve_bytes_a_token():
    """32 prompts × 8 samples × 64 tokens: the setting of the benchmark."""
    tokens = list(range(64))
    completions = [completion(tokens, [1] * 64, [Span(0, 64, "aa:3")]) for _ in range(8)]
    scores = [SampleScore(1.0, "correct", {"math": 1.0})] * 8
    group = assemble(ORIGIN, Sampled(list(range(16)), completions, scores))
    assert len(encode(group)) <= 12 * 8 * 64


@pytest.mark.parametrize(
    ("tags", "forks", "expected"),
    [
        (["aa:7", "aa:5"], {}, "aa:5"),
        ([], {}, "aa:7"),
        # bb ended at 4, where aa began. bb:3 is a common ancestor, 4 behind aa:7. bb:6 lies two
        # steps down a dead branch, 2 back and 3 forward, 5 from aa:7.
        (["aa:5", "bb:3"], {"bb": 4}, "bb:3"),
        (["aa:7", "bb:6", "bb:3"], {"bb": 4}, "bb:6"),
        (["cc:6"], {"bb": 4}, "cc:6"),
    ],
)
def test_the_oldest_version_is_the_furthest_along_the_tree_of_lineages(tags, forks, expected):
    assert oldest_tag(tags, "aa:7", forks) == expected
