"""Columns become the prompt and the answer, and invalid rows are refused."""

from typing import Any

import pytest

from services.datasets.columns import ColumnMapping, row_from
from services.datasets.row_checks import MAX_OTHER_BYTES, DatasetError

USER, ASSISTANT = ({"role": role, "content": role} for role in ("user", "assistant"))
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [USER],
    "reward_model": {"style": "rule", "ground_truth": "72"},
    "extra_info": {"split": "train", "index": 0},
}
HUMANEVAL = {"task_id": "0", "prompt": "def f():", "entry_point": "f", "test": "def check(f): 0"}


def columns(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "x")


def test_well_known_names_are_found_in_their_order_of_preference() -> None:
    mapping = ColumnMapping().resolved(columns("id", "question", "prompt", "solution", "answer"))

    assert mapping == ColumnMapping(prompt="prompt", answer="answer")


def test_well_known_names_are_found_whatever_their_case() -> None:
    mapping = ColumnMapping().resolved(columns("Question", "Gold"))

    assert mapping == ColumnMapping("Question", "Gold")


def test_a_source_without_an_answer_column_gets_no_answer() -> None:
    assert ColumnMapping().resolved(columns("prompt", "id")).answer is None


def test_a_mapped_column_wins_over_a_well_known_one() -> None:
    mapping = ColumnMapping("text", "label").resolved(columns("prompt", "text", "label"))

    assert mapping == ColumnMapping("text", "label")


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        (
            ColumnMapping(prompt="quesiton"),
            "there is no column 'quesiton' to take the prompt from (did you mean 'question'?); "
            "columns: 'question', 'gold'",
        ),
        (ColumnMapping(answer="gold.trueth"), "(did you mean 'gold.truth'?)"),
        (ColumnMapping(answer=("gold.truth", "level")), "no column 'level' to take the answer"),
        (ColumnMapping(keep=("id",)), "no column 'id' to take the rest from"),
    ],
)
def test_a_column_that_is_not_there_is_refused_with_the_nearest(
    mapping: ColumnMapping, said: str
) -> None:
    with pytest.raises(DatasetError) as refused:
        mapping.resolved({"question": "1+1", "gold": {"truth": "2"}})

    assert said in str(refused.value)


def test_without_a_prompt_column_the_error_names_the_columns_and_the_way_out() -> None:
    with pytest.raises(DatasetError, match=r"columns: 'a', 'b'.*--prompt COLUMN"):
        ColumnMapping().resolved(columns("a", "b"))


def test_unmapped_columns_stay_with_the_row() -> None:
    row = row_from("line 1", {"q": "1+1", "a": 2, "level": "easy"}, ColumnMapping("q", "a"))

    assert (row.prompt, row.answer, row.columns) == ("1+1", 2, {"level": "easy"})


def test_an_unmapped_object_named_columns_is_the_columns_themselves() -> None:
    source = {"prompt": "x", "columns": {"k": 1}, "id": 7}

    assert row_from("line 1", source, ColumnMapping("prompt")).columns == {"k": 1, "id": 7}


def test_only_the_columns_to_keep_stay_with_the_row() -> None:
    source = {"prompt": "x", "image": "…" * MAX_OTHER_BYTES, "id": 7}

    assert row_from("row 1", source, ColumnMapping("prompt", keep=("id",))).columns == {"id": 7}
    with pytest.raises(DatasetError, match=r"row 1: .* 'image' most of them.*--keep COLUMN"):
        row_from("row 1", source, ColumnMapping("prompt"))


def test_a_row_without_the_mapped_column_is_named_by_its_place() -> None:
    with pytest.raises(DatasetError, match=r"line 9 has no column 'answer'; it has: 'prompt'"):
        row_from("line 9", {"prompt": "x"}, ColumnMapping("prompt", "answer"))


def test_a_path_leads_into_nested_columns() -> None:
    mapping = ColumnMapping("extra.question", "gold.truth")
    source = {"extra": {"question": "1+1", "level": 3}, "gold": {"truth": "2"}}
    row = row_from("row 1", source, mapping.resolved(source))

    assert (row.prompt, row.answer, row.columns) == ("1+1", "2", source)


def test_a_column_with_a_dot_in_its_name_is_found_before_a_path() -> None:
    source = {"prompt": "x", "a.b": "1", "a": {"b": "2"}}

    assert row_from("row 1", source, ColumnMapping("prompt", "a.b")).answer == "1"


def test_several_columns_make_an_answer_that_is_an_object() -> None:
    source = {"prompt": "x", "tests": {"code": "assert f"}, "name": "f"}
    row = row_from("row 1", source, ColumnMapping("prompt", ("tests.code", "name")))

    assert row.answer == {"code": "assert f", "name": "f"}
    with pytest.raises(DatasetError, match=r"several of the answer's columns are called code"):
        ColumnMapping("prompt", ("tests.code", "code")).resolved(source | {"code": 1})


@pytest.mark.parametrize(
    ("source", "answer", "rest"),
    [
        (VERL, "72", {"data_source", "reward_model", "extra_info"}),
        (
            HUMANEVAL,
            {"test": "def check(f): 0", "entry_point": "f", "prompt": "def f():"},
            {"task_id"},
        ),
    ],
)
def test_files_of_verl_and_humaneval_need_no_mapping(
    source: dict[str, Any], answer: object, rest: set[str]
) -> None:
    row = row_from("row 1", source, ColumnMapping().resolved(source))

    assert (row.prompt, row.answer, set(row.columns)) == (source["prompt"], answer, rest)


ASKED = [{"role": "user", "content": "1+1"}]
RIGHT, WRONG = ({"role": "assistant", "content": text} for text in ("2", "3"))


