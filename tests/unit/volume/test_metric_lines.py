"""The new lines of a file that grows."""

import tracemalloc
from pathlib import Path

import pytest

from services.volume import metric_lines
from services.volume.metric_lines import MetricLines


@pytest.mark.parametrize("piece", [1, 3, 7, 100])
def test_the_size_of_pieces_changes_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(metric_lines, "PIECE", piece)
    path, lines = tmp_path / "rows", MetricLines()
    path.write_bytes(b"a\nlong line\n\nbegun")
    with path.open("rb") as file:
        assert list(lines.read(file)) == [b"a", b"long line", b""]
        assert (lines.end, lines.last, lines.begins(file)) == (13, b"a\nlong line\n\n", True)
    path.write_bytes(b"a\nlong line\n\nbegun and ended\n")
    with path.open("rb") as file:
        assert list(lines.read(file)) == [b"begun and ended"]
        assert list(lines.read(file)) == []


def test_a_long_file_is_read_with_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_lines, "PIECE", 1 << 12)
    path = tmp_path / "rows"
    path.write_bytes(b"x" * 99 + b"\n")
    path.write_bytes(path.read_bytes() * 10_000)
    tracemalloc.start()
    with path.open("rb") as file:
        assert sum(1 for _ in MetricLines().read(file)) == 10_000
    assert tracemalloc.get_traced_memory()[1] < 200_000
    tracemalloc.stop()
