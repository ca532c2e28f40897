"""Rows with parts that chat templates leave out, found in stored rows."""

from pathlib import Path
from typing import Any

from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.datasets import DatasetReader, append_rows, rows_with_parts
from services.volume import Volume

USER = {"role": "user", "content": "2+2"}
CALL = {"type": "function", "function": {"name": "add", "arguments": "{}"}}


def assistant(**message: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **message}


def test_each_part_is_found_in_prompts_answers_and_columns_of_all_segments(tmp_path: Path) -> None:
    with_calls = [USER, assistant(tool_calls=[CALL]), {"role": "tool", "content": "4"}]
    segments = [
        append_rows(
            tmp_path,
            "d",
            [
                Row(prompt=[USER], answer="4"),
                Row(prompt=[USER], answer=assistant(tool_calls=[CALL])),
                # A text about a call, and lists and texts that are empty.
                Row(prompt=[USER], answer='{"tool_calls":[{"function":{}}]}'),
                Row(prompt=[USER], answer=assistant(content="4", tool_calls=[])),
                Row(prompt=[USER], answer=assistant(content="4", reasoning_content="")),
                Row(prompt="2+2", answer="4", columns={"tools": []}),
            ],
        ),
        append_rows(
            tmp_path,
            "d",
            [
                Row(prompt=with_calls, answer="4", columns={"tools": [CALL]}),
                Row(prompt=[USER], answer=assistant(function_call={"name": "add"})),
                Row(prompt=[USER], answer=assistant(content="4", reasoning_content="It is 4.")),
                Row(prompt=[USER], answer="4", columns={"tools": '[{"type": "function"}]'}),
            ],
        ),
    ]
    record = DatasetRecord(id="d", name="d", rows=10, created=0.0, segments=segments)
    found = rows_with_parts(DatasetReader(Volume(tmp_path), record))
    assert {name: rows.tolist() for name, rows in found.items()} == {
        "tool_calls": [1, 6],
        "function_call": [7],
        "reasoning_content": [8],
        "tools": [6, 9],
    }


def test_a_dataset_of_plain_text_has_no_parts(tmp_path: Path) -> None:
    segment = append_rows(tmp_path, "d", [Row(prompt="2+2", answer="4")])
    record = DatasetRecord(id="d", name="d", rows=1, created=0.0, segments=[segment])
    assert rows_with_parts(DatasetReader(Volume(tmp_path), record)) == {}
