"""The index of a run's rollouts: fixed-size records, read through the page cache.

Each rank appends the records of a step once the step's part is complete, so steps ascend within a
file. A record that a crash has cut off is ignored, and the next start cuts it away.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from pathlib import Path

import numpy as np

from services.rollouts.index_record import RECORD, Records
from services.rollouts.parts import step_of
from services.rollouts.rollout_filter import RolloutFilter
from services.runtime.logs import get_logger
from services.volume import written_beside

log = get_logger(__name__)

BLOCK = 1 << 16
"""Records that are compared at once: 3 MB."""


def index_path(folder: Path, rank: int) -> Path:
    return folder / f"index-rank-{rank:04d}.bin"


def append(path: Path, records: Records) -> None:
    """Append records. If that fails, nothing is added. Raises OSError."""
    with path.open("ab") as file:
        whole = file.tell() // RECORD.itemsize * RECORD.itemsize
        file.truncate(whole)
        try:
            file.write(records.tobytes())
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            file.truncate(whole)
            raise


def cut(folder: Path, step: int) -> None:
    """Go back to `step`: forget the answers of later steps and delete their parts, and files that
    a crash left unfinished. Raises OSError."""
    for path in folder.glob("index-rank-*.bin"):
        records = opened(path)
        kept = bisect_right(records["step"], step)
        # A new file: a process that has mapped this one dies (SIGBUS) if it gets shorter.
        if kept * RECORD.itemsize < path.stat().st_size:
            with written_beside(path) as beside:
                records[:kept].tofile(beside)
    for path in [*folder.iterdir()] if folder.exists() else []:
        of_step = step_of(path)
        if path.name.startswith(".") or (of_step is not None and of_step > step):
            path.unlink(missing_ok=True)


def opened(path: Path) -> Records:
    """Map the whole records of an index file."""
    count = path.stat().st_size // RECORD.itemsize
    if not count:
        return np.empty(0, RECORD)
    return np.memmap(path, RECORD, "r", shape=(count,))


def first_step(folder: Path) -> int | None:
    """Return the first step that has rollouts, or None without rollouts."""
    files = [opened(path) for path in folder.glob("index-rank-*.bin")]
    return min((int(records["step"][0]) for records in files if len(records)), default=None)


def newest_first(
    folder: Path, wanted: RolloutFilter, up_to: int | None = None
) -> Iterator[tuple[int, Records]]:
    """Yield each step that has wanted answers, the newest first, with their records by group and
    sample. `up_to`: the newest step to look at."""
    files = [_of_file(path, wanted, up_to) for path in sorted(folder.glob("index-rank-*.bin"))]
    by_step = groupby(merge(*files, key=lambda item: -item[0]), key=lambda item: item[0])
    for step, items in by_step:
        records = np.concatenate([of_rank for _, of_rank in items])
        yield step, records[np.lexsort((records["sample"], records["group"]))]


def _of_file(path: Path, wanted: RolloutFilter, up_to: int | None) -> Iterator[tuple[int, Records]]:
    """Yield the steps of one index file that have wanted answers, the newest first, from step
    `up_to` down."""
    try:
        records = opened(path)
    except FileNotFoundError:  # the run is being deleted
        return
    steps, end = records["step"], len(records)
    newest = wanted.step if wanted.step is not None else up_to
    if newest is not None:
        end = bisect_right(steps, newest)
    while end:
        # A step never spans two blocks.
        start = min(bisect_left(steps, steps[max(end - BLOCK, 0)], 0, end), end - 1)
        if wanted.step is not None and steps[end - 1] < wanted.step:
            return
        block = records[start:end]
        matching = np.array(block[wanted.matches(block)])
        changes = np.flatnonzero(np.diff(matching["step"])) + 1
        for piece in reversed(np.split(matching, changes)):
            if len(piece):
                yield int(piece["step"][0]), piece
        end = start
