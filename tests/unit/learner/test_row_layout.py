"""The pieces of a packed row that share a call, and their padding."""

import pytest
import torch

from learner.model.attention.row_layout import ROOT, packed_layout


def shapes(lengths: list[int]) -> list[tuple[int, int]]:
    """Sequences and longest of each block."""
    return [block.queries.shape for block in packed_layout(lengths).blocks(None)]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([100, 100, 100], [(3, 100)]),
        # 75 is three quarters of 100, 74 is not.
        ([100, 75], [(2, 100)]),
        ([100, 74], [(1, 100), (1, 74)]),
        # Each against the longest of its block, in any order in the row.
        ([80, 120, 65, 100, 200], [(1, 200), (2, 120), (2, 80)]),
        # Short pieces share a call: an extra call would cost more than it saves.
        ([64, 3, 10, 1], [(4, 64)]),
        ([65, 3, 10, 1], [(1, 65), (3, 10)]),
    ],
)
def test_sequences_of_similar_length_share_a_call(
    lengths: list[int], expected: list[tuple[int, int]]
) -> None:
    assert shapes(lengths) == expected


def test_every_token_has_its_place_and_padding_repeats_the_first_one() -> None:
    row = torch.arange(105)
    long, short = packed_layout([2, 100, 3]).blocks(None)
    assert long.queries.take(row).tolist() == [list(range(2, 102))]
    # Sequences 3 (tokens 102 to 104) and 1 (tokens 0 and 1), longest first.
    assert short.queries.take(row).tolist() == [[102, 103, 104], [0, 1, 0]]
    assert short.places.take(row).tolist() == [102, 103, 104, 0, 1]
    assert short.queries.padding is not None
    assert short.queries.padding.tolist() == [[False] * 3, [False, False, True]]


def test_a_parents_tokens_are_a_rectangle_for_all_that_is_behind_it() -> None:
    # A prompt of 3 with answers of 2 and 2, a stranger, and two continuations of the first answer.
    layout = packed_layout([3, 2, 1, 4, 2, 5], parents=[ROOT, 0, 1, 1, 0, ROOT])
    row = torch.arange(17)
    assert layout.positions == [0, 3, 5, 5, 3, 0]
    rectangles = [
        (block.places.take(row).tolist(), block.key_places.take(row).tolist())
        for block in layout.blocks(None)
        if not block.causal
    ]
    assert rectangles == [
        ([*range(3, 12)], [0, 1, 2]),
        ([5, 6, 7, 8, 9], [3, 4]),
    ]
    whole, first, second = layout.varlen(None)
    assert whole.bounds.tolist() == [0, 3, 5, 6, 10, 12, 17]
    assert (first.bounds.tolist(), first.key_bounds.tolist()) == ([0, 9], [0, 3])
    assert (second.bounds.tolist(), second.key_bounds.tolist()) == ([0, 5], [0, 2])


def test_a_windowed_segment_has_its_ancestors_last_tokens_before_it() -> None:
    layout = packed_layout([3, 2, 4], parents=[ROOT, 0, 1])
    (call,) = layout.varlen(4)
    assert call.key_places.take(torch.arange(9)).tolist() == [
        *(0, 1, 2),
        *(0, 1, 2, 3, 4),
        *(2, 3, 4, 5, 6, 7, 8),
    ]
    assert call.key_bounds.tolist() == [0, 3, 8, 15]


def test_a_window_over_all_tokens_has_no_effect() -> None:
    layout = packed_layout([9, 4])
    assert layout.blocks(9) is layout.blocks(None)
    assert layout.varlen(100) is layout.varlen(None)


def test_segments_out_of_order_are_an_error() -> None:
    with pytest.raises(ValueError, match="segment 3 does not follow its parent 1"):
        packed_layout([1, 1, 1, 1], parents=[ROOT, 0, 0, 1])
