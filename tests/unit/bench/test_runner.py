"""The runner of the benchmarks: turns, ratios, tables and failures, by hand."""

import json
from pathlib import Path

import pytest

from bench.runner import (
    INTERRUPTED,
    BenchFailed,
    BenchPart,
    BenchResults,
    Figures,
    shown,
    three_digits,
)


def lines(results: BenchResults) -> list[str]:
    """The printed lines, with single spaces."""
    return [" ".join(line.split()) for line in results.text().splitlines()]


def test_sides_take_turns_and_have_a_ratio_for_each_round() -> None:
    asked: list[str] = []

    def side(name: str, rates: list[float]) -> Figures:
        asked.append(name)
        return {"tokens/s": rates.pop(0)}

    ours, theirs = [100.0, 300.0, 210.0], [50.0, 100.0, 100.0]
    results = BenchResults("any")
    results.measure(
        BenchPart(
            "generation",
            {"worker": lambda: side("worker", ours), "offline": lambda: side("offline", theirs)},
            rounds=3,
            ratio=("worker", "offline"),
        )
    )

    assert asked == ["worker", "offline"] * 3
    # The ratios of the rounds are 2, 3 and 2.1.
    assert "generation worker offline worker / offline" in lines(results)
    assert "tokens/s 210 (100 to 300) 100 (50 to 100) 2.10 (2 to 3)" in lines(results)


def test_a_side_that_fails_leaves_the_figures_of_the_others() -> None:
    def broken() -> Figures:
        raise BenchFailed("out of memory")

    results = BenchResults("learner")
    sides = {"headrace": lambda: {"tokens/s": 300.0}, "plain": broken}
    results.measure(BenchPart("step", sides, rounds=2, ratio=("headrace", "plain")))

    assert results.value("step", "headrace", "tokens/s") == 300.0
    assert "tokens/s 300 (300 to 300) - -" in lines(results)
    assert "step, plain failed: out of memory" in lines(results)


@pytest.mark.parametrize(("other", "agrees"), [(2.0019, True), (2.1, False)])
def test_sides_that_compute_something_else_fail(other: float, agrees: bool) -> None:
    results = BenchResults("learner")
    sides = {"headrace": lambda: {"norm": 2.0}, "plain": lambda: {"norm": other}}
    results.measure(BenchPart("step", sides, agree={"norm": 1e-3, "not measured": 1e-3}))
    said = {
        "step, norm": "headrace has 2.0, plain has 2.1: they must be within 0.001 of each other"
    }
    assert results.failed == ({} if agrees else said)


def test_what_was_measured_before_ctrl_c_is_kept() -> None:
    def interrupted() -> Figures:
        raise KeyboardInterrupt

    results = BenchResults("training")
    with results.noting():
        results.measure(
            BenchPart("training", {"η = 0": lambda: {"steps/s": 2.0}, "η = 1": interrupted})
        )
        pytest.fail("the block goes on")

    assert results.failed == {"training, η = 1": INTERRUPTED}
    assert results.value("training", "η = 0", "steps/s") == 2.0


def test_a_failure_before_the_first_side_is_one_of_the_start() -> None:
    results = BenchResults("training")
    with results.noting():
        raise BenchFailed("no redis-server")
    assert results.failed == {"start": "no redis-server"}


def test_sides_can_be_the_rows() -> None:
    results = BenchResults("push")
    sides = {"1 host": lambda: {"seconds": 12.9}, "8 hosts": lambda: {"seconds": 14.85}}
    results.measure(BenchPart("spread", sides, sides_as_rows=True))
    assert lines(results)[-3:] == ["spread seconds", "1 host 12.9", "8 hosts 14.8"]


def test_each_figure_is_a_row_in_the_kept_file(tmp_path: Path) -> None:
    results = BenchResults("store", {"seconds": 1.0})
    results.measure(
        BenchPart("steady", {"16": lambda: {"lease, ms": [3.0, 1.0, 2.0], "MFU": None}})
    )

    kept = json.loads(results.keep(tmp_path / "results").read_text())

    assert (kept["bench"], kept["options"]) == ("store", {"seconds": 1.0})
    assert kept["rows"] == [
        {
            "part": "steady",
            "side": "16",
            "figure": "lease, ms",
            "value": 2.0,
            "least": 1.0,
            "most": 3.0,
            "values": [3.0, 1.0, 2.0],
        }
    ]


def test_figures_have_three_digits_and_large_ones_all() -> None:
    numbers = (0, 3, 0.0123456, 1.23456, 12.3456, 123.456, 1234567.8, -0.5, 1e-12)
    assert [three_digits(number) for number in numbers] == [
        *("0", "3", "0.0123", "1.23", "12.3", "123", "1,234,568", "-0.500", "1.00e-12")
    ]
    assert shown([]) == "-"
