"""Aims are judged by what was measured, never taken for granted."""

from bench.aims import Aim, aims


def test_a_limit_itself_meets_the_aim() -> None:
    assert Aim("ratio", 0.9, "at least", 0.9).met is True
    assert Aim("bytes", 12.0, "at most", 12.0).met is True


def test_what_misses_the_limit_is_not_met() -> None:
    assert Aim("ratio", 0.89, "at least", 0.9).met is False
    assert Aim("bytes", 12.1, "at most", 12.0).met is False


def test_nothing_measured_is_neither_met_nor_missed() -> None:
    assert [aim.met for aim in aims({}, {})] == [None, None, None, None]


def test_each_aim_takes_its_own_figure_and_the_wire_its_worst() -> None:
    training = {
        "eta-0": {"samples_per_second": 40.0, "wire_bytes_per_token": 8.0},
        "eta-1": {"samples_per_second": 60.0, "wire_bytes_per_token": 13.0},
        "eta-4": {"samples_per_second": 50.0, "wire_bytes_per_token": 9.0},
    }
    found = aims(training, {"ratio": 0.95})
    assert [(aim.figure, aim.met) for aim in found] == [
        (60.0, True),
        (50.0, False),
        (0.95, True),
        (13.0, False),
    ]
