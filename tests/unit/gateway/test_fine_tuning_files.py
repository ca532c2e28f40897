"""Files and uploads of OpenAI's API: what is refused, and what survives a kill."""

import hashlib
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from openai.types import FileDeleted, FileObject
from openai.types import Upload as OpenAIUpload
from openai.types.uploads import UploadPart

from services.gateway.openai_jobs.file_shelf import FileShelf, new_upload
from services.gateway.openai_jobs.files import (
    DeletedFile,
    FieldError,
    FineTuningFile,
    UploadRecord,
    checked_name,
    checked_purpose,
    expiry_seconds,
    new_id,
    page_of,
)
from services.gateway.openai_jobs.training_rows import MAX_LINE, BadRowError, check_rows

USER = {"role": "user", "content": "2+2?"}
ANSWER = {"role": "assistant", "content": "4"}
CALL = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function"}]}
PAIR = {"input": {"messages": [USER]}, "preferred_output": [ANSWER]}
ROWS = [
    {"messages": [USER, ANSWER]},
    {"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}, CALL]},
    {**PAIR, "non_preferred_output": [ANSWER]},
]
CONTENT = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
FILE, UPLOAD = f"file-{'a' * 24}", f"upload_{'b' * 24}"
PARTS = [f"part_{digit * 24}" for digit in "12"]


def test_rows_of_each_method_are_taken() -> None:
    assert check_rows(io.BytesIO(b"\xef\xbb\xbf" + CONTENT + b"\n  \n")) == 3


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "line 2 is not JSON"),
        (b"\xff\xfe", "line 2 is not JSON"),
        (b"[" * 100_000, "line 2 is not JSON"),
        (b"[]", "must be an object"),
        (b"{}", "neither messages nor input"),
        (b'{"prompt": "a", "completion": "b"}', "prompt and completion are not supported"),
        (b'{"messages": []}', "messages must be a list of messages"),
        (b'{"messages": ["x"]}', "messages.0 must be a message, not 'x'"),
        (b'{"messages": [{"content": "x"}]}', "messages.0.role must be one of .* not missing"),
        (b'{"messages": [{"role": "bot", "content": "x"}]}', "not 'bot'"),
        (b'{"messages": [{"role": "user"}]}', "messages.0 has neither content nor tool_calls"),
        (b'{"messages": [{"role": "user", "content": 5}]}', "content must be text .* not 5"),
        (json.dumps(PAIR).encode(), "non_preferred_output is missing"),
        (b'{"input": "x"}', "input must be an object with messages"),
    ],
)
def test_a_wrong_row_is_named_by_its_line(line: bytes, reason: str) -> None:
    with pytest.raises(BadRowError, match=f"line 2.*{reason}|{reason}") as refused:
        check_rows(io.BytesIO(json.dumps(ROWS[0]).encode() + b"\n" + line + b"\n" + CONTENT))

    assert str(refused.value).startswith("line 2")


def test_a_file_without_rows_and_a_huge_line_are_refused() -> None:
    with pytest.raises(BadRowError, match="has no rows"):
        check_rows(io.BytesIO(b"\n"))
    with pytest.raises(BadRowError, match="line 1 has more than 16 MiB"):
        check_rows(io.BytesIO(b"x" * (MAX_LINE + 1)))


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    shelf = FileShelf(tmp_path)

    def killed() -> Any:
        yield CONTENT
        raise ConnectionError

    with pytest.raises(ConnectionError):
        shelf.add(FILE, "rows.jsonl", "fine-tune", killed())
    with pytest.raises(FieldError, match=r"rows.jsonl: line 4 is not JSON") as refused:
        shelf.add(FILE, "rows.jsonl", "fine-tune", [CONTENT, b"{"])
    assert refused.value.param == "file"
    assert shelf.files() == []
    assert [*(tmp_path / "openai" / "files").iterdir()] == []

    file = shelf.add(FILE, "rows.jsonl", "fine-tune", [CONTENT])

    shown = FileObject.model_validate(file.model_dump(exclude_none=True), strict=True)
    assert (shown.bytes, shown.filename, shown.status) == (len(CONTENT), "rows.jsonl", "processed")
    again = FileShelf(tmp_path)
    assert again.file(FILE) == file
    assert again.add(FILE, "rows.jsonl", "fine-tune", [b"other"]) == file
    opened = again.open(FILE)
    assert opened is not None
    with opened:
        assert opened.read() == CONTENT
    assert again.delete(FILE)
    assert not again.delete(FILE)
    assert (again.file(FILE), again.open(FILE), again.files()) == (None, None, [])
    FileDeleted.model_validate(DeletedFile(id=FILE).model_dump(), strict=True)


