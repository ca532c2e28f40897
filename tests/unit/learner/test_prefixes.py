"""The tokens that samples share, when sharing pays, and the resulting forest."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.batch.cost import SequenceCost
from learner.batch.prefixes import (
    Prefixes,
    Sharing,
    common_prefixes,
    segments,
    token_places,
    worthwhile,
)

ALWAYS = Sharing(SequenceCost(weights=1), merge=0, least=1)


def prefixes(
    sequences: list[list[int]],
    sharing: Sharing | None = ALWAYS,
    experts: list[torch.Tensor | None] | None = None,
) -> Prefixes:
    tokens = [torch.tensor(sequence) for sequence in sequences]
    return common_prefixes(tokens, experts or [None] * len(tokens), sharing)


def test_sequences_with_a_common_prefix_are_neighbours() -> None:
    found = prefixes([[7, 1, 2, 3], [300, 5], [7, 1, 9], [7, 1, 2, 3, 4], [7, 1, 2, 3]])
    # By their numbers: 300 comes after 7, though its lowest byte is smaller.
    assert found.order == [0, 4, 3, 2, 1]
    assert found.lengths == [4, 4, 5, 3, 2]
    assert found.shared == [0, 4, 4, 2, 0]


def test_without_sharing_the_longest_is_first() -> None:
    found = prefixes([[7, 1], [7, 1, 2], [7, 1]], None)
    assert (found.order, found.shared) == ([1, 0, 2], [0, 0, 0])


def test_a_token_with_other_recorded_experts_is_another() -> None:
    one = torch.zeros(4, 2, 1, dtype=torch.int16)
    other = one.clone()
    other[2, 1] = 3
    sequences = [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert prefixes(sequences, experts=[one, other]).shared == [0, 2]
    assert prefixes(sequences, experts=[one, one.clone()]).shared == [0, 4]
    assert prefixes(sequences, experts=[one, None]).shared == [0, 0]


def test_sharing_pays_if_it_saves_more_than_merging_costs() -> None:
    # 100 weights and one number of attention: a prefix of 10 tokens is 2·100·10 + 4·1·55 = 2,220
    # FLOPs, and each of four copies but one is saved: 6,660. Merging takes 30 for a token.
    sharing = Sharing(SequenceCost(weights=100, attention=1), merge=30, least=1)
    assert sharing.pays(0, 10, copies=4, behind=221)
    assert not sharing.pays(0, 10, copies=4, behind=222)
    # After 90 tokens attention reaches further: 2,000 + 4·(100·101 − 90·91)/2 = 5,820 each.
    assert sharing.pays(90, 100, copies=4, behind=3 * 5820 // 30 - 1)
    assert not Sharing(sharing.cost, merge=0, least=31).pays(0, 10, copies=4, behind=1)


def test_an_unprofitable_fork_leaves_later_forks_alone() -> None:
    # All share 2 tokens, and the last two 6: only prefixes of at least 5 saved tokens pay.
    sharing = Sharing(SequenceCost(weights=1), merge=0, least=5)
    assert worthwhile([8, 8, 8], [0, 2, 6], sharing) == [0, 0, 6]
    # Two copies of 2 are saved, then one of 4.
    sharing = Sharing(SequenceCost(weights=1), merge=0, least=4)
    assert worthwhile([8, 8, 8], [0, 2, 6], sharing) == [0, 0, 6]
    sharing = Sharing(SequenceCost(weights=1), merge=0, least=2)
    assert worthwhile([8, 8, 8], [0, 2, 6], sharing) == [0, 2, 6]


def test_families_are_cut_at_the_budget() -> None:
    found = Prefixes([0, 1, 2, 3], [10, 12, 11, 40], [0, 8, 8, 0])
    assert found.families(100) == [range(3), range(3, 4)]
    # 10 + 4 fit, 3 more do not: the third has its own prefix.
    assert found.families(14) == [range(2), range(2, 3), range(3, 4)]
    assert found.within(range(2)) == [0, 8]
    assert found.within(range(2, 3)) == [0]


def test_the_forest_of_a_conversation() -> None:
    # Lengths 9, 7, 7, 5, 4: two turns deep, a copy, a beginning of the first, and a stranger.
    found = segments([9, 7, 7, 5, 4], [0, 5, 7, 3, 0])
    assert found.lengths == [3, 2, 4, 2, 2, 4]
    assert found.parents == [-1, 0, 1, 1, 0, -1]
    places = token_places([9, 7, 7, 5, 4], [0, 5, 7, 3, 0])
    assert places[1].tolist() == [0, 1, 2, 3, 4, 9, 10]
    assert places[2].tolist() == places[1].tolist()
    assert places[3].tolist() == [0, 1, 2, 11, 12]
    assert places[4].tolist() == [13, 14, 15, 16]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12))
def test_every_sequence_is_found_again_on_a_path_of_the_forest(sequences: list[list[int]]) -> None:
    found = prefixes(sequences)
    places = token_places(found.lengths, found.shared)
    forest = segments(found.lengths, found.shared)
    row = [
        token
        for i, start in zip(found.order, found.shared, strict=True)
        for token in sequences[i][start:]
    ]
    starts = [sum(forest.lengths[:i]) for i in range(len(forest.lengths))]
    for i, place in zip(found.order, places, strict=True):
        assert [row[p] for p in place.tolist()] == sequences[i]
        # Its tokens are whole segments, each the child of the one before it.
        own = [s for s, start in enumerate(starts) if start in place.tolist()]
        assert sum(forest.lengths[s] for s in own) == len(place)
        assert [forest.parents[s] for s in own] == [-1, *own[:-1]]
    # No token is in it twice: it has exactly as many tokens as there are different prefixes.
    assert len(row) == len({tuple(s[: n + 1]) for s in sequences for n in range(len(s))})
