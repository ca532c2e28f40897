"""The weights that a rank may read by rows, and the rows of each rank."""

import pytest
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    ConversionOps,
    MergeModulelist,
    Transpose,
    WeightConverter,
    WeightRenaming,
)

from learner.model.placement.slicing import keeps_rows
from learner.slices import rows_on


def fused(*operations: ConversionOps) -> WeightConverter:
    return WeightConverter(
        ["experts.*.gate.weight", "experts.*.up.weight"], "experts.gate_up", list(operations)
    )


@pytest.mark.parametrize(
    ("operations", "kept"),
    [
        # A rank's whole experts: the first dimension of the stack.
        ((MergeModulelist(dim=0), Concatenate(dim=1)), True),
        ((MergeModulelist(dim=0),), True),
        ((MergeModulelist(dim=1),), False),
        # Rows of q, k and v below each other: the first half of the rows is not the first half of
        # each.
        ((Concatenate(dim=0),), False),
        ((MergeModulelist(dim=0), Concatenate(dim=0)), False),
        ((Transpose(0, 1),), False),
    ],
)
def test_a_rank_reads_its_rows_alone_only_if_the_folder_has_them_in_one_piece(
    operations: tuple[ConversionOps, ...], kept: bool
) -> None:
    assert keeps_rows(fused(*operations)) == kept


def test_a_tensor_that_is_divided_is_not_read_by_rows() -> None:
    divided = WeightConverter("qkv.weight", ["q.weight", "k.weight", "v.weight"], [Chunk(dim=0)])
    assert not keeps_rows(divided)


def test_another_name_changes_no_rows() -> None:
    assert keeps_rows(WeightRenaming("transformer.h", "model.layers"))


class Mesh:
    """A mesh of any number of ranks, seen from one of them."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def size(self) -> int:
        return self.ranks

    def get_local_rank(self) -> int:
        return self.rank


@pytest.mark.parametrize(
    ("rows", "ranges"),
    [
        (8, [(0, 2), (2, 4), (4, 6), (6, 8)]),
        (5, [(0, 2), (2, 4), (4, 5), (5, 5)]),
        (1, [(0, 1), (1, 1), (1, 1), (1, 1)]),
    ],
)
def test_the_first_ranks_have_as_many_rows_and_the_last_fewer_or_none(
    rows: int, ranges: list[tuple[int, int]]
) -> None:
    assert [rows_on(rows, Mesh(rank, 4)) for rank in range(4)] == ranges  # type: ignore[arg-type]
