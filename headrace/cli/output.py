"""Printing for all commands, and the error type that becomes a sentence."""

import csv
import json
import sys
import time
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import typer
from rich import markup
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headrace.console import EscapingConsole
from headrace.terminal import one_line, visible
from headrace.wording import duration

FAILED = 1
WRONG_USAGE = 2
NO_GATEWAY = 3
INTERRUPTED = 130

# Without a terminal lines keep their full length, for grep and similar tools.
out = EscapingConsole(highlight=False, width=None if sys.stdout.isatty() else 200)
err = EscapingConsole(stderr=True, highlight=False)

FOLDED = 20
"""The least width of a table's last column on a terminal."""

FINAL = ("succeeded", "failed", "cancelled")
"""States of a run, or a chain, that is over."""
STATE_STYLES = {
    "queued": "dim",
    "starting": "yellow",
    "running": "cyan",
    "paused": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelling": "magenta",
    "cancelled": "magenta",
}


class Format(StrEnum):
    """How a command prints its answer."""

    table = "table"
    json = "json"
    yaml = "yaml"
    csv = "csv"


_chosen = Format.table


def show_as(format: Format) -> None:
    """Choose the format of what this command prints."""
    global _chosen
    _chosen = format


def is_for_programs() -> bool:
    """Whether the command's output is one document, which has its error too."""
    return _chosen in (Format.json, Format.yaml)


class CliError(Exception):
    """Shown as one sentence and the problems under it; ends the command with `code`."""

    def __init__(
        self, message: str, problems: Sequence[tuple[str, str]] = (), code: int = FAILED
    ) -> None:
        super().__init__(message)
        self.message = message
        self.problems = list(problems)
        self.code = code


def refusal(error: Exception, code: int = FAILED) -> CliError:
    """`error`, whose first line becomes the sentence, and each other line stands below it."""
    first, *below = str(error).splitlines() or [""]
    return CliError(first, [("", line.removeprefix("  ")) for line in below], code)


def escape(text: str) -> str:
    """`text` on one line, for use in rich's markup."""
    return markup.escape(one_line(text))


def show_error(error: CliError, as_json: bool) -> None:
    """One red sentence on stderr; with `as_json` an object on stdout, for scripts."""
    if as_json:
        problems = [{"path": path, "message": text} for path, text in error.problems]
        print_json({"error": error.message, "problems": problems, "code": error.code})
        return
    err.print(f"[bold red]error:[/] [red]{escape(error.message)}[/]", soft_wrap=True)
    # A single problem may be the whole of the sentence above.
    listed = error.problems if len(error.problems) > 1 or not _names_problems(error) else []
    for path, text in listed:
        where = f"[yellow]{escape(path)}[/]: " if path else ""
        err.print(f"  {where}{escape(text)}", soft_wrap=True)


def _names_problems(error: CliError) -> bool:
    return all(text in error.message for _, text in error.problems)


def print_json(value: Any) -> None:
    """Print `value` as indented JSON, or as the YAML or CSV that `--output` asks for."""
    if _chosen is Format.yaml:
        import yaml

        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000)
        typer.echo(text, nl=False)
    elif _chosen is Format.csv:
        _print_csv(value if isinstance(value, list) else [value])
    else:
        typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _print_csv(records: list[Any]) -> None:
    """Print a row for each record, under the keys of all of them. A nested value is JSON."""
    objects = [record if isinstance(record, dict) else {"value": record} for record in records]
    names = list(dict.fromkeys(key for row in objects for key in row))
    rows = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    if objects:
        rows.writeheader()
    for row in objects:
        rows.writerow({key: _csv_cell(value) for key, value in row.items()})


def _csv_cell(value: Any) -> Any:
    if isinstance(value, dict | list | bool):
        return json.dumps(value, ensure_ascii=False)
    return value


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> None:
    """Print a plain table whose cells are rich markup, or `empty` if there are no rows. Without a
    terminal a row is one line with tabs between its cells."""
    cells = [list(row) for row in rows]
    if cells and not out.is_terminal:
        for row in [list(columns), *cells]:
            typer.echo("\t".join(map(_plain, row)))
        return
    # A terminal that is too narrow would cut ids and names.
    if cells and _least_width([columns, *cells]) > out.width:
        _plain_table([list(columns), *cells])
        return
    grid = Table(box=None, pad_edge=False, header_style="bold dim")
    *names, last = columns
    for name in names:
        grid.add_column(name, no_wrap=True)
    grid.add_column(last, overflow="fold")
    for row in cells:
        grid.add_row(*row)
    out.print(grid if cells else f"[dim]{escape(empty)}[/]")


def _least_width(rows: Sequence[Sequence[str]]) -> int:
    """The width of a table whose last column is folded to the width of FOLDED."""
    widths = [max(map(_cell_width, column)) for column in zip(*rows, strict=True)]
    return sum(width + 2 for width in widths[:-1]) + min(widths[-1], FOLDED)


def _cell_width(cell: str) -> int:
    """The terminal columns of a cell, which is rich markup."""
    return Text.from_markup(cell).cell_len


def _plain_table(rows: list[list[str]]) -> None:
    """A table for narrow terminals: a row is one line, with nothing behind its last cell."""
    texts = [[_plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        out.print(line.rstrip(), soft_wrap=True, markup=False)


def _plain(cell: str) -> str:
    """Return the text of a cell, which is rich markup."""
    return Text.from_markup(cell).plain


def reason_cell(reason: str) -> str:
    """Return the cell of a table for a reason: its first line, and `…` if there are more."""
    first, *more = reason.splitlines() or [""]
    return escape(f"{first} …" if more else first)


def print_below(text: str) -> None:
    """Print a text of others, indented, with special characters visible."""
    if out.is_terminal:
        out.print(Padding(Text(visible(text)), (0, 0, 0, 4)))
        return
    for line in visible(text).split("\n"):
        out.print(Text(f"    {line}".rstrip(" ")), soft_wrap=True)


def state(value: str) -> str:
    """A run's state in its colour."""
    return f"[{STATE_STYLES.get(value, 'default')}]{escape(value)}[/]"


def worker_state(value: str) -> str:
    """A worker's state, in red if it is of no use."""
    return f"[red]{escape(value)}[/]" if value in ("unhealthy", "silent") else escape(value)


def ago(moment: float | None) -> str:
    """How long since `moment` (Unix seconds), e.g. `3 min ago`."""
    return "never" if not moment else f"{duration(max(0.0, time.time() - moment))} ago"


def steps_done(record: dict[str, Any]) -> str:
    """Format the progress of a run or a chain's step; empty if it trains no steps."""
    return "" if record["max_steps"] == 0 else f"{record['step']}/{record['max_steps'] or '?'}"


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
