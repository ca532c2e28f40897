"""Reads metrics, which a learner writes into a run's folder. A damaged line is logged and left out,
so the others are still shown."""

import json
import math
import os
from pathlib import Path
from typing import Any

import anyio.to_thread

from services.runtime.logs import get_logger

log = get_logger(__name__)

_reported: set[Path] = set()

METRICS = "metrics.jsonl"
PLACE = {"step", "evaluation/step", "evaluation/name", "time"}
"""Fields that place a row of metrics."""


def read_metrics(
    path: Path, names: set[str], after: int, limit: int, start: int, strict: bool = False
) -> tuple[list[dict[str, Any]], int | None]:
    """Read up to `limit` rows of steps after `after`, from the byte `start` on, with only the
    metrics `names` (empty: all). Returns the rows, and the byte of the next row or None at the end.
    With `strict` a damaged line raises ValueError."""
    rows: list[dict[str, Any]] = []
    try:
        with path.open("rb") as file:
            # A client may send any number.
            if start > os.fstat(file.fileno()).st_size:
                return [], None
            # The file may have been cut back: skip the rest of a line.
            if start and not (file.seek(start - 1) and file.read(1) == b"\n"):
                file.readline()
            for line in iter(file.readline, b""):
                # A line without an end is being written.
                if not line.endswith(b"\n"):
                    break
                if (row := parsed_row(line, path, strict)) is None:
                    continue
                if row.get("step", row.get("evaluation/step", 0)) <= after:
                    continue
                if names and not (names & row.keys()):
                    continue
                if len(rows) == limit:
                    return rows, file.tell() - len(line)
                place = names | PLACE
                rows.append({k: v for k, v in row.items() if not names or k in place})
    except FileNotFoundError:
        return [], None
    return rows, None


async def last_metric(folder: Path, name: str) -> float | None:
    """Return the newest value of a metric of the run in `folder`, or None. Raises ValueError if the
    file is damaged: the newest value may be lost."""
    path = folder / METRICS
    try:
        rows, _ = await anyio.to_thread.run_sync(read_metrics, path, {name}, -1, 1 << 31, 0, True)
        value = next((float(row[name]) for row in reversed(rows) if name in row), None)
    except (TypeError, ArithmeticError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{path} is damaged: {name} is {value}")
    return value


def parsed_row(line: bytes, path: Path, strict: bool = False) -> dict[str, Any] | None:
    """Parse the object in a line. A damaged line is logged and becomes None, or raises ValueError
    if `strict`."""
    try:
        row = json.loads(line, parse_constant=lambda _: None)
        if not isinstance(row, dict):
            raise ValueError("it is no object")
        steps = [row[name] for name in ("step", "evaluation/step") if name in row]
        if not all(isinstance(step, int | float) for step in steps):
            raise ValueError("its step is no number")
    except (ValueError, RecursionError) as error:
        if strict:
            raise ValueError(f"{path} is damaged: {error}") from None
        _report(path, error)
        return None
    return row


def _report(path: Path, error: Exception) -> None:
    """Log a damaged line once for each file: a page reads it every few seconds."""
    if path not in _reported:
        _reported.add(path)
        log.warning("a damaged line is left out", file=str(path), reason=str(error)[:200])
