"""Files that arrive in parts."""

from pathlib import Path

import pytest

from services.datasets.partial_uploads import (
    UploadDescription,
    begin_upload,
    find_upload,
    upload_id,
)

FILE = UploadDescription(upload_id("rows.jsonl", 10, "x"), "rows.jsonl", 10)


def test_a_part_that_is_sent_again_is_written_once(tmp_path: Path) -> None:
    upload = begin_upload(tmp_path, FILE)
    assert upload.write(0, b"01234") == 5
    assert upload.write(0, b"01234") == 5
    assert upload.write(3, b"3456") == 7
    assert (upload.received, upload.is_complete) == (7, False)
    with pytest.raises(ValueError, match="byte 7 comes next, and not byte 8"):
        upload.write(8, b"89")
    upload.write(7, b"789")

    assert upload.is_complete
    with upload.open() as file:
        assert file.read() == b"0123456789"


def test_the_same_file_goes_on_and_another_one_begins(tmp_path: Path) -> None:
    begin_upload(tmp_path, FILE).write(0, b"012")

    assert begin_upload(tmp_path, FILE).received == 3
    again = find_upload(tmp_path, FILE.id)
    assert again is not None
    assert again.description == FILE
    assert len({upload_id("rows.jsonl", 10, text) for text in ("x", "y")}) == 2
    again.delete()
    assert find_upload(tmp_path, FILE.id) is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
