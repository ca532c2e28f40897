"""Which column is the prompt, which the answer, and what a row may not be."""

import pytest

from services.datasets.columns import ColumnMapping, DatasetError, row_from


def test_well_known_names_are_found_in_their_order_of_preference() -> None:
    mapping = ColumnMapping().resolved(["id", "question", "prompt", "solution", "answer"])

    assert mapping == ColumnMapping(prompt="prompt", answer="answer")


def test_well_known_names_are_found_whatever_their_case() -> None:
    assert ColumnMapping().resolved(["Question", "Gold"]) == ColumnMapping("Question", "Gold")


def test_a_source_without_anything_like_an_answer_has_none() -> None:
    assert ColumnMapping().resolved(["prompt", "id"]).answer is None


def test_a_given_column_wins_over_a_well_known_one() -> None:
    mapping = ColumnMapping(prompt="text", answer="label").resolved(["prompt", "text", "label"])

    assert mapping == ColumnMapping(prompt="text", answer="label")


def test_a_column_that_is_not_there_is_named_with_the_nearest_and_all_there_are() -> None:
    with pytest.raises(DatasetError) as refused:
        ColumnMapping(prompt="quesiton").resolved(["question", "answer"])

    assert str(refused.value) == (
        "there is no column 'quesiton' to take the prompt from (did you mean 'question'?); "
        "columns: 'question', 'answer'"
    )


def test_where_nothing_looks_like_a_prompt_the_columns_and_the_way_out_are_named() -> None:
    with pytest.raises(DatasetError, match=r"columns: 'a', 'b'.*--prompt COLUMN"):
        ColumnMapping().resolved(["a", "b"])


def test_unmapped_columns_become_meta() -> None:
    row = row_from("line 1", {"q": "1+1", "a": 2, "level": "easy"}, ColumnMapping("q", "a"))

    assert (row.prompt, row.answer, row.meta) == ("1+1", 2, {"level": "easy"})


def test_an_unmapped_object_named_meta_is_the_meta_itself() -> None:
    row = row_from("line 1", {"prompt": "x", "meta": {"k": 1}, "id": 7}, ColumnMapping("prompt"))

    assert row.meta == {"k": 1, "id": 7}


def test_a_row_without_the_mapped_column_is_named_by_its_place() -> None:
    with pytest.raises(DatasetError, match=r"line 9 has no column 'answer'; it has: 'prompt'"):
        row_from("line 9", {"prompt": "x"}, ColumnMapping("prompt", "answer"))


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("  \n", "is empty"),
        (None, "is null"),
        (5, "is a number"),
        ({"role": "user"}, "is an object"),
        ([], "a chat without messages"),
        (["hello"], "message 1 is text, not an object"),
        ([{"content": "hello"}], "message 1 has no role"),
        ([{"role": "user"}], "message 1 has no content"),
        ([{"role": "user", "content": ""}], "is empty"),
    ],
)
def test_a_prompt_that_says_nothing_is_refused(prompt: object, said: str) -> None:
    with pytest.raises(DatasetError, match=r"^line 2: the prompt.*") as refused:
        row_from("line 2", {"prompt": prompt}, ColumnMapping("prompt"))

    assert said in str(refused.value)