@pytest.mark.parametrize(
    ("source", "prompt", "answer"),
    [
        (
            {"prompt": "1+1", "chosen": "2", "rejected": "3"},
            "1+1",
            {"chosen": "2", "rejected": "3"},
        ),
        (
            {"chosen": [*ASKED, RIGHT], "rejected": [*ASKED, WRONG], "score": 7},
            ASKED,
            {"chosen": RIGHT, "rejected": WRONG},
        ),
    ],
    ids=["prompt", "conversations"],
)
def test_files_of_preferences_need_no_mapping(
    source: dict[str, Any], prompt: object, answer: object
) -> None:
    row = row_from("row 1", source, ColumnMapping().resolved(source))

    assert (row.prompt, row.answer) == (prompt, answer)
    assert row.columns.keys() == source.keys() - {"prompt", "chosen", "rejected"}


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ("2", "row 1 has no prompt, and its `chosen` answer is no conversation"),
        ([RIGHT], "row 1 has no prompt, and its `chosen` answer is no conversation"),
        ([{"role": "user", "content": "1+2"}, RIGHT], "differ before the last turn"),
    ],
)
def test_preferences_without_a_common_prompt_are_refused(chosen: object, said: str) -> None:
    source = {"chosen": chosen, "rejected": [*ASKED, WRONG]}

    with pytest.raises(DatasetError, match=said):
        row_from("row 1", source, ColumnMapping().resolved(source))


def test_the_last_turn_of_a_chat_is_the_answer_without_an_answer_column() -> None:
    source = {"messages": [USER, ASSISTANT, USER, ASSISTANT]}
    mapping = ColumnMapping().resolved(source)
    row = row_from("line 1", source, mapping)

    assert (row.prompt, row.answer) == ([USER, ASSISTANT, USER], "assistant")
    with pytest.raises(DatasetError, match=r"line 2: .*does not end with an assistant's turn"):
        row_from("line 2", {"messages": [USER]}, mapping)
    with pytest.raises(DatasetError, match=r"line 2: .* ends with two turns of the assistant"):
        row_from("line 2", {"messages": [USER, ASSISTANT, ASSISTANT]}, mapping)
    with pytest.raises(DatasetError, match=r"line 3: the last turn .* has no content"):
        row_from("line 3", {"messages": [USER, {"role": "assistant", "tool_calls": []}]}, mapping)


@pytest.mark.parametrize("value", ["hello", None, {"role": "user", "content": "hello"}])
def test_only_a_chat_supplies_its_own_answer(value: object) -> None:
    mapping = ColumnMapping().resolved({"messages": [USER, ASSISTANT]})

    with pytest.raises(DatasetError, match=r"line 2: column 'messages' is .* a list of messages"):
        row_from("line 2", {"messages": value}, mapping)


def test_reasoning_and_calls_of_an_answer_are_kept() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    result = {"role": "tool", "content": "4"}
    thought = {"role": "assistant", "content": "4", "reasoning_content": "2+2"}
    mapping = ColumnMapping().resolved({"messages": [USER, ASSISTANT]})
    row = row_from("line 1", {"messages": [USER, call, result, thought], "tools": []}, mapping)
    called = row_from("line 2", {"messages": [USER, call]}, mapping)

    assert (row.prompt, row.answer, row.columns) == ([USER, call, result], thought, {"tools": []})
    assert called.answer == call


def test_an_answer_in_parts_is_their_text_and_one_with_an_image_is_refused() -> None:
    parts = [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]
    mapping = ColumnMapping().resolved({"messages": [USER, ASSISTANT]})
    answer = {"role": "assistant", "content": parts}

    assert row_from("line 1", {"messages": [USER, answer]}, mapping).answer == "42"
    answer["content"] = [{"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(DatasetError, match=r"line 2: .*message 2 has a part .*'image_url'.*remove"):
        row_from("line 2", {"messages": [USER, answer]}, mapping)


def test_a_column_of_texts_is_the_prompt_of_rows_without_answers() -> None:
    row = row_from("line 1", {"text": "once"}, ColumnMapping().resolved({"text": "once"}))
    assert (row.prompt, row.answer) == ("once", None)


def test_a_chat_that_shows_the_policy_its_answer_is_refused_with_the_way_out() -> None:
    source = {"messages": [USER, ASSISTANT], "answer": "42"}

    with pytest.raises(DatasetError, match=r'\{"prompt": "messages", "answer": "messages"\}'):
        row_from("line 1", source, ColumnMapping().resolved(source))
    split = row_from("line 1", source, ColumnMapping("messages", "messages").resolved(source))
    assert (split.prompt, split.answer, split.columns) == ([USER], "assistant", {"answer": "42"})


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
        ([{"role": "user", "content": [{"type": "image_url"}]}], "message 1 has a part that is no"),
        ([{"role": "user", "content": ["hi"]}], "message 1 has a part that is no text ('hi')"),
    ],
)
def test_an_empty_prompt_or_one_of_another_type_is_refused(prompt: object, said: str) -> None:
    with pytest.raises(DatasetError, match=r"^line 2: the prompt.*") as refused:
        row_from("line 2", {"prompt": prompt}, ColumnMapping("prompt"))

    assert said in str(refused.value)


@pytest.mark.parametrize("role", ["answer", "keep"])
def test_a_mapping_of_very_many_columns_is_refused_at_once(role: str) -> None:
    """They were compared in pairs: a megabyte of one name twice took minutes."""
    mapping = ColumnMapping(prompt="prompt", **{role: ("id",) * 100_000})
    with pytest.raises(DatasetError, match=r"100,000 columns .*; 4096 is the most"):
        mapping.resolved(columns("prompt", "id"))
