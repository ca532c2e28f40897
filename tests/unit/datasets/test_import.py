"""Files in, segments out: what is read, what is refused and where, and what the names mean."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.datasets import (
    ColumnMapping,
    DatasetError,
    DatasetReader,
    Imported,
    UnsupportedFormat,
    append_rows,
    json_array,
)
from services.datasets.segments import BATCH, SCHEMA, Segment, write_segment
from services.volume import Volume
from tests.unit.datasets import uploads
from tests.unit.datasets.uploads import rows_of

Import = Callable[..., Imported]


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    def run(content: bytes, filename: str = "rows.jsonl", **options: Any) -> Imported:
        return uploads.imported(tmp_path, (filename, content), **options)

    return run


def parquet(table: dict[str, list[Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(table), sink)
    return sink.getvalue()


def test_rows_of_jsonl_are_read_back_unchanged(imported: Import, tmp_path: Path) -> None:
    result = imported(
        b'{"question": "2+2", "answer": 4, "level": "easy"}\n\n'
        b'{"question": [{"role": "user", "content": "\xc3\xa9"}], "answer": {"x": [1]}}\n'
    )

    assert rows_of(tmp_path, result) == [
        Row(prompt="2+2", answer=4, columns={"level": "easy"}),
        Row(prompt=[{"role": "user", "content": "é"}], answer={"x": [1]}),
    ]


def test_csv_cells_stay_text_and_may_hold_commas_and_line_breaks(
    imported: Import, tmp_path: Path
) -> None:
    result = imported(b'prompt,answer\r\n"a, then\nb",007\r\n', "rows.csv")

    assert rows_of(tmp_path, result) == [Row(prompt="a, then\nb", answer="007")]


def test_tsv_is_csv_with_tabs(imported: Import, tmp_path: Path) -> None:
    result = imported(b"prompt\tanswer\na,b\t1\n", "rows.tsv")

    assert rows_of(tmp_path, result) == [Row(prompt="a,b", answer="1")]


def test_parquet_keeps_types_and_nested_values(imported: Import, tmp_path: Path) -> None:
    result = imported(parquet({"problem": ["a"], "gold": [3], "tags": [["x", "y"]]}), "rows.bin")

    assert rows_of(tmp_path, result) == [Row(prompt="a", answer=3, columns={"tags": ["x", "y"]})]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 1 << 16])
def test_an_array_is_read_element_by_element_wherever_the_file_is_cut(
    imported: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    prompts = ['a "quote" ], \\', "{[é\n", "}", "\\\\"]
    rows = [{"prompt": prompt, "answer": [{"x": [prompt]}]} for prompt in prompts]
    content = json.dumps(rows, indent=2, ensure_ascii=False).encode()
    monkeypatch.setattr(json_array, "CHUNK", chunk)
    result = imported(content + b"\n", "rows.json")
    assert [row.prompt for row in rows_of(tmp_path, result)] == prompts
    assert rows_of(tmp_path, result)[0].answer == [{"x": [prompts[0]]}]


def test_an_endless_element_is_not_read_to_the_end_of_the_file(
    imported: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "MAX_ROW_BYTES", 100_000)
    with pytest.raises(DatasetError, match="element 2 takes more than"):
        imported(b'[{"prompt": "a"}, {"prompt": "' + b"b" * 300_000, "rows.json")


def test_the_first_column_is_named_without_the_byte_order_mark(
    imported: Import, tmp_path: Path
) -> None:
    result = imported(b"\xef\xbb\xbfprompt,answer\na,1\n", "rows.csv")

    assert rows_of(tmp_path, result)[0].prompt == "a"


@pytest.mark.parametrize(
    ("content", "filename", "said"),
    [
        (b"", "rows.jsonl", "rows.jsonl is empty: it has no rows"),
        (b"\n \n", "rows.jsonl", "rows.jsonl has no rows"),
        (b"prompt,answer\n", "rows.csv", "rows.csv has no rows"),
        (b'{"prompt": "a"}\n{"prompt": nope}\n', "rows.jsonl", "line 2 is not JSON"),
        (b'{"prompt": "a"}\n\n{"prompt": "b"', "rows.jsonl", "line 3 is not JSON"),
        (b'{"prompt": "a", "prompt": "b"}', "rows.jsonl", "line 1 has a column twice: 'prompt'"),
        (b'[{"prompt": "a", "x": {"y": 1, "y": 2}}]', "rows.json", "has a column twice: 'y'"),
        (b'{"prompt": "a"}\n["b"]\n', "rows.jsonl", "line 2 is a list, not an object"),
        (b'{"prompt": "a"}\n"b"\n', "rows.jsonl", "line 2 is a bare value, not an object"),
        (b'{\n"prompt": "a"}', "rows.json", "a line of its own with: jq -c . FILE"),
        (b"[]", "rows.json", "rows.json has no rows"),
        (b'[{"prompt": "a"}, 3]', "rows.json", "element 2 is a bare value, not an object"),
        (b'[{"prompt": "a"},]', "rows.json", "element 2 is not JSON"),
        (b'[{"prompt": "a"}, {"prompt": nope}]', "rows.json", "element 2 is not JSON"),
        (b'[{"prompt": "a"}, {"prompt": "]', "rows.json", "stops within element 2"),
        (b'[{"prompt": "\\', "rows.json", "stops within element 1"),
        (b'[{"prompt": "a"}]\n{', "rows.json", "something follows its JSON array"),
        (b'{"prompt": "a"}\n{"prompt": " "}', "rows.jsonl", "line 2: the prompt is empty"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}', "rows.jsonl", "line 2 is not valid UTF-8"),
        (b"prompt,answer\na,\xe9\n", "rows.csv", "line 2 is not valid UTF-8"),
        ('{"prompt": "a"}'.encode("utf-16"), "rows.jsonl", "iconv -f utf-16 -t utf-8"),
        ("\ufeffprompt\na".encode("utf-16-be"), "rows", "rows is UTF-16: save it as UTF-8"),
        (b"prompt,answer\na\n", "rows.csv", "line 2 has 1 cells, the header has 2"),
        (b'prompt,answer\n"a\nb",1\nc,"d', "rows.csv", "line 4 is not CSV"),
        (b"prompt,prompt\na,b\n", "rows.csv", "names a column twice: 'prompt'"),
        (b"PAR1 and then nothing", "rows.parquet", "not a whole Parquet file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_place_and_leaves_nothing(
    imported: Import, tmp_path: Path, content: bytes, filename: str, said: str
) -> None:
    with pytest.raises(DatasetError) as refused:
        imported(content, filename)

    assert said in str(refused.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_row_without_the_answer_that_others_have_is_named(imported: Import) -> None:
    """Each row of JSONL has its own columns; the first row's columns are not the file's."""
    content = b'\n{"question": "1+1"}\n{"question": "2+2", "answer": "4"}\n'
    with pytest.raises(DatasetError) as refused:
        imported(content, "rows.jsonl", mapping=ColumnMapping(answer="answer"))
    assert str(refused.value) == (
        "line 2 has no column 'answer' to take the answer from; it has: 'question'"
    )
    with pytest.raises(DatasetError) as refused:
        imported(content, "rows.jsonl")
    assert str(refused.value).startswith(
        "line 2 has no answer, and line 3 has one (column 'answer'): give every row one, null "
        "where there is none"
    )
    with pytest.raises(DatasetError, match=r"^there is no column 'answer' .*; columns: 'question'"):
        imported(b"question\n1+1\n", "rows.csv", mapping=ColumnMapping(answer="answer"))


@pytest.mark.parametrize("filename", ["rows.txt", "rows", "rows.zip"])
def test_an_unknown_format_is_refused_with_the_known_ones(imported: Import, filename: str) -> None:
    content = b"PK" if filename.endswith(".zip") else b"hello"
    with pytest.raises(UnsupportedFormat, match=r"\.json, \.csv, \.parquet or \.tar|unpack it"):
        imported(content, filename)


def test_a_file_format_is_known_by_its_first_bytes(imported: Import) -> None:
    assert imported(b'{"prompt": "a"}', "upload").segment.rows == 1
    assert imported(parquet({"prompt": ["a", "b"]}), "upload").segment.rows == 2


def test_the_same_rows_under_the_same_name_are_the_same_dataset(imported: Import) -> None:
    first = imported(b'{"question": "a", "answer": 1}')
    again = imported(b'{"question": "a",   "answer": 1}\n\n')

    assert (first.id, first.segment) == (again.id, again.segment)


def test_rows_with_the_prompt_and_answer_of_an_earlier_row_are_counted(imported: Import) -> None:
    rows = (
        b'{"prompt": "%s", "answer": %d, "id": %d}\n' % row
        for row in ((b"a", 1, 1), (b"a", 1, 2), (b"a", 2, 3), (b"b", 1, 4), (b"a", 1, 5))
    )

    assert imported(b"".join(rows)).duplicates == 2


def test_a_segment_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.arrow"
    schema = SCHEMA.with_metadata({b"headrace.segment": b"1"})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema):
        pass

    with pytest.raises(DatasetError, match=r"another version of Headrace: delete its dataset"):
        Segment(path)


def test_another_name_or_another_mapping_is_another_dataset(imported: Import) -> None:
    content = b'{"question": "a", "answer": 1, "gold": 2}'
    first = imported(content)

    assert imported(content, name="other").id != first.id
    assert imported(content, mapping=ColumnMapping(answer="gold")).id != first.id


def test_a_segment_is_named_by_its_checksum(imported: Import) -> None:
    result = imported(b'{"prompt": "a"}')

    assert result.segment.file == f"datasets/{result.id}/segment-{result.segment.xxh3}.arrow"


def test_rows_are_read_by_index_across_segments(imported: Import, tmp_path: Path) -> None:
    first = imported(b'{"prompt": "a"}\n{"prompt": "b"}')
    second = append_rows(tmp_path, first.id, [Row(prompt="c", answer=3)])
    record = DatasetRecord(
        id=first.id, name="rows", rows=3, created=0, segments=[first.segment, second]
    )
    reader = DatasetReader(Volume(tmp_path), record)

    assert [row.prompt for row in reader.rows([2, 0, 1, 2])] == ["c", "a", "b", "c"]
    with pytest.raises(IndexError, match="dataset rows has 3 rows; there is no row 3"):
        reader.row(3)


def test_a_reader_finds_rows_that_were_appended_later(imported: Import, tmp_path: Path) -> None:
    first = imported(b'{"prompt": "a"}')
    record = DatasetRecord(id=first.id, name="rows", rows=1, created=0, segments=[first.segment])
    reader = DatasetReader(Volume(tmp_path), record)
    more = append_rows(tmp_path, first.id, [Row(prompt="b")])

    reader.extend(record.model_copy(update={"rows": 2, "segments": [first.segment, more]}))

    assert len(reader) == 2
    assert reader.row(1).prompt == "b"


def test_prompts_that_are_appended_are_checked_like_uploaded_ones(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="prompt 2: the prompt is empty"):
        append_rows(tmp_path, "d", [Row(prompt="a"), Row(prompt="")])
    with pytest.raises(DatasetError, match="prompt 1: its unmapped columns take"):
        append_rows(tmp_path, "d", [Row(prompt="a", columns={"b": "…" * 2**16})])
    with pytest.raises(DatasetError, match="no prompts were given"):
        append_rows(tmp_path, "d", [])


@given(count=st.sampled_from([1, BATCH - 1, BATCH, BATCH + 1, 2 * BATCH + 3]), data=st.data())
def test_any_row_of_a_segment_is_found_at_its_index(
    tmp_path_factory: pytest.TempPathFactory, count: int, data: st.DataObject
) -> None:
    rows = (Row(prompt=str(index), answer=index) for index in range(count))
    index = data.draw(st.integers(0, count - 1))

    root = tmp_path_factory.mktemp("volume")
    segment = write_segment(rows, root, "d")
    assert Segment(root / segment.file).row(index).answer == index


@pytest.mark.parametrize(
    "values",
    [
        pa.array([2**60], pa.timestamp("us")),
        pa.array([2**30], pa.date32()),
        pa.array([1], pa.timestamp("ns")),
    ],
    ids=["year 36,000", "day 2^30", "a nanosecond"],
)
def test_a_parquet_value_that_json_cannot_carry_is_named(imported: Import, values: Any) -> None:
    """The error once blamed the memory."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"prompt": ["a"], "when": values}), sink)
    with pytest.raises(
        DatasetError, match=r"a value after row 0 cannot be taken.*Write it as text"
    ):
        imported(sink.getvalue(), "rows.parquet")


def test_a_parquet_file_with_two_columns_of_one_name_is_refused(imported: Import) -> None:
    """The last of them was taken, without a word."""
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"])
    sink = io.BytesIO()
    pq.write_table(table, sink)
    with pytest.raises(DatasetError, match="a column twice: 'prompt'"):
        imported(sink.getvalue(), "rows.parquet")
