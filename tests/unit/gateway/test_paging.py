"""Pages of lists: their cursors, and lists that change between two pages."""

import pytest

from services.gateway.paging import Place, cursor_at, number_in, page_of
from services.http import Problem

NAMES = ["a", "b", "c", "d"]


def place(name: str) -> Place:
    return name, 1.5


def test_pages_have_each_entry_once_and_the_last_one_has_no_next() -> None:
    first, cursor = page_of(NAMES, place, 3, None)
    second, end = page_of(NAMES, place, 3, cursor)

    assert (first, second, end) == (["a", "b", "c"], ["d"], None)
    assert page_of(NAMES, place, 4, None) == (NAMES, None)
    assert page_of([], place, 4, None) == ([], None)


def test_entries_that_come_and_go_do_not_shift_a_page() -> None:
    _, cursor = page_of(NAMES, place, 2, None)

    assert page_of(["a", "aa", "c", "d"], place, 2, cursor) == (["c", "d"], None)


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "é", "bnVsbA", "W251bGxd", "[1]", cursor_at((1,)), "W" * 999, "=" * 5, "\0"],
)
def test_a_cursor_of_no_page_is_refused_with_its_way_out(cursor: str) -> None:
    with pytest.raises(Problem, match="send the `next` of the page before") as refused:
        page_of(NAMES, place, 2, cursor)

    assert (refused.value.status, refused.value.problems[0].path) == (422, "query.cursor")


@pytest.mark.parametrize("place", [(), (-1,), (1.5,), (True,), ("1",), (1, 2)])
def test_only_a_place_of_one_number_is_a_number(place: Place) -> None:
    assert number_in(cursor_at((7,)), 0) == 7
    assert number_in(None, 3) == 3
    with pytest.raises(Problem):
        number_in(cursor_at(place), 0)
