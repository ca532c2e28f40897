"""Reads the lines that a learner writes beside a run's checkpoints: metrics and sampled answers."""

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import anyio.to_thread

from services.contracts.groups.sampled_answer import SampledAnswer

METRICS, SAMPLES = "metrics.jsonl", "samples.jsonl"
PLACE = {"step", "evaluation/step", "time"}
"""What says where a row of metrics belongs."""
BLOCK = 1 << 18
"""Bytes that are read at a time."""


def read_metrics(
    path: Path, names: set[str], after: int, limit: int, start: int
) -> tuple[list[dict[str, Any]], int | None]:
    """Up to `limit` rows of steps after `after`, from the byte `start` on, with only the metrics
    `names` if there are any; and where the next ones begin, None: there are none yet."""
    rows: list[dict[str, Any]] = []
    try:
        with path.open("rb") as file:
            # Whoever asks may send any number.
            if start > os.fstat(file.fileno()).st_size:
                return [], None
            # The file may have been cut back: what is left of a line is no row.
            if start and not (file.seek(start - 1) and file.read(1) == b"\n"):
                file.readline()
            for line in iter(file.readline, b""):
                # The line that is being written has no end yet.
                if not line.endswith(b"\n"):
                    break
                row = json.loads(line, parse_constant=lambda _: None)
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
    """The newest value of a metric of the run in `folder`; None: it has none. Raises ValueError
    where the file is damaged."""
    path = folder / METRICS
    try:
        rows, _ = await anyio.to_thread.run_sync(read_metrics, path, {name}, -1, 1 << 31, 0)
        found = next((float(row[name]) for row in reversed(rows) if name in row), None)
    except (AttributeError, TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if found is not None and not math.isfinite(found):
        raise ValueError(f"{path} is damaged: {name} is {found}")
    return found


def read_samples(
    path: Path, step: int | None, limit: int, before: int | None
) -> tuple[list[SampledAnswer], int | None]:
    """Up to `limit` answers, the newest first, of `step` or of all, before the byte `before`; and
    where older ones begin, None: there are none."""
    found: list[SampledAnswer] = []
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            for at, line in backwards(file, size if before is None else min(before, size)):
                row = json.loads(line, parse_constant=lambda _: None)
                # Later lines are of later steps.
                if step is not None and row["step"] < step:
                    break
                if step is None or row["step"] == step:
                    found.append(SampledAnswer.model_validate(row))
                    if len(found) == limit:
                        return found, at or None
    except FileNotFoundError:
        return [], None
    return found, None


def first_samples(path: Path, limit: int) -> list[SampledAnswer]:
    """Up to `limit` answers of the first step."""
    found: list[SampledAnswer] = []
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n") or len(found) == limit:
                break
            one = SampledAnswer.model_validate(json.loads(line, parse_constant=lambda _: None))
            if found and one.step != found[0].step:
                break
            found.append(one)
    return found


def backwards(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """(where it begins, line) of the whole lines before `end`, the last one first. What has no end
    yet is being written, or is no line's end where the caller made `end` up."""
    start, unread = end, b""
    while True:
        # The line that ends `unread` begins after the newline before it.
        begin = unread.rfind(b"\n", 0, max(len(unread) - 1, 0)) + 1
        if not begin and start:
            size = min(BLOCK, start)
            start -= size
            file.seek(start)
            unread = file.read(size) + unread
            continue
        line = unread[begin:]
        if line.endswith(b"\n"):
            yield start + begin, line
        if not begin:
            return
        unread = unread[:begin]
