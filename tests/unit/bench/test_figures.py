"""The figures of `headrace bench`, against values worked out by hand."""

from typing import Any

import pytest

from bench.generation import departures, rate
from bench.training import TooFewSteps, steady, updates


def row(time: float, **changes: float) -> dict[str, Any]:
    """A step of 2 samples of 10 tokens that ended at `time`."""
    return {
        "time": time,
        "response/tokens_mean": 10.0,
        "time/step": 2.0,
        "time/waiting_for_groups": 0.5,
        "time/workers_waiting_for_admission": 1.0,
        "time/training": 1.0,
        "staleness/mean": 0.5,
        "wire/bytes_per_token": 8.0,
        **changes,
    }


def test_only_the_steps_after_the_warm_up_count() -> None:
    slow_start = row(100.0, **{"time/step": 60.0, "time/waiting_for_groups": 59.0})
    rows = [slow_start, row(102.0), row(104.0), row(110.0)]
    found = steady(rows, warmup=1, steps=2, batch=2)
    # From 100 to 104: 4 s, 2 steps of 2 samples of 10 tokens.
    assert found["seconds measured"] == 4.0
    assert (found["trained samples/s"], found["trained tokens/s"]) == (1.0, 10.0)
    # (0.5 + 0.5) / 4, (1 + 1) / 4, (1 + 1) / 4
    assert found["learner waits for groups, share"] == 0.25
    assert found["workers wait for admission, share"] == found["learner trains, share"] == 0.5
    assert (found["step, median s"], found["staleness, mean versions"]) == (2.0, 0.5)


def test_time_between_steps_counts_although_no_step_owns_it() -> None:
    rows = [row(100.0), row(110.0)]
    assert steady(rows, warmup=1, steps=1, batch=2)["trained tokens/s"] == 2.0


def test_bytes_per_token_weighs_steps_by_their_tokens() -> None:
    rows = [
        row(0.0),
        row(1.0),
        row(2.0, **{"response/tokens_mean": 30.0, "wire/bytes_per_token": 4.0}),
    ]
    # (20 tokens · 8 + 60 tokens · 4) / 80 tokens
    assert steady(rows, warmup=1, steps=2, batch=2)["bytes per token on the wire"] == 5.0


def test_a_run_that_ended_early_is_refused() -> None:
    with pytest.raises(TooFewSteps, match=r"2 steps were recorded; 1 \+ 2 are needed"):
        steady([row(0.0), row(1.0)], warmup=1, steps=2, batch=2)


def test_the_window_needs_a_step_to_begin_at() -> None:
    with pytest.raises(ValueError, match="warmup 0"):
        steady([row(0.0), row(1.0)], warmup=0, steps=1, batch=2)


def live(
    run: str, version: str, seconds: float, paused: float, canary: float | None = None
) -> dict[str, Any]:
    return {
        "event": "weights live",
        "run": run,
        "version": version,
        "seconds": seconds,
        "paused": paused,
        "canary_seconds": canary,
    }


def test_updates_are_those_of_the_window_and_the_run() -> None:
    records = [
        {"event": "working", "run": "mine"},
        live("mine", "f29ea3:0", 9.0, 5.0),
        live("mine", "f29ea3:3", 0.1, 0.04, 0.01),
        live("other", "aaaaaa:4", 7.0, 7.0),
        live("mine", "f29ea3:4", 0.2, 0.02, 0.02),
        live("mine", "f29ea3:6", 0.6, 0.03, 0.06),
        live("mine", "f29ea3:7", 8.0, 8.0),
    ]
    found = updates(records, "mine", first=3, last=6)
    assert found == {
        "step end → version live, s": [0.1, 0.2, 0.6],
        "generation paused, s": [0.04, 0.02, 0.03],
        "canary scored, s": [0.01, 0.02, 0.06],
    }


def test_a_window_without_updates_has_no_figures() -> None:
    assert updates([live("mine", "f29ea3:1", 0.1, 0.1)], "mine", first=2, last=5) == {}


def test_groups_count_in_the_order_they_are_finished() -> None:
    groups = [(100, 10.0), (200, 14.0), (400, 12.0), (800, 18.0)]
    found = departures(groups, skip=1, count=2)
    # Those that ended at 12 and 14, since 10.
    assert found == (600, 4.0)
    assert rate(found) == {"tokens/s": 150.0}


def test_overlapping_groups_have_the_throughput_of_their_server() -> None:
    # Two at a time, each 10 s long, begun 5 s apart: one group of 100 tokens every 5 s.
    groups = [(100, 10.0 + 5.0 * n) for n in range(6)]
    assert rate(departures(groups, skip=2, count=4)) == {"tokens/s": 20.0}


def test_too_few_groups_have_no_throughput() -> None:
    with pytest.raises(ValueError, match=r"1 groups were generated; 1 \+ 1 are needed"):
        departures([(100, 1.0)], skip=1, count=1)
