"""Lines of a run are read from the end, wherever blocks begin, and from the beginning."""

import json
from pathlib import Path

import pytest

from services.volume import run_files
from services.volume.run_files import (
    METRICS,
    backwards,
    first_samples,
    last_metric,
    read_metrics,
    read_samples,
)

LINES = [b'{"step": 1}\n', b'{"step": 22222222222222222}\n', b"{}\n"]
TEXT = b"".join(LINES)


@pytest.mark.parametrize("block", range(1, len(TEXT) + 2))
def test_lines_come_last_first_with_their_first_byte(
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


def test_the_answers_of_the_first_step_are_read_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    assert first_samples(path, 8) == []
    answer = {"task": 0, "row": 0, "prompt": "1+1", "completion": "2", "tokens": 1, "reward": 1.0}
    answer |= {"status": "correct", "components": {}, "advantage": 0.0, "versions": [0]}
    answer |= {"finish_reason": "stop"}
    lines = [json.dumps({**answer, "step": step}) + "\n" for step in (3, 3, 4)]
    path.write_text("".join(lines)[:-1])
    assert [one.step for one in first_samples(path, 8)] == [3, 3]
    assert len(first_samples(path, 1)) == 1


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
    """Once, a damaged line hid all metrics, answers and the report of its run."""
    path = tmp_path / METRICS
    path.write_bytes(b'{"step": 1}\n' + line + b'{"step": 2}\n')
    assert read_metrics(path, set(), -1, 10, 0) == ([{"step": 1}, {"step": 2}], None)
    answer = {"task": 0, "row": 0, "prompt": "1+1", "completion": "2", "tokens": 1, "reward": 1.0}
    answer |= {"status": "correct", "components": {}, "advantage": 0.0, "versions": [0]}
    whole = (json.dumps({**answer, "step": 1, "finish_reason": "stop"}) + "\n").encode()
    path.write_bytes(whole + line + whole)
    assert len(read_samples(path, None, 10, None)[0]) == 2
    assert len(read_samples(path, 1, 10, None)[0]) == 2
    assert len(first_samples(path, 10)) == 2


async def test_the_newest_metric_of_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_bytes(b'{"step": 1, "best": 1}\n{"step"\n')
    with pytest.raises(ValueError, match="is damaged"):
        await last_metric(tmp_path, "best")
