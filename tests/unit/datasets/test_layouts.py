"""Files in the layouts of Alpaca, Dolly, ShareGPT and preferences, and files in several parts."""

from pathlib import Path
from typing import Any

import pytest

from services.datasets import ColumnMapping, DatasetError
from tests.unit.datasets.uploads import as_lines, imported, rows_of

ALPACA = [
    {"instruction": "Add the two numbers.", "input": "3, 4", "output": "7"},
    {"instruction": "Add the two numbers.", "input": "5, 6", "output": "11"},
    {"instruction": "Name a prime.", "input": "", "output": "2"},
]
JOINED = ["Add the two numbers.\n\n3, 4", "Add the two numbers.\n\n5, 6", "Name a prime."]


@pytest.mark.parametrize("mapping", [None, ColumnMapping(answer="output")])
def test_the_input_of_an_instruction_is_part_of_the_prompt(
    tmp_path: Path, mapping: ColumnMapping | None
) -> None:
    result = imported(tmp_path, ("alpaca.jsonl", as_lines(*ALPACA)), mapping=mapping)

    assert [row.prompt for row in rows_of(tmp_path, result)] == JOINED
    assert result.mapping == ColumnMapping(("instruction", "input"), "output")
    assert (result.left_over, result.duplicates, result.warnings) == ([], 0, [])


def test_an_input_that_the_first_rows_leave_out_is_part_of_the_prompt(tmp_path: Path) -> None:
    rows = [{"instruction": "Hi", "output": "Hello"}, *ALPACA[:1]]
    result = imported(tmp_path, ("alpaca.jsonl", as_lines(*rows)))

    assert [row.prompt for row in rows_of(tmp_path, result)] == ["Hi", JOINED[0]]
    assert imported(tmp_path, ("a.jsonl", as_lines(rows[0]))).mapping == ColumnMapping(
        "instruction", "output"
    )


def test_the_context_of_an_instruction_is_part_of_the_prompt(tmp_path: Path) -> None:
    content = b"instruction,context,response,category\nWho?,Ada wrote it.,Ada,qa\n"
    result = imported(tmp_path, ("dolly.csv", content))

    (row,) = rows_of(tmp_path, result)
    assert (row.prompt, row.answer) == ("Who?\n\nAda wrote it.", "Ada")
    assert result.left_over == ["category"]


@pytest.mark.parametrize("second", ["context", "choices", "Input"])
def test_a_column_that_the_question_may_need_is_named_with_the_way_out(
    tmp_path: Path, second: str
) -> None:
    row = {"question": "Which?", second: ["x", "y"], "answer": "A", "id": 7}
    content = as_lines(row)
    result = imported(tmp_path, ("rows.jsonl", content))
    joined = imported(
        tmp_path, ("rows.jsonl", content), mapping=ColumnMapping(("question", second)), name="two"
    )

    assert result.left_over == [second, "id"]
    assert f"the prompt has nothing of column '{second}'" in result.warnings[0]
    assert f"--prompt question --prompt {second}" in result.warnings[0]
    assert rows_of(tmp_path, joined)[0].prompt == "Which?\n\nA. x\nB. y"
    assert joined.warnings == []


def test_the_way_out_for_an_instruction_names_columns_that_rows_have(tmp_path: Path) -> None:
    row = {"instruction": "Add", "inputs": "1 2", "output": "3"}
    result = imported(tmp_path, ("rows.jsonl", as_lines(row)))

    assert result.warnings[0].endswith("with --prompt instruction --prompt inputs")


def test_a_column_of_the_prompt_that_no_row_has_is_refused(tmp_path: Path) -> None:
    mapping = ColumnMapping(("instruction", "inptu"))
    with pytest.raises(DatasetError, match="no row has a column 'inptu' to take the prompt from"):
        imported(tmp_path, ("alpaca.jsonl", as_lines(*ALPACA)), mapping=mapping)
    content = as_lines({"instruction": "a", "input": {"x": 1}, "output": "b"})
    with pytest.raises(DatasetError, match="has an object in column 'input'"):
        imported(tmp_path, ("alpaca.jsonl", content))


SYSTEM = {"from": "system", "value": "Be brief."}
ASKED = {"from": "human", "value": "Is it sunny?"}
CALL = {"from": "function_call", "value": '{"name": "weather", "arguments": {"day": 1}}'}
SEEN = {"from": "observation", "value": "sun"}
ANSWERED = {"from": "gpt", "value": "Yes."}
USER = {"role": "user", "content": "Is it sunny?"}


@pytest.mark.parametrize("mapping", [None, ColumnMapping("conversations")])
def test_a_conversation_of_sharegpt_is_a_chat(
    tmp_path: Path, mapping: ColumnMapping | None
) -> None:
    turns = [SYSTEM, ASKED, CALL, SEEN, ANSWERED]
    result = imported(tmp_path, ("rows.jsonl", as_lines({"conversations": turns})), mapping=mapping)

    (row,) = rows_of(tmp_path, result)
    function = {"name": "weather", "arguments": {"day": 1}}
    calls = [{"type": "function", "function": function}]
    assert row.prompt == [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "sun"},
    ]
    assert row.answer == "Yes."


