"""The columns of one run's metrics: for each name its steps and its values.

`metrics.jsonl` is the truth. The columns are derived from it: each call reads the lines that are
new. From time to time they are written to `.series.safetensors` in the same folder, so another
process, or the next one, need not parse the file again. A file that is missing, damaged, cut, or of
other lines than `metrics.jsonl` has now is not used: then all lines are parsed again. So the
columns never disagree with `metrics.jsonl`, and gateways that write at the same time do no harm.
"""

import contextlib
import json
import mmap
import os
import tempfile
import threading
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors.numpy import save

from headrace.metric_rows import by_set, is_step
from services.runtime.logs import get_logger
from services.volume.files import opened_by_umask
from services.volume.metric_lines import MetricLines
from services.volume.run_files import METRICS, parsed_row

log = get_logger(__name__)

FILE = ".series.safetensors"
"""A name with a dot is in no backup."""
FORMAT = "1"
UNSAVED_ROWS = 256
"""Fewer new rows are not worth a file."""
UNSAVED_SHARE = 8
"""The file is written again once an eighth of all rows is new."""
KEPT_RUNS = 128
"""Runs whose columns stay open."""
NO_METRICS = ("time", "version")
LARGEST_STEP = (1 << 32) - 1
LARGEST_VALUE = float(np.finfo(np.float32).max)

X = Literal["step", "time", "tokens", "samples"]
Numbers = NDArray[Any]
KINDS: dict[str, Any] = {"I": np.uint32, "f": np.float32, "d": np.float64}

_decoder = msgspec.json.Decoder()


class Growing:
    """A column: numbers of the file, then numbers that are newer."""

    def __init__(self, kind: Literal["I", "f", "d"], saved: Numbers | None = None) -> None:
        self._saved = saved
        self.new: array[Any] = array(kind)

    def __len__(self) -> int:
        return len(self.new) + (0 if self._saved is None else len(self._saved))

    def whole(self) -> Numbers:
        """Return all numbers. Later ones are not in it."""
        # A copy, because an array that numpy reads cannot grow.
        new: Numbers = np.array(self.new, KINDS[self.new.typecode])
        return new if self._saved is None else np.concatenate([self._saved, new])


@dataclass
class Column:
    steps: Growing = field(default_factory=lambda: Growing("I"))
    values: Growing = field(default_factory=lambda: Growing("f"))
    newest_step: int = 0
    newest: float | None = None
    """The newest value, exact; None: it was not finite."""


@dataclass
class Progress:
    """Time, tokens and samples at each step of the run: the axes other than the step."""

    steps: Growing = field(default_factory=lambda: Growing("I"))
    time: Growing = field(default_factory=lambda: Growing("d"))
    """Seconds since the run's first step began."""
    tokens: Growing = field(default_factory=lambda: Growing("d"))
    samples: Growing = field(default_factory=lambda: Growing("d"))
    trained: tuple[float, float] = (0.0, 0.0)
    """Tokens and samples until now."""
    began: float | None = None
    """Unix time."""
    last_time: float = 0.0

    def add(self, step: int, row: dict[str, Any]) -> None:
        seconds, at = _finite(row.get("time/step")) or 0.0, _finite(row.get("time"))
        if self.began is None and at is not None:
            self.began = at - seconds
        rates = ("throughput/tokens_per_second", "throughput/samples_per_second")
        tokens, samples = (
            total + round((_finite(row.get(rate)) or 0.0) * seconds)
            for total, rate in zip(self.trained, rates, strict=True)
        )
        self.trained = tokens, samples
        self.steps.new.append(step)
        # A clock that is set back must not turn the axis round.
        self.last_time = max(self.last_time, (at or 0.0) - (self.began or 0.0))
        self.time.new.append(self.last_time)
        self.tokens.new.append(tokens)
        self.samples.new.append(samples)


