"""Counts and states as parts of sentences."""

from headrace.wording import counted, predicate


def test_one_thing_has_no_plural() -> None:
    assert [counted(n, "row") for n in (0, 1, 2_000)] == ["0 rows", "1 row", "2,000 rows"]
    assert counted(1, "row has", "rows have") == "1 row has"
    assert counted(2, "row has", "rows have") == "2 rows have"


def test_a_state_ends_a_sentence() -> None:
    states = ("queued", "succeeded", "failed", "cancelled")
    assert [predicate(state) for state in states] == [
        "is queued",
        "has succeeded",
        "has failed",
        "was cancelled",
    ]
