"""A file of lines is read from its end, wherever the blocks that are read begin."""

from pathlib import Path

import pytest

from services.gateway import run_files
from services.gateway.run_files import backwards

LINES = [b'{"step": 1}\n', b'{"step": 22222222222222222}\n', b"{}\n"]
TEXT = b"".join(LINES)


@pytest.mark.parametrize("block", range(1, len(TEXT) + 2))
def test_lines_come_last_first_with_where_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(run_files, "BLOCK", block)
    path = tmp_path / "samples.jsonl"
    # The last one is being written.
    path.write_bytes(TEXT + b'{"st')
    first, second, third = LINES
    begins = [(40, third), (12, second), (0, first)]

    with path.open("rb") as file:
        assert list(backwards(file, len(TEXT) + 4)) == begins
        assert list(backwards(file, 40)) == begins[1:]
        # No line ends at 20.
        assert list(backwards(file, 20)) == begins[2:]
        assert list(backwards(file, 0)) == []
