"""Following a run on a terminal: a live display, or plain lines without a terminal."""

import os
import time

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli.client import Gateway
from headrace.cli.events import Event
from headrace.cli.output import (
    FAILED,
    INTERRUPTED,
    STATE_STYLES,
    err,
    escape,
    out,
)
from headrace.cli.runs.run_view import RunView, figures, sparkline
from headrace.wording import duration


def watch_run(api: Gateway, run: str, as_json: bool = False) -> int:
    """Follow `run` until it is final. Return the exit code. Ctrl-C ends the watching, not the
    run."""
    try:
        state = follow(api, run, as_json)
        if state == "failed":
            again = api.command("resume", run, "--set", "KEY=VALUE")
            answers = api.get(f"/v1/runs/{run}/samples", limit=1)
            has_answers = answers["judged"] or answers["samples"]
            looks = [f"its answers: {api.command('samples', run)}"] if has_answers else []
            looks.append(f"its log: {api.command('logs', run, '--level', 'warning')}")
            for line in (*looks, f"run it again with a key changed: {again}"):
                err.print(f"[dim]{escape(line)}[/]", soft_wrap=True)
        return 0 if state == "succeeded" else FAILED
    except KeyboardInterrupt:
        again = api.command("watch", run)
        err.print(f"[dim]{escape(run)} goes on; watch it again: {escape(again)}[/]", soft_wrap=True)
        return INTERRUPTED


def follow(api: Gateway, run: str, as_json: bool = False) -> str:
    """Show `run` until it is final. Return its last state."""
    view = RunView.of(api.get(f"/v1/runs/{run}"))
    if as_json:
        _lines_of_json(api, view)
    elif out.is_terminal and os.environ.get("TERM") != "dumb":
        _live(api, view)
    else:
        _plain(api, view)
    # Old events are trimmed; the record is what counts.
    return str(api.get(f"/v1/runs/{view.id}")["state"])


def _lines_of_json(api: Gateway, view: RunView) -> None:
    for event in api.events(view.id):
        if isinstance(event, Event):
            view.apply(event)
            typer.echo(event.as_json())


def _plain(api: Gateway, view: RunView) -> None:
    # The events of a run report each state. A queued run has no events yet.
    waits = f": queued; `{api.command('why', view.id)}` says what it waits for"
    typer.echo(f"{view.name} ({view.id})" + waits * (view.state == "queued"))
    remark = ""
    for event in api.events(view.id):
        if isinstance(event, Event):
            typer.echo(view.apply(event))
            remark = ""
        elif event != remark:
            remark = event
            typer.echo(remark)


def _live(api: Gateway, view: RunView) -> None:
    remark = ""
    # Called at each refresh, as the start of vLLM is counted in seconds.
    with Live(get_renderable=lambda: _display(view, remark), console=out, refresh_per_second=4):
        for event in api.events(view.id):
            remark = "" if isinstance(event, Event) else event
            if isinstance(event, Event):
                view.apply(event)


def _display(view: RunView, remark: str) -> RenderableType:
    style = STATE_STYLES.get(view.state, "default")
    head = Text.assemble(
        (view.name, "bold"), "  ", (view.state, style), f"  {view.reason}", overflow="ellipsis"
    )
    width = max(10, min(out.width - 24, 80))
    parts: list[RenderableType] = [head, _progress(view)]
    if phase := view.phase(time.time()):
        parts.append(Text(phase, "cyan"))
    if shown := figures(view.metrics):
        parts.append(Text("  ·  ".join(shown), overflow="ellipsis"))
    if view.rewards:
        low, high = min(view.rewards), max(view.rewards)
        parts.append(
            Text.assemble(
                ("reward ", "dim"),
                (sparkline(view.rewards, width), "cyan"),
                (f" {low:.2f}–{high:.2f}", "dim"),
            )
        )
    if view.evaluations:
        accuracies = [f"{accuracy:.3f} at step {step}" for step, accuracy in view.evaluations[-4:]]
        parts.append(Text.assemble(("held-out ", "dim"), " → ".join(accuracies)))
    parts += [Text(line, "dim", overflow="ellipsis", no_wrap=True) for line in list(view.lines)]
    if remark:
        parts.append(Text(remark, "yellow"))
    title = f"[dim]{view.kind} run {view.id}[/]"
    return Panel(Group(*parts), title=title, title_align="left", border_style=style)


def _progress(view: RunView) -> RenderableType:
    left = view.seconds_left
    row = Table.grid(padding=(0, 2))
    row.add_row(
        Text(f"step {view.step}/{'?' if view.max_steps is None else view.max_steps}"),
        ProgressBar(total=view.max_steps, completed=view.step, width=40),
        Text("" if left is None or left <= 0 else f"{duration(left)} left", "dim"),
    )
    return row