def test_names_of_sharegpt_are_roles_in_chats_and_in_pairs_too(tmp_path: Path) -> None:
    named = {"messages": [USER | {"role": "human"}, {"role": "gpt", "content": "Yes."}]}
    pair = {"conversations": [ASKED], "chosen": ANSWERED, "rejected": ANSWERED | {"value": "No."}}
    (chat,) = rows_of(tmp_path, imported(tmp_path, ("a.jsonl", as_lines(named))))
    (compared,) = rows_of(tmp_path, imported(tmp_path, ("b.jsonl", as_lines(pair))))

    assert (chat.prompt, chat.answer) == ([USER], "Yes.")
    assert compared.prompt == [USER]
    assert compared.answer["rejected"] == {"role": "assistant", "content": "No."}


@pytest.mark.parametrize(
    ("keys", "is_text"),
    [
        ({"tool_calls": None, "name": None}, True),
        ({"weight": 1, "train": True, "tool_calls": []}, True),
        ({"weight": 0}, False),
        ({"train": False}, False),
        ({"reasoning_content": "So."}, False),
    ],
)
def test_the_last_turn_is_a_text_unless_it_holds_more(
    tmp_path: Path, keys: dict[str, Any], is_text: bool
) -> None:
    last = {"role": "assistant", "content": "Yes.", **keys}
    content = as_lines({"messages": [USER, last]})
    (row,) = rows_of(tmp_path, imported(tmp_path, ("a.jsonl", content)))
    assert row.answer == ("Yes." if is_text else last)


@pytest.mark.parametrize(
    ("turn", "problem"),
    [
        ({"from": "narrator", "value": "x"}, "message 2 is from 'narrator', and known are human"),
        ({"from": 7, "value": "x"}, "message 2 is from 7"),
        ({"from": "function_call", "value": "weather()"}, "is a function call that is no JSON"),
        ({"from": "function_call", "value": "[1]"}, "is a function call without a name"),
    ],
)
def test_a_turn_of_sharegpt_that_is_not_understood_is_refused_by_place(
    tmp_path: Path, turn: dict[str, Any], problem: str
) -> None:
    content = as_lines({"conversations": [ASKED, ANSWERED]}, {"conversations": [ASKED, turn]})
    with pytest.raises(DatasetError, match=r"^line 2 .*column 'conversations'") as refused:
        imported(tmp_path, ("rows.jsonl", content))
    assert problem in str(refused.value)


def test_pairs_with_equal_answers_are_left_out_and_counted(tmp_path: Path) -> None:
    def pair(chosen: object, rejected: object) -> dict[str, object]:
        return {"prompt": "1+1", "chosen": chosen, "rejected": rejected}

    equal = [pair("2", "2 "), pair({"role": "assistant", "content": "2"}, "2")]
    result = imported(tmp_path, ("rows.jsonl", as_lines(equal[0], pair("2", "3"), equal[1])))

    assert result.segment.rows == 1
    assert "2 rows were left out: their chosen answer equals the rejected one" in result.warnings[0]
    with pytest.raises(DatasetError, match="the chosen answer of every row equals the rejected"):
        imported(tmp_path, ("rows.jsonl", as_lines(*equal)))


def test_several_files_are_one_dataset_in_their_order(tmp_path: Path) -> None:
    first = ("train-00000-of-00002.csv", b"question,answer\na,1\n")
    second = ("train-00001-of-00002.csv", b"answer;question\n2;b\n")
    result = imported(tmp_path, first, second)
    alone = imported(tmp_path, second, name="alone")
    other = (first[0].replace("train", "test"), first[1])
    mixed = imported(tmp_path, first, second, other, name="mixed")

    assert [(row.prompt, row.answer) for row in rows_of(tmp_path, result)] == [
        ("a", "1"),
        ("b", "2"),
    ]
    assert result.warnings == []
    assert "1 of them are not in this upload, the first is number 0" in alone.warnings[0]
    assert "the files are parts of 2 sets (train, test), and became one" in mixed.warnings[1]


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (
            ("b.csv", b"question,label\nb,2\n"),
            "b.csv has no column 'answer' and has a column 'label",
        ),
        (("b.csv", b"question,answer\nb\n"), "b.csv: line 2 has 1 cells"),
        (("b.csv", b"question,answer\n,2\n"), "b.csv, line 2: the prompt"),
        (("b.csv", b"question,answer\n"), "b.csv has no rows"),
        (("b.csv", b""), "b.csv is empty"),
        (("b.jsonl", b'{"question": "b", "answer": 2}'), "a.csv is csv and b.jsonl is jsonl"),
        (("b.txt", b"hello"), "cannot tell the format of 'b.txt'"),
    ],
)
def test_a_file_that_does_not_fit_the_first_refuses_all_by_its_name(
    tmp_path: Path, second: tuple[str, bytes], problem: str
) -> None:
    with pytest.raises(DatasetError) as refused:
        imported(tmp_path, ("a.csv", b"question,answer\na,1\n"), second)

    assert problem in str(refused.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
