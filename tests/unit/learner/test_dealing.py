"""Ranks get samples of equal cost, and groups stay whole unless that costs balance."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.batch.cost import TOKENS, SequenceCost
from learner.batch.dealing import RankSamples, deal
from learner.coordinate.planner import shares_of
from services.contracts.groups.group_lengths import GroupLengths

QWEN3_8B = SequenceCost(weights=6_950_000_000, head=622_000_000, attention=36 * 4096)


def reasoning(groups: int, samples: int, seed: int, longest: int = 8192) -> list[GroupLengths]:
    """Answers of a reasoning model. Prompts differ in difficulty (a median of 2,500 tokens), and
    answers to one prompt differ by some tenths in the logarithm."""
    random.seed(seed)
    found = []
    for _ in range(groups):
        typical = 2500 * math.exp(random.gauss(0, 0.6))
        lengths = (int(typical * math.exp(random.gauss(0, 0.4))) for _ in range(samples))
        found.append(
            GroupLengths(random.randint(80, 300), tuple(min(max(n, 50), longest) for n in lengths))
        )
    return found


def loads(
    hands: list[RankSamples], groups: list[GroupLengths], cost: SequenceCost, shared: bool = False
) -> list[int]:
    return [
        sum(
            cost.samples(groups[g].prompt, [groups[g].completions[i] for i in samples], shared)
            for g, samples in hand.items()
        )
        for hand in hands
    ]


@pytest.mark.parametrize("ranks", [16, 32, 64])
def test_ranks_are_busy_even_if_they_outnumber_the_groups(ranks: int) -> None:
    for seed in range(5):
        groups = reasoning(32, 8, seed)
        found = loads(deal(groups, ranks, QWEN3_8B), groups, QWEN3_8B)
        assert sum(found) / ranks > 0.9 * max(found)


def test_no_rank_has_two_very_long_answers_if_one_exceeds_a_share() -> None:
    for seed in range(5):
        groups = reasoning(32, 8, seed, longest=32_768)
        found = loads(deal(groups, 64, QWEN3_8B), groups, QWEN3_8B)
        longest = max(QWEN3_8B.sequence(p, n) for p, completions in groups for n in completions)
        assert max(found) <= max(longest, 1.1 * sum(found) / 64)


def test_groups_stay_whole_if_that_is_as_even() -> None:
    groups = [GroupLengths(10, (90, 90))] * 4
    assert deal(groups, 2, TOKENS) == [{0: [0, 1], 2: [0, 1]}, {1: [0, 1], 3: [0, 1]}]


def test_a_group_is_split_if_a_rank_would_wait() -> None:
    groups = [GroupLengths(0, (5, 5, 5, 5)), GroupLengths(0, (10,))]
    hands = deal(groups, 2, TOKENS)
    assert loads(hands, groups, TOKENS) == [30, 30]
    assert sorted(hands, key=len) == [{0: [0, 1, 2]}, {0: [3], 1: [0]}]


def test_a_shared_prompt_keeps_samples_together() -> None:
    # Two answers of 10 to prompts of 100: split, each rank computes both prompts.
    groups = [GroupLengths(100, (10, 10)), GroupLengths(100, (10, 10))]
    assert deal(groups, 2, TOKENS, shared=True) == [{0: [0, 1]}, {1: [0, 1]}]


def test_an_untrained_sample_stays_with_its_group() -> None:
    groups = [GroupLengths(3, (50, 0, 0)), GroupLengths(3, (0, 0)), GroupLengths(3, (60, 0))]
    hands = deal(groups, 2, TOKENS)
    assert [sum(g in hand for hand in hands) for g in range(3)] == [1, 1, 1]


lengths = st.builds(
    lambda p, c: GroupLengths(p, tuple(c)),
    st.integers(1, 30),
    st.lists(st.integers(0, 50), min_size=1, max_size=6),
)


@given(st.lists(lengths, max_size=12), st.integers(1, 5), st.booleans())
def test_every_sample_is_dealt_and_counted_once_and_loads_are_nearly_even(
    groups: list[GroupLengths], ranks: int, shared: bool
) -> None:
    cost = SequenceCost(weights=20, head=10, attention=1)
    hands = deal(groups, ranks, cost, shared)
    assert hands == deal(groups, ranks, cost, shared)
    dealt = [(g, i) for hand in hands for g, samples in hand.items() for i in samples]
    assert sorted(dealt) == [(g, i) for g, one in enumerate(groups) for i in range(len(one[1]))]
    counted = [s for shares in shares_of(range(len(groups)), groups, ranks, cost) for s in shares]
    assert sorted(s.position for s in counted if s.counts) == list(range(len(groups)))
    alone = [cost.sequence(one.prompt, n) for one in groups for n in one.completions if n]
    even = sum(alone) / ranks
    assert max(loads(hands, groups, cost, shared)) <= even + max(alone, default=0) * 1.01 + 1
