"""The display of `headrace up`: a live table until everything is ready, then single lines.

Without a terminal (a log file, CI) there are only single lines. A terminal that goes away must not
end anything.
"""

import contextlib
import time
from collections.abc import Mapping

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.commands import exported
from headrace.console import EscapingConsole
from services.launch.part import Status

COLOURS = {
    "ready": "green",
    "running": "green",
    "starting": "yellow",
    "restarting": "red",
    "failed": "bold red",
    "stopping": "yellow",
}


class Display:
    """Shows the parts' states. Every method returns at once."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or EscapingConsole(highlight=False)
        self._live: Live | None = None
        self._statuses: dict[str, Status] = {}
        self._began = time.monotonic()

    @property
    def on_terminal(self) -> bool:
        """Whether a person reads along, instead of a log file."""
        return self._console.is_terminal

    def begin(self, statuses: Mapping[str, Status]) -> None:
        """Show the table if the output is a terminal."""
        self._statuses = dict(statuses)
        if self._console.is_terminal:
            self._live = Live(self._table(), console=self._console, refresh_per_second=8)
            with contextlib.suppress(OSError):
                self._live.start()

    def change(self, status: Status) -> None:
        """Show the new state of a part."""
        before = self._statuses.get(status.name)
        self._statuses[status.name] = status
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.update(self._table())
        elif before is None or before.state != status.state:
            self.say(f"{status.name:<10} ", _state(status), _details(status))

    def ready(self, facts: Mapping[str, str], exports: Mapping[str, str]) -> None:
        """Show that everything runs: keep the table, and print below it what the user needs next.
        `exports`: variables that `headrace` needs in another terminal."""
        self.end()
        seconds = time.monotonic() - self._began
        self.say("\n", Text("ready", "bold green"), f" in {seconds:.1f} s")
        for name, value in facts.items():
            self.say(f"  {name:<9} {value}")
        self.say("For `headrace` in another terminal:")
        for line in exported(exports):
            self.say(f"  {line}")
        self.say("Ctrl-C stops everything in order; twice, at once.\n")

    def say(self, *line: str | Text) -> None:
        """Print one line, above the table if there is one."""
        # EIO or EPIPE: the terminal is gone, and stopping in order matters more.
        with contextlib.suppress(OSError):
            self._console.print(Text.assemble(*line), soft_wrap=True)

    def end(self) -> None:
        """Leave the terminal as it was."""
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError):
                live.stop()

    def _table(self) -> Table:
        table = Table("part", "state", "pid", "", box=None, pad_edge=False)
        for status in self._statuses.values():
            detail = Text(status.detail, overflow="ellipsis", no_wrap=True)
            table.add_row(status.name, _state(status), str(status.pid or ""), detail)
        return table


def _state(status: Status) -> Text:
    return Text(status.state, style=COLOURS.get(status.state, "dim"))


def _details(status: Status) -> str:
    pid = "" if status.pid is None else f" (pid {status.pid})"
    return pid + (f": {status.detail}" if status.detail else "")
