"""What attention over a packed row costs: which sequences share a call, and what padding there is
in it. That it computes the same as separate sequences is tested with whole models (test_logprobs).
"""

import pytest
import torch

from learner.model.packed_attention import packed_layout


def shapes(lengths: list[int]) -> list[tuple[int, int]]:
    """Sequences and longest of each block."""
    return [(block.rows.shape[0], block.rows.shape[1]) for block in packed_layout(lengths).blocks]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([100, 100, 100], [(3, 100)]),
        # 75 is three quarters of 100, 74 is not.
        ([100, 75], [(2, 100)]),
        ([100, 74], [(1, 100), (1, 74)]),
        # Each against the longest of its block, in whatever order they stand in the row.
        ([80, 120, 65, 100, 200], [(1, 200), (2, 120), (2, 80)]),
        # Short ones share a call: it costs more than what they would save.
        ([64, 3, 10, 1], [(4, 64)]),
        ([65, 3, 10, 1], [(1, 65), (3, 10)]),
    ],
)
def test_sequences_of_similar_length_share_a_call(
    lengths: list[int], expected: list[tuple[int, int]]
) -> None:
    assert shapes(lengths) == expected


def test_every_token_has_its_place_and_padding_repeats_the_first_one() -> None:
    layout = packed_layout([2, 100, 3])
    long, short = layout.blocks
    assert long.rows.tolist() == [list(range(2, 102))]
    # Sequences 3 (tokens 102 to 104) and 1 (tokens 0 and 1), longest first.
    assert short.rows.tolist() == [[102, 103, 104], [0, 1, 0]]
    assert short.places.tolist() == [0, 1, 2, 3, 4]
    # From the order of the blocks (2 … 104, 0, 1) back to the row's.
    assert layout.back is not None
    assert layout.back.tolist() == [103, 104, *range(103)]


def test_a_row_that_is_sorted_needs_no_way_back() -> None:
    assert packed_layout([100, 60, 60, 5]).back is None
    assert torch.equal(packed_layout([3, 3]).bounds, torch.tensor([0, 3, 6], dtype=torch.int32))