@pytest.mark.parametrize("id", ["../datasets", "file-", f"{FILE}/..", ".", f"file-{'A' * 24}", ""])
def test_an_id_never_leaves_the_folder(tmp_path: Path, id: str) -> None:
    (tmp_path / "datasets").mkdir()
    shelf = FileShelf(tmp_path)

    assert (shelf.file(id), shelf.open(id), shelf.upload(id)) == (None, None, None)


def test_a_damaged_record_hides_its_file_alone(tmp_path: Path) -> None:
    shelf = FileShelf(tmp_path)
    shelf.add(FILE, "a.jsonl", "fine-tune", [CONTENT])
    other = shelf.add(f"file-{'c' * 24}", "b.jsonl", "fine-tune", [CONTENT])
    (tmp_path / "openai" / "files" / FILE / "record.json").write_text("{")

    assert shelf.files() == [other]


def test_a_file_expires(tmp_path: Path) -> None:
    file = FileShelf(tmp_path, lambda: 1000.5).add(FILE, "a", "fine-tune", [CONTENT], 3600)

    assert file.expires_at == 4600
    assert FileShelf(tmp_path, lambda: 4599.0).file(FILE) == file
    assert FileShelf(tmp_path, lambda: 4600.0).file(FILE) is None
    assert not (tmp_path / "openai" / "files" / FILE).exists()


def begun(shelf: FileShelf, size: int = len(CONTENT), now: float | None = None) -> UploadRecord:
    begin = time.time() if now is None else now
    return shelf.begin(new_upload(UPLOAD, "rows.jsonl", "fine-tune", size, None, begin))


def test_an_upload_becomes_a_file_in_the_order_of_its_parts(tmp_path: Path) -> None:
    upload = begun(FileShelf(tmp_path))
    for id, piece in zip(PARTS, (CONTENT[20:], CONTENT[:20]), strict=True):
        part = FileShelf(tmp_path).add_part(upload, id, [piece])
        UploadPart.model_validate(part.model_dump(), strict=True)
    shelf = FileShelf(tmp_path)
    assert shelf.upload(UPLOAD) == upload
    with pytest.raises(FieldError, match="is not JSON"):
        shelf.complete(upload, PARTS, None)

    md5 = hashlib.md5(CONTENT).hexdigest()
    done = shelf.complete(upload, PARTS[::-1], md5)

    shown = OpenAIUpload.model_validate(done.shown.model_dump(exclude_none=True), strict=True)
    assert shown.status == "completed"
    assert shown.file is not None
    assert shown.file.id == f"file-{'b' * 24}"
    opened = shelf.open(shown.file.id)
    assert opened is not None
    with opened:
        assert opened.read() == CONTENT
    # The answer was lost, or the gateway was killed before it wrote that the upload is completed.
    assert shelf.complete(shelf.upload(UPLOAD) or upload, PARTS[::-1], md5) == done
    assert [*(tmp_path / "openai" / "uploads" / UPLOAD / "parts").iterdir()] == []
    with pytest.raises(FieldError, match="is completed: begin another"):
        shelf.add_part(done, PARTS[0], [b"x"])
    with pytest.raises(FieldError, match="is completed"):
        shelf.cancel(done)


def test_a_kill_between_the_file_and_the_record_leaves_one_file(tmp_path: Path) -> None:
    shelf = FileShelf(tmp_path)
    upload = begun(shelf)
    shelf.add_part(upload, PARTS[0], [CONTENT])
    shelf.add(f"file-{'b' * 24}", "rows.jsonl", "fine-tune", [CONTENT])

    done = shelf.complete(upload, PARTS[:1], None)

    assert [file.id for file in shelf.files()] == [done.file.id if done.file else ""]


@pytest.mark.parametrize(
    ("parts", "md5", "param", "reason"),
    [
        (PARTS, None, "part_ids", "has no part"),
        (["../x"], None, "part_ids", "has no part"),
        ([PARTS[0], PARTS[0]], None, "part_ids", "is named twice"),
        ([], None, "part_ids", "the parts have 0 bytes"),
        (PARTS[:1], "0" * 32, "md5", "another checksum"),
    ],
)
def test_a_completion_that_does_not_fit_is_refused(
    tmp_path: Path, parts: list[str], md5: str | None, param: str, reason: str
) -> None:
    shelf = FileShelf(tmp_path)
    upload = begun(shelf)
    shelf.add_part(upload, PARTS[0], [CONTENT])

    with pytest.raises(FieldError, match=reason) as refused:
        shelf.complete(upload, parts, md5)

    assert refused.value.param == param
    assert shelf.files() == []


def test_a_part_cannot_fill_the_volume(tmp_path: Path) -> None:
    shelf = FileShelf(tmp_path)
    upload = begun(shelf, 10)

    with pytest.raises(FieldError, match="more than 20 bytes"):
        shelf.add_part(upload, PARTS[0], [b"x" * 15, b"x" * 15])

    assert [*(tmp_path / "openai" / "uploads" / UPLOAD / "parts").iterdir()] == []