@dataclass
class RunColumns:
    """The columns of the first lines of a run's metrics."""

    lines: MetricLines = field(default_factory=MetricLines)
    rows: int = 0
    unsaved: int = 0
    """Rows that the file does not have."""
    columns: dict[str, Column] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)

    @property
    def tag(self) -> str:
        """A text that changes with the rows."""
        return f"{self.lines.end}-{xxhash.xxh3_64_hexdigest(self.lines.last)}"

    def read(self, file: BinaryIO, path: Path) -> None:
        """Add the rows after those so far."""
        for line in self.lines.read(file):
            if (row := _row(line, path)) is not None:
                self._add(by_set(row))

    def _add(self, row: dict[str, Any]) -> None:
        place = next((name for name in row if is_step(name)), None)
        if place is None or not 0 <= row[place] <= LARGEST_STEP:
            return
        step = int(row[place])
        self.rows += 1
        self.unsaved += 1
        for name, value in row.items():
            if (number := _finite(value)) is None and value is not None:
                continue
            if name in NO_METRICS or name == place:
                continue
            column = self.columns.get(name)
            if column is None:
                column = self.columns[name] = Column()
            column.newest_step, column.newest = step, number
            if number is not None:
                column.steps.new.append(step)
                column.values.new.append(number)
        if place == "step":
            self.progress.add(step, row)

    def series(
        self, names: Iterable[str], x: X, low: float | None = None, high: float | None = None
    ) -> Iterator[tuple[str, Numbers, Numbers]]:
        """Yield (name, places on the axis `x`, values) of the metrics that have values from `low`
        to `high`, in rising places. An evaluation stands where its step stands. Metrics with the
        same steps have one array of places."""
        shared: dict[tuple[int, int], tuple[Numbers, slice]] = {}
        for name in names:
            if (column := self.columns.get(name)) is None or not len(column.steps):
                continue
            steps, values = column.steps.whole(), column.values.whole()
            first, last = int(steps[0]), int(steps[-1])
            rises = _rises(steps)
            # Steps that rise by one are known by their first and last.
            has_each = rises and last - first + 1 == len(steps)
            if not has_each or (first, last) not in shared:
                order = slice(None) if rises else np.argsort(steps, kind="stable")
                steps, values = steps[order], values[order]
                places = steps if x == "step" else self._places(steps, x)
                part = slice(
                    0 if low is None else int(np.searchsorted(places, low, "left")),
                    len(places) if high is None else int(np.searchsorted(places, high, "right")),
                )
                shared_places = places[part], part
                if has_each:
                    shared[first, last] = shared_places
            else:
                shared_places = shared[first, last]
            if len(shared_places[0]):
                yield name, shared_places[0], values[shared_places[1]]

    def _places(self, steps: Numbers, x: Literal["time", "tokens", "samples"]) -> Numbers:
        """Return what had been trained after each step; before the first row it is 0."""
        known, totals = self.progress.steps.whole(), getattr(self.progress, x).whole()
        if not _rises(known):
            order = np.argsort(known, kind="stable")
            # Rows of a step that was trained twice: totals still rise.
            known, totals = known[order], np.maximum.accumulate(totals[order])
        at = np.searchsorted(known, steps, side="right")
        places: Numbers = np.concatenate([[0.0], totals])[at]
        return places

    def save(self, path: Path) -> None:
        """Write the columns to `path`. Raises OSError."""
        names = list(self.columns)
        columns = [self.columns[name] for name in names]
        progress = self.progress
        tensors = {
            "steps": _joined([column.steps for column in columns], np.uint32),
            "values": _joined([column.values for column in columns], np.float32),
            "progress/steps": progress.steps.whole(),
            "progress/time": progress.time.whole(),
            "progress/tokens": progress.tokens.whole(),
            "progress/samples": progress.samples.whole(),
        }
        about = {
            "end": self.lines.end,
            "last": self.lines.last.hex(),
            "rows": self.rows,
            "trained": progress.trained,
            "began": [progress.began, progress.last_time],
            "columns": [
                [name, len(column.steps), column.newest_step, column.newest]
                for name, column in zip(names, columns, strict=True)
            ],
            "checksums": {name: _checksum(tensor) for name, tensor in tensors.items()},
        }
        content = save(tensors, {"format": FORMAT, "about": json.dumps(about)})
        # Not `written_beside`: it would make the folder of a run that is deleted meanwhile. A file
        # that a power cut tears has another checksum.
        descriptor, beside = tempfile.mkstemp(prefix=f"{FILE}.", dir=path.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
            opened_by_umask(Path(beside))
            os.replace(beside, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
        self.unsaved = 0

    @classmethod
    def saved(cls, path: Path) -> "RunColumns":
        """Read the columns that `save` wrote; empty columns if they cannot be used. The numbers
        stay in the file, and the kernel reads only the columns of a request."""
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return _mapped(mapped)
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            log.warning("columns of metrics are made again", file=str(path), reason=str(error))
            return cls()


def _mapped(content: mmap.mmap) -> RunColumns:
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    if header["__metadata__"]["format"] != FORMAT:
        return RunColumns()
    about = json.loads(header["__metadata__"]["about"])
    kinds = {"U32": np.uint32, "F32": np.float32, "F64": np.float64}

    def tensor(name: str) -> Numbers:
        entry = header[name]
        begin, end = entry["data_offsets"]
        kind = np.dtype(kinds[entry["dtype"]])
        # Tensors begin at multiples of the largest element, since the header is padded to 8 bytes.
        whole: Numbers = np.frombuffer(
            content, kind, (end - begin) // kind.itemsize, 8 + size + begin
        )
        if _checksum(whole) != about["checksums"][name]:
            raise ValueError(f"{name} has another checksum")
        return whole

    steps, values = tensor("steps"), tensor("values")
    columns: dict[str, Column] = {}
    start = 0
    for name, count, step, value in about["columns"]:
        part = slice(start, start + count)
        columns[name] = Column(Growing("I", steps[part]), Growing("f", values[part]), step, value)
        start += count
    tokens, samples = about["trained"]
    progress = Progress(
        Growing("I", tensor("progress/steps")),
        Growing("d", tensor("progress/time")),
        Growing("d", tensor("progress/tokens")),
        Growing("d", tensor("progress/samples")),
        (tokens, samples),
        *about["began"],
    )
    lines = MetricLines(about["end"], bytes.fromhex(about["last"]))
    return RunColumns(lines, about["rows"], 0, columns, progress)


class RunSeries:
    """The columns of recent runs."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._runs: dict[str, RunColumns] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        """Held while the two dictionaries change."""

    @contextlib.contextmanager
    def of(self, run: str) -> Iterator[RunColumns]:
        """Yield the columns of a run as they are now. No other thread changes them meanwhile."""
        with self._lock:
            lock = self._locks.setdefault(run, threading.Lock())
        with lock:
            with self._lock:
                known = self._runs.pop(run, None)
            columns = _newest(self._root / "runs" / run, known)
            with self._lock:
                self._runs[run] = columns
                if len(self._runs) > KEPT_RUNS:
                    del self._runs[next(iter(self._runs))]
            yield columns


def _newest(folder: Path, columns: RunColumns | None) -> RunColumns:
    """Return the columns of all rows of the run in `folder`. `columns`: those of its first rows."""
    try:
        file = (folder / METRICS).open("rb")
    except FileNotFoundError:
        return RunColumns()
    with file:
        if columns is None:
            columns = RunColumns.saved(folder / FILE)
        if not columns.lines.begins(file):
            columns = RunColumns()
        columns.read(file, folder / METRICS)
    if columns.unsaved > UNSAVED_ROWS + columns.rows // UNSAVED_SHARE:
        try:
            columns.save(folder / FILE)
            # The file is mapped: only drawn columns take memory.
            mapped = RunColumns.saved(folder / FILE)
            if mapped.tag == columns.tag:
                columns = mapped
        except OSError as error:
            log.debug("columns of metrics stay in memory", run=folder.name, reason=str(error))
            # It is tried again once there are as many new rows.
            columns.unsaved = 0
    return columns


def _row(line: bytes, path: Path) -> dict[str, Any] | None:
    try:
        row = _decoder.decode(line)
    # It is stricter than `json`: what the list of rows shows, a chart shows too.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return parsed_row(line, path)
    valid = isinstance(row, dict) and all(
        isinstance(row.get(name, 0), int | float) for name in ("step", "evaluation/step")
    )
    return row if valid else parsed_row(line, path)


def _finite(value: Any) -> float | None:
    """Return a number that a column can hold, or None."""
    is_number = type(value) is float or type(value) is int
    return float(value) if is_number and -LARGEST_VALUE <= value <= LARGEST_VALUE else None


def _joined(parts: list[Growing], kind: type) -> Numbers:
    return np.concatenate([np.zeros(0, kind), *(part.whole() for part in parts)])


def _checksum(numbers: Numbers) -> str:
    return xxhash.xxh3_64_hexdigest(numbers.data)


def _rises(steps: Numbers) -> bool:
    return bool(np.all(steps[:-1] < steps[1:]))
