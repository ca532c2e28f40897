"""What `headrace up` shows: a table that changes until everything is ready, single lines after
that.

Off a terminal (a log file, CI) only single lines. A terminal that goes away must not end anything.
"""

import shlex
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from services.launch.part import Status

P = ParamSpec("P")

COLOURS = {
    "ready": "green",
    "starting": "yellow",
    "restarting": "red",
    "failed": "bold red",
    "stopping": "yellow",
}


def _outlives_its_terminal(show: Callable[P, None]) -> Callable[P, None]:
    @wraps(show)
    def shown(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            show(*args, **kwargs)
        except OSError:
            # EIO or EPIPE: nobody is looking any more, and stopping in order matters more.
            return

    return shown


class Display:
    """Shows the parts' states. Every method returns at once."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live: Live | None = None
        self._statuses: dict[str, Status] = {}
        self._began = time.monotonic()

    @_outlives_its_terminal
    def begin(self, statuses: Mapping[str, Status]) -> None:
        """Show the table, if this is a terminal."""
        self._statuses = dict(statuses)
        if self._console.is_terminal:
            self._live = Live(
                self._table(), console=self._console, refresh_per_second=8, transient=False
            )
            self._live.start()

    @_outlives_its_terminal
    def change(self, status: Status) -> None:
        """A part has changed."""
        before = self._statuses.get(status.name)
        self._statuses[status.name] = status
        if self._live is not None:
            self._live.update(self._table())
        elif before is None or before.state != status.state:
            self._console.print(self._line(status), highlight=False)

    @_outlives_its_terminal
    def ready(self, facts: Mapping[str, str], exports: Mapping[str, str]) -> None:
        """Everything runs: the table stays as it is, and what the user needs next comes below.
        `exports`: variables that another terminal must have set for `headrace` to find all this."""
        self._end_live()
        seconds = time.monotonic() - self._began
        self._console.print(f"\n[bold green]ready[/] in {seconds:.1f} s", highlight=False)
        for name, value in facts.items():
            self._console.print(f"  {name:<9} {value}", highlight=False, soft_wrap=True)
        self._console.print("For `headrace` in another terminal:")
        for name, value in exports.items():
            line = f"  export {name}={shlex.quote(value)}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        self._console.print("Ctrl-C stops everything in order; twice, at once.\n")

    @_outlives_its_terminal
    def say(self, text: str) -> None:
        """One line, beside whatever is shown."""
        self._console.print(Text(text), soft_wrap=True)

    @_outlives_its_terminal
    def end(self) -> None:
        """Leave the terminal as it was."""
        self._end_live()

    def _end_live(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for heading in ("part", "state", "pid", ""):
            table.add_column(heading)
        for status in self._statuses.values():
            table.add_row(
                status.name,
                Text(status.state, style=COLOURS.get(status.state, "dim")),
                str(status.pid or ""),
                Text(status.detail, overflow="ellipsis", no_wrap=True),
            )
        return table

    def _line(self, status: Status) -> Text:
        line = Text(f"{status.name:<10} ")
        line.append(status.state, style=COLOURS.get(status.state, "dim"))
        if status.pid is not None:
            line.append(f" (pid {status.pid})")
        if status.detail:
            line.append(f": {status.detail}")
        return line
