"""Candidates of sampled tokens are exact on the wire, small, and never larger than announced."""

import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.groups.sampling_mask import SamplingMask
from services.contracts.groups.trajectory import decode, encode
from tests.unit.contracts.test_trajectory import GROUP

IDS = st.sets(st.integers(0, 2**24 - 1), max_size=5)


@given(st.lists(IDS, max_size=6))
def test_a_sampling_mask_is_read_back_from_its_bytes(supports: list[set[int]]) -> None:
    kept = SamplingMask.of([list(support) for support in supports])
    back = SamplingMask.unpack(len(supports), kept.pack())
    candidates = [back.cut(i, i + 1).ids.tolist() for i in range(len(supports))]
    assert candidates == [sorted(support) for support in supports]


def test_a_token_that_was_not_sampled_has_no_candidates() -> None:
    kept = SamplingMask.joined(
        [SamplingMask.of([[7, 3], [5]]), SamplingMask.nothing(2), SamplingMask.of([[9]])]
    )
    assert kept.counts.tolist() == [2, 1, 0, 0, 1]
    assert kept.table().tolist() == [[3, 7], [5, -1], [-1, -1], [-1, -1], [9, -1]]
    assert kept.cut(1, 4).counts.tolist() == [1, 0, 0]
    assert kept.has(np.array([7, 4, 0, 0, 9])).tolist() == [True, False, False, False, True]


def test_fifty_ids_of_a_large_vocabulary_take_less_than_half_of_their_four_bytes() -> None:
    task = np.random.default_rng(0)
    supports = [task.choice(150_000, 50, replace=False).tolist() for _ in range(256)]
    assert len(SamplingMask.of(supports).pack()) <= 90 * 256


def test_a_group_carries_its_sampling_mask() -> None:
    kept = SamplingMask.of([[9, 2], [3, 10], []])
    back = decode(encode(replace(GROUP, sampling_mask=kept))).sampling_mask
    assert back is not None
    assert (back.counts.tolist(), back.ids.tolist()) == ([2, 2, 0], [2, 9, 3, 10])
    assert decode(encode(GROUP)).sampling_mask is None


@pytest.mark.parametrize(
    "kept",
    [SamplingMask.of([[9], [3], []]), SamplingMask.of([[9], [10]])],
    ids=["not its own", "too few"],
)
def test_a_sampled_token_outside_the_candidates_is_refused(kept: SamplingMask) -> None:
    with pytest.raises(ValueError, match="sampling_mask lacks tokens that were sampled"):
        encode(replace(GROUP, sampling_mask=kept))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not deflated",
        SamplingMask.of([[1], [2], [3]]).pack(),
        SamplingMask.of([[1]]).pack(),
        SamplingMask.of([[1], [2]]).pack()[:-6],
        # Counts that promise two ids, and a megabyte behind them.
        zlib.compress(np.array([1, 1], "<u4").tobytes() + bytes(1 << 20)),
    ],
    ids=["nothing", "noise", "more tokens", "fewer tokens", "truncated", "a bomb"],
)
def test_bytes_of_another_number_of_tokens_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="sampling mask"):
        SamplingMask.unpack(2, data)
