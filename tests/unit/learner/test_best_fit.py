"""Rows are filled as nanochat fills them. Every token appears once, except the reported losses."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.batch.best_fit import BestFit, Crop, Placed


def filled(lengths: list[int], room: int, buffer: int, crop: Crop | None) -> list[list[Placed]]:
    fit, following = BestFit(room, buffer, crop), iter(enumerate(lengths))
    rows = []
    while row := fit.row(following):
        rows.append(row)
    return rows


def nanochat(lengths: list[int], room: int, buffer: int, crop: Crop | None) -> list[list[Placed]]:
    """The loops of nanochat, over a list that ends: dataloader.py (shortest), mid_train.py (first)
    and chat_sft.py (None)."""
    rest = list(enumerate(lengths))
    waiting: list[tuple[int, int]] = []
    rows: list[list[Placed]] = []
    while True:
        row: list[Placed] = []
        position = 0
        while position < room:
            while len(waiting) < buffer and rest:
                waiting.append(rest.pop(0))
            remaining = room - position
            best, best_length = -1, 0
            for i, (_, length) in enumerate(waiting):
                if length <= remaining and length > best_length:
                    best, best_length = i, length
            if best >= 0:
                at, length = waiting.pop(best)
                row.append(Placed(at, length))
                position += length
            elif crop and waiting:
                shortest = min(range(len(waiting)), key=lambda i: waiting[i][1])
                at, length = waiting.pop(shortest if crop == "shortest" else 0)
                row.append(Placed(at, remaining, length - remaining))
                position += remaining
            else:
                break
        if not row:
            return rows
        rows.append(row)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), max_size=40),
    buffer=st.integers(1, 8),
    crop=st.sampled_from([None, "shortest", "first"]),
)
def test_rows_are_filled_as_nanochat_fills_them_and_every_token_is_accounted_for(
    lengths: list[int], buffer: int, crop: Crop | None
) -> None:
    rows = filled(lengths, 20, buffer, crop)

    assert rows == nanochat(lengths, 20, buffer, crop)
    placed = sorted((one.position, one.tokens + one.lost) for row in rows for one in row)
    assert placed == list(enumerate(lengths))
    assert all(sum(one.tokens for one in row) <= 20 for row in rows)
    if not crop:
        assert all(one.lost == 0 for row in rows for one in row)


def test_the_longest_that_fits_comes_first_and_then_the_shortest_or_the_first_is_cut() -> None:
    assert filled([4, 7, 3, 6, 5], 10, 5, crop=None) == [
        [Placed(1, 7), Placed(2, 3)],
        [Placed(3, 6), Placed(0, 4)],
        [Placed(4, 5)],
    ]
    # Nothing fits into the last 2 tokens of the first row: the shortest loses 3 tokens.
    assert filled([8, 6, 5], 10, 3, crop="shortest") == [
        [Placed(0, 8), Placed(2, 2, 3)],
        [Placed(1, 6)],
    ]
    # The first to come has 6 tokens and loses 4.
    assert filled([8, 6, 5], 10, 3, crop="first") == [
        [Placed(0, 8), Placed(1, 2, 4)],
        [Placed(2, 5)],
    ]


@pytest.mark.parametrize("after", [1, 3])
def test_filling_goes_on_from_what_was_waiting(after: int) -> None:
    lengths = [5, 9, 2, 7, 3, 8, 1, 6, 4, 4]
    whole = filled(lengths, 10, 4, crop=None)
    fit, taken = BestFit(10, 4, None), count()
    following = zip(taken, lengths, strict=False)

    rows = [fit.row(following) for _ in range(after)]
    again = BestFit(10, 4, None)
    again.put((at, lengths[at]) for at in fit.waiting)
    rest = iter([(at, lengths[at]) for at in range(next(taken), len(lengths))])
    while row := again.row(rest):
        rows.append(row)

    assert rows == whole
