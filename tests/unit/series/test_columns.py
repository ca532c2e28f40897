"""The columns of a run always say what `metrics.jsonl` says."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from services.series import RunSeries, X, columns
from services.series.columns import FILE
from services.volume.run_files import METRICS, read_metrics

Lines = list[dict[str, Any]]


def row(step: int, **metrics: Any) -> dict[str, Any]:
    """A step of 2 s with 64 samples and 1,000 tokens."""
    rates = {"throughput/tokens_per_second": 500.0, "throughput/samples_per_second": 32.0}
    return {"step": step, "time": 1e9 + 2 * step, "time/step": 2.0, **rates, **metrics}


def evaluation(step: int, accuracy: float, held_out: str = "gsm8k") -> dict[str, Any]:
    place = {"evaluation/id": f"{step:06d}-{held_out}", "evaluation/step": step}
    return {**place, "evaluation/name": held_out, "evaluation/accuracy": accuracy}


def write(folder: Path, rows: Lines) -> None:
    (folder / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))


def add(folder: Path, rows: Lines, end: str = "\n") -> None:
    with (folder / METRICS).open("a") as file:
        file.write("\n".join(json.dumps(row) for row in rows) + end)


def points(series: RunSeries, name: str, x: X = "step", **part: float) -> list[tuple[float, float]]:
    with series.of("r1") as now:
        drawn = list(now.series([name], x, **part))
    return [
        (float(place), round(float(value), 6))
        for _, places, values in drawn
        for place, value in zip(places, values, strict=True)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "r1").mkdir(parents=True)
    return tmp_path / "runs" / "r1"


@pytest.fixture
def series(tmp_path: Path) -> RunSeries:
    return RunSeries(tmp_path)


@pytest.fixture
def saves_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "UNSAVED_ROWS", -1)
    monkeypatch.setattr(columns, "UNSAVED_SHARE", 1 << 30)


def test_a_run_without_rows_has_no_series(series: RunSeries) -> None:
    assert points(series, "reward/mean") == []


def test_rows_are_seen_once_their_line_has_ended(folder: Path, series: RunSeries) -> None:
    add(folder, [row(1, a=0.5), row(2, a=0.25)], end="")
    assert points(series, "a") == [(1, 0.5)]

    add(folder, [{}])
    add(folder, [row(3, a=1)])

    # The second row has become no row: `{…}{}`.
    assert points(series, "a") == [(1, 0.5), (3, 1)]
    assert [row["step"] for row in read_metrics(folder / METRICS, {"a"}, -1, 9, 0)[0]] == [1, 3]


def test_rows_after_the_step_that_a_run_went_back_to_are_the_new_ones(
    folder: Path, series: RunSeries, saves_always: None
) -> None:
    write(folder, [row(n, a=n) for n in range(1, 6)])
    assert len(points(series, "a")) == 5

    write(folder, [row(1, a=1), row(2, a=2), row(3, a=30), row(4, a=40), row(5, a=50)])

    new = [(1, 1), (2, 2), (3, 30), (4, 40), (5, 50)]
    assert points(series, "a") == new
    assert points(RunSeries(folder.parents[1]), "a") == new


@pytest.mark.parametrize("damage", ["", "cut", "flipped", "text", "older format"])
def test_columns_of_another_process_are_used_if_they_are_whole(
    folder: Path, series: RunSeries, saves_always: None, damage: str
) -> None:
    names = ["a", "ö/\n\"'[x]", "", "reward/component/" + "n" * 300]
    rows = [row(n, **dict.fromkeys(names, n / 8)) for n in range(1, 4)]
    write(folder, [*rows, evaluation(2, 0.5)])
    wanted = {name: points(series, name) for name in names}
    saved = folder / FILE
    content = saved.read_bytes()
    damaged = {
        "": content,
        "cut": content[:-40],
        "flipped": content[:-1] + bytes([content[-1] ^ 1]),
        "text": b"{}",
        "older format": content.replace(b'"format":"1"', b'"format":"0"'),
    }
    saved.write_bytes(damaged[damage])
    add(folder, [row(4, a=0.5)])

    other = RunSeries(folder.parents[1])

    assert points(other, "a") == [(1, 0.125), (2, 0.25), (3, 0.375), (4, 0.5)]
    for name in names[1:]:
        assert points(other, name) == wanted[name]
    assert points(other, "evaluation/gsm8k/accuracy", "tokens") == [(2000, 0.5)]
    assert points(other, "a", "samples")[-1] == (256, 0.5)


def test_a_saved_file_is_read_instead_of_the_rows(
    folder: Path, series: RunSeries, saves_always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, [row(1, a=1)])
    points(series, "a")
    parsed: list[bytes] = []
    real = columns._row

    def parse(line: bytes, path: Path) -> dict[str, Any] | None:
        parsed.append(line)
        return real(line, path)

    monkeypatch.setattr(columns, "_row", parse)
    add(folder, [row(2, a=2)])

    assert points(RunSeries(folder.parents[1]), "a") == [(1, 1), (2, 2)]
    assert len(parsed) == 1


def test_a_run_that_is_deleted_meanwhile_gets_no_folder_again(
    folder: Path, series: RunSeries, saves_always: None
) -> None:
    write(folder, [row(1, a=1)])
    with series.of("r1") as now:
        shutil.rmtree(folder)
        with pytest.raises(FileNotFoundError):
            now.save(folder / FILE)
    assert not folder.exists()
    assert points(series, "a") == []


def test_columns_that_cannot_be_written_stay_in_memory(
    folder: Path, series: RunSeries, saves_always: None
) -> None:
    (folder / FILE).mkdir()
    write(folder, [row(1, a=1)])

    assert points(series, "a") == [(1, 1)]
    assert not list(folder.glob(f"{FILE}.*"))


def test_values_that_are_no_finite_numbers_leave_a_gap(folder: Path, series: RunSeries) -> None:
    write(folder, [row(1, a=None), row(2, a=2), row(3, a="word"), row(4, a=True), row(5, a=10**99)])
    add(folder, [row(6, a={"b": 1})])
    with (folder / METRICS).open("a") as file:
        file.write('{"step": 7, "a": NaN}\n{"step": 8, "a": 1e999}\nnoise\n[1]\n{"step": "x"}\n')
        file.write('{"step": -1, "a": 1}\n{"step": 9, "a": 9}\n')

    assert points(series, "a") == [(2, 2), (9, 9)]


def test_a_metric_may_begin_at_a_later_step_and_end_earlier(
    folder: Path, series: RunSeries
) -> None:
    write(folder, [row(1, a=1), row(2, a=2, b=2), row(3, b=3), row(4, b=4)])

    assert points(series, "a") == [(1, 1), (2, 2)]
    assert points(series, "b") == [(2, 2), (3, 3), (4, 4)]
    assert points(series, "b", low=3, high=3) == [(3, 3)]
    assert points(series, "b", low=5) == []


def test_an_evaluation_stands_at_its_step_whenever_it_was_written(
    folder: Path, series: RunSeries
) -> None:
    late = [evaluation(0, 0.1), row(1), row(2), evaluation(2, 0.3), row(3), evaluation(1, 0.2)]
    write(folder, [*late, evaluation(2, 0.9, "math")])

    name = "evaluation/gsm8k/accuracy"
    assert points(series, name) == [(0, 0.1), (1, 0.2), (2, 0.3)]
    assert points(series, name, "tokens") == [(0, 0.1), (1000, 0.2), (2000, 0.3)]
    assert points(series, name, "samples") == [(0, 0.1), (64, 0.2), (128, 0.3)]
    # The first step began at 1e9.
    assert points(series, name, "time") == [(0, 0.1), (2, 0.2), (4, 0.3)]
    assert points(series, "evaluation/math/accuracy") == [(2, 0.9)]


def test_axes_rise_though_the_clock_is_set_back(folder: Path, series: RunSeries) -> None:
    write(folder, [row(1, a=1), {**row(2, a=2), "time": 5.0}, row(3, a=3)])
    assert points(series, "a", "time") == [(2, 1), (2, 2), (6, 3)]


def test_the_newest_value_is_exact(folder: Path, series: RunSeries) -> None:
    write(folder, [row(1, a=0.1234567890123), row(2, b=None)])
    with series.of("r1") as now:
        of_a, of_b = now.columns["a"], now.columns["b"]
    assert (of_a.newest_step, of_a.newest, len(of_a.steps)) == (1, 0.1234567890123, 1)
    assert (of_b.newest_step, of_b.newest, len(of_b.steps)) == (2, None, 0)


def test_several_threads_read_while_a_run_is_written(
    folder: Path, series: RunSeries, saves_always: None
) -> None:
    lengths: list[list[int]] = [[] for _ in range(4)]

    def read(seen: list[int]) -> None:
        while not seen or seen[-1] < 200:
            drawn = points(series, "a")
            assert drawn == [(n, n) for n in range(1, len(drawn) + 1)]
            seen.append(len(drawn))

    threads = [threading.Thread(target=read, args=(seen,)) for seen in lengths]
    for thread in threads:
        thread.start()
    for step in range(1, 201):
        add(folder, [row(step, a=step)])
    for thread in threads:
        thread.join()
    assert all(seen == sorted(seen) for seen in lengths)
