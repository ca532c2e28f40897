"""A watcher turns a run's events into lines."""

from typing import Any

import pytest

from headrace.cli.events import Event
from headrace.cli.output import escape, print_below, table
from headrace.cli.runs.run_view import RunView, line_of, sparkline
from services.contracts.events import EventKind


def event(kind: EventKind, time: float = 0.0, **data: Any) -> Event:
    return Event(id="1-0", time=time, kind=kind, data=data)


@pytest.fixture
def view() -> RunView:
    return RunView(name="demo", id="a1", kind="rl", state="queued", reason="", max_steps=10)


def test_state_events_change_the_state_and_give_the_reason(view: RunView) -> None:
    line = view.apply(event("state", state="failed", reason="vLLM did not start"))

    assert (view.state, view.reason) == ("failed", "vLLM did not start")
    assert line == "failed: vLLM did not start"


def test_a_step_is_printed_with_its_main_figures(view: RunView) -> None:
    line = view.apply(
        event("step", step=3, **{"reward/mean": 0.41234, "staleness/mean": 0.5, "other": 1})
    )

    assert line == "step 3/10  reward 0.412  staleness 0.50"
    assert (view.step, view.rewards) == (3, [0.41234])


def test_the_time_left_follows_the_pace_of_the_newest_steps(view: RunView) -> None:
    assert view.seconds_left is None

    for step in (1, 2, 3):
        view.apply(event("step", time=100.0 + 4 * step, step=step))

    assert view.seconds_left == pytest.approx(7 * 4.0)


def test_progress_of_a_supervised_run_counts_as_its_steps(view: RunView) -> None:
    view.apply(event("progress", done=40, total=300, unit="steps"))

    assert (view.step, view.max_steps) == (40, 300)


def test_progress_of_a_supervised_run_has_its_validation_loss(view: RunView) -> None:
    said = view.apply(event("progress", done=2, total=4, **{"validation/loss": 5.4981}))

    assert said == "2/4 steps  validation loss 5.4981"


def test_evaluations_are_kept_by_step(view: RunView) -> None:
    view.apply(event("evaluation", step=0, accuracy=0.4, rows=200))
    view.apply(event("evaluation", step=10, accuracy=0.95, rows=200))

    assert view.evaluations == [(0, 0.4), (10, 0.95)]


def test_every_kind_of_event_has_a_line() -> None:
    lines = [
        line_of(event("worker", worker="w1", state="left", detail="it was told to stop"), None),
        line_of(event("warning", message="all rewards are zero"), None),
        line_of(event("checkpoint", step=20, directory="runs/a/checkpoints/step-000020"), None),
        line_of(
            event("checkpoint", step=30, directory="runs/a/checkpoints/b", deleted=["step-a"]), None
        ),
        line_of(event("deleted", checkpoints=["step-b"], rollouts=True, bytes=9), None),
        line_of(event("paused", by="ann"), None),
        line_of(event("resumed", by="bob"), None),
        line_of(event("evaluation", step=20, accuracy=0.5, reward=0.4, rows=100), None),
        line_of(event("evaluation", step=20, reward=0.4, rows=100), None),
        line_of(
            event(
                "evaluation",
                step=20,
                name="hard",
                accuracy=0.5,
                accuracy_low=0.4,
                accuracy_high=0.6,
                rows=100,
            ),
            None,
        ),
    ]

    assert lines == [
        "worker w1 left: it was told to stop",
        "warning: all rewards are zero",
        "checkpoint at step 20: runs/a/checkpoints/step-000020",
        "checkpoint at step 30: runs/a/checkpoints/b (in place of step-a)",
        "deleted after its end: step-b, its rollouts",
        "paused on request of ann",
        "resumed on request of bob",
        "evaluation at step 20: accuracy 0.500 on 100 rows",
        "evaluation at step 20: reward 0.400 on 100 rows",
        "evaluation at step 20: accuracy 0.500 [0.400, 0.600] on 100 rows of hard",
    ]


@pytest.mark.parametrize(
    ("values", "width", "bars"),
    [
        ([], 10, ""),
        ([1.0], 10, "▁"),
        ([0.0, 1.0], 10, "▁█"),
        ([5.0, 5.0, 5.0], 10, "▁▁▁"),
        ([0.0, 0.0, 1.0, 1.0], 2, "▁█"),
        ([0.0, 0.5, 1.0], 3, "▁▅█"),
    ],
)
def test_a_sparkline_runs_from_its_lowest_to_its_highest(
    values: list[float], width: int, bars: str
) -> None:
    # 0.5 · 7 = 3.5, which Python rounds to the even 4: the fifth bar.
    assert sparkline(values, width) == bars


def test_a_text_for_other_programs_has_whole_lines_without_padding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = "x" * 300
    print_below(f"1+1 [bold]\n\n{long}")
    assert capsys.readouterr().out == f"    1+1 [bold]\n\n    {long}\n"


def test_a_table_for_other_programs_has_whole_lines_without_padding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reason = "why " * 100 + "[not markup]"
    table(("ID", "REASON"), [("[bold]a1[/]", escape(reason)), ("b", "")], "none")
    assert capsys.readouterr().out == f"ID\tREASON\na1\t{reason}\nb\t\n"


def test_a_watcher_sees_how_far_the_start_of_vllm_is(view: RunView) -> None:
    assert view.phase(100.0) == ""
    view.apply(event("state", state="running", reason=""))
    start = {"state": "starting", "detail": "vLLM starts", "usual_seconds": 109.6}
    view.apply(event("worker", time=60.0, worker="w", **start))
    view.apply(event("worker", time=70.0, worker="x", **start))
    assert view.phase(100.0) == "vLLM starts, 40 of about 110 s"

    view.apply(event("worker", worker="x", state="ready", detail=""))
    assert view.phase(100.0) == ""
    view.apply(event("worker", time=120.0, worker="w", state="starting", detail="vLLM starts"))
    assert view.phase(132.0) == "vLLM starts, 12 s so far"
