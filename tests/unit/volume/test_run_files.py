"""Metrics of a run are read from any byte, without damaged lines."""

from pathlib import Path

import pytest

from services.volume.run_files import METRICS, last_metric, read_metrics


@pytest.mark.parametrize("start", [27, 1 << 40, 1 << 62, 1 << 63, 10**30])
def test_metrics_end_at_the_end_of_the_file(tmp_path: Path, start: int) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n')
    assert read_metrics(path, set(), -1, 10, 12) == ([{"step": 2}], None)
    assert read_metrics(path, set(), -1, 10, start) == ([], None)


DAMAGED = [
    b"\0\0\0\n",
    b'{"step": "x"}\n',
    b'{"step":\n',
    b"[1]\n",
    b"\xff\n",
    b"[" * 100_000 + b"\n",
]


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_line_is_skipped(tmp_path: Path, line: bytes) -> None:
    """Once, a damaged line hid all metrics and the report of its run."""
    path = tmp_path / METRICS
    path.write_bytes(b'{"step": 1}\n' + line + b'{"step": 2}\n')
    assert read_metrics(path, set(), -1, 10, 0) == ([{"step": 1}, {"step": 2}], None)


async def test_the_newest_metric_of_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_bytes(b'{"step": 1, "best": 1}\n{"step"\n')
    with pytest.raises(ValueError, match="is damaged"):
        await last_metric(tmp_path, "best")
