"""`python -m services.tracking`: carry one run to one tracker.

The gateway starts this process, so that a library that is slow, leaks or hangs harms nothing else.
The first line of stdin is a `TrackingJob`, JSON; a second line is the state of the run that is
over. Stdout has a line of JSON each time the process has looked: `place` says where the metrics are
shown. If the tracker fails, the line has the reason as `failed`, without secrets, and the process
exits with 1. It exits with 0 when the run is over and all is carried.
"""

import json
import os
import re
import select
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from headrace.metric_rows import by_set, is_step
from headrace.trackers import Carried, Tracker, opened
from services.runtime.process import die_with_parent, keep_files_private
from services.tracking.job import TrackingJob
from services.volume import written_beside
from services.volume.metric_lines import MetricLines
from services.volume.run_files import parsed_row

LOOK_SECONDS = 5.0
BATCH = 200
"""Rows after which it is written down that they were carried."""
NICENESS = 10
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
"""Names of variables whose values no message has, nor the value of one with an @: in an address it
follows a password."""


def main() -> int:
    """Carry the run of the job on stdin until it is over."""
    die_with_parent()
    keep_files_private()
    os.nice(NICENESS)
    # Libraries and their processes print what they like to stdout: it becomes stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    lines = Lines(0)
    job = msgspec.json.decode(lines.next(None), type=TrackingJob)
    try:
        tracker = opened(job.tracker, job.options, job.record, Path(job.folder))
        for _ in carry(job, tracker, lines):
            print(json.dumps({"place": tracker.place}), file=answers, flush=True)
    # A library may raise anything.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print(json.dumps({"failed": without_secrets(reason)}), file=answers, flush=True)
        return 1
    return 0


class Lines:
    """Lines of a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unread = b""

    def next(self, seconds: float | None) -> str:
        """Wait up to `seconds` (None: without a limit) for the next line. Return '' without one.
        Raises EOFError once nobody writes any more."""
        while b"\n" not in self._unread:
            if not select.select([self._descriptor], [], [], seconds)[0]:
                return ""
            if not (more := os.read(self._descriptor, 1 << 20)):
                raise EOFError("the gateway is gone")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()


def carry(job: TrackingJob, tracker: Tracker, pipe: Lines) -> Iterator[None]:
    """Log each row once until the run is over. Yields after each look."""
    kept = Path(job.carried)
    carried = tracker.carried if tracker.carried is not None else remembered(kept)
    lines, state = MetricLines(), ""
    while True:
        following = new_rows(Path(job.metrics), lines)
        while batch := [*islice(following, BATCH)]:
            if rows := carried.new(batch):
                tracker.log(rows)
                with written_beside(kept) as beside:
                    beside.write_text(json.dumps(vars(carried)))
            yield
        yield
        if state:
            tracker.close(state)
            return
        state = pipe.next(LOOK_SECONDS)


def new_rows(path: Path, lines: MetricLines) -> Iterator[dict[str, Any]]:
    """Yield the rows after `lines`; all of them if the learner has gone back to an earlier step."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        if not lines.begins(file):
            lines.end, lines.last = 0, b""
        for line in lines.read(file):
            row = parsed_row(line, path)
            if row is not None and any(map(is_step, row)):
                yield by_set(row)


def remembered(path: Path) -> Carried:
    try:
        return Carried(**json.loads(path.read_text()))
    except FileNotFoundError:
        return Carried()


def without_secrets(text: str) -> str:
    """Return `text` without the values of variables that may be secrets."""
    secrets = {
        value
        for name, value in os.environ.items()
        if len(value) > 5 and (SECRET.search(name) or "@" in value)
    }
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "…")
    return text[:500]


if __name__ == "__main__":
    sys.exit(main())