def test_a_part_is_kept_while_the_file_of_another_is_renamed(tmp_path: Path) -> None:
    shelf = FileShelf(tmp_path)
    upload = begun(shelf, 10)
    parts = tmp_path / "openai" / "uploads" / UPLOAD / "parts"
    # As if its request ended between the list of files and its size.
    (parts / f".{PARTS[1]}.x").symlink_to(parts / "gone")

    assert shelf.add_part(upload, PARTS[0], [b"x"]).id == PARTS[0]


def test_an_upload_is_cancelled_or_expires_with_its_parts(tmp_path: Path) -> None:
    shelf = FileShelf(tmp_path, lambda: 1000.0)
    upload = begun(shelf, now=1000.0)
    shelf.add_part(upload, PARTS[0], [CONTENT])
    late = FileShelf(tmp_path, lambda: 4600.0)

    expired = late.upload(UPLOAD)

    assert expired is not None
    assert expired.status == "expired"
    with pytest.raises(FieldError, match="is expired: begin another"):
        late.complete(expired, PARTS[:1], None)
    cancelled = shelf.cancel(upload)
    assert cancelled.status == "cancelled"
    assert shelf.cancel(cancelled) == cancelled
    assert [*(tmp_path / "openai" / "uploads" / UPLOAD / "parts").iterdir()] == []


@pytest.mark.parametrize("end", ["expired", "cancelled", "completed"])
def test_the_record_of_an_upload_is_deleted_a_day_after_its_hour(tmp_path: Path, end: str) -> None:
    shelf = FileShelf(tmp_path, lambda: 1000.0)
    upload = begun(shelf, now=1000.0)
    shelf.add_part(upload, PARTS[0], [CONTENT])
    if end == "cancelled":
        shelf.cancel(upload)
    if end == "completed":
        shelf.complete(upload, PARTS[:1], None)
    folder, hour = tmp_path / "openai" / "uploads" / UPLOAD, upload.expires_at

    FileShelf(tmp_path, lambda: hour + 86_399.0).forget_expired()

    # A client whose answer was lost for long is told what became of its upload.
    known = shelf.upload(UPLOAD) if end != "expired" else FileShelf(tmp_path).upload(UPLOAD)
    assert known is not None
    assert known.status == end
    assert [*(folder / "parts").iterdir()] == []
    FileShelf(tmp_path, lambda: hour + 86_400.0).forget_expired()
    assert not folder.exists()
    assert (shelf.file(f"file-{'b' * 24}") is None) == (end != "completed")


def test_what_the_api_cannot_do_is_refused_by_name() -> None:
    assert checked_purpose("fine-tune") == "fine-tune"
    assert checked_name("../a/rows.jsonl") == "rows.jsonl"
    assert expiry_seconds(None, None) is None
    assert expiry_seconds("created_at", "3600") == 3600
    for call, param in (
        (lambda: checked_purpose("assistants"), "purpose"),
        (lambda: checked_name("a\nb"), "filename"),
        (lambda: checked_name(None), "filename"),
        (lambda: expiry_seconds("last_used_at", 3600), "expires_after.anchor"),
        (lambda: expiry_seconds("created_at", 5), "expires_after.seconds"),
        (lambda: expiry_seconds("created_at", True), "expires_after.seconds"),
        (lambda: expiry_seconds("created_at", "٣٦٠٠"), "expires_after.seconds"),
    ):
        with pytest.raises(FieldError) as refused:
            call()
        assert refused.value.param == param


def test_the_same_request_of_the_same_caller_gets_the_same_id() -> None:
    assert new_id("file-", "caller", "key") == new_id("file-", "caller", "key")
    ids = {new_id(*given) for given in (("file-", "a", "k"), ("file-", "b", "k"))}
    ids |= {new_id("file-", "a", None) for _ in range(2)}
    assert len(ids) == 4


def test_pages_follow_each_other_in_both_orders() -> None:
    files = [
        FineTuningFile(
            id=f"file-{n}", bytes=1, created_at=n // 2, filename="a", purpose="fine-tune"
        )
        for n in range(5)
    ]

    first = page_of(files, None, 2, False)
    second = page_of(files, first.last_id, 3, False)

    assert [file.id for file in first.data] == ["file-4", "file-3"]
    assert ([f.id for f in second.data], second.has_more) == (["file-2", "file-1", "file-0"], False)
    assert first.has_more
    assert page_of(files, None, 1, True).first_id == "file-0"
    assert page_of([], None, 1, True).first_id == ""
    with pytest.raises(FieldError, match="there is no file 'x'"):
        page_of(files, "x", 1, True)
