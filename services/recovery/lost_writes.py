"""Compares Redis with the copies of its records on the data volume."""

import math
import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import anyio.to_thread

from headrace.commands import program
from headrace.redaction import redacted
from headrace.terminal import one_line
from headrace.wording import counted
from services.contracts.records import DatasetRecord, RunRecord, RunSummary
from services.recovery.key_copies import KeyCopy, lost_keys
from services.recovery.record_copies import Commit, kept_datasets, kept_runs, newest_commit
from services.store import LostWrites, Store

SHOWN = 5
RESTORE = "Stop everything, then put back Redis' files or a backup (`headrace restore`)"


@dataclass(frozen=True)
class Losses:
    runs: list[RunRecord] = field(default_factory=list)
    """Runs without a record."""
    behind: list[tuple[RunSummary, Commit]] = field(default_factory=list)
    """Runs as Redis has them, and their newest commit."""
    datasets: list[DatasetRecord] = field(default_factory=list)
    """Datasets without a record, or with fewer rows in Redis."""
    keys: list[KeyCopy] = field(default_factory=list)
    """API keys that are not accepted."""

    def __bool__(self) -> bool:
        return bool(self.runs or self.behind or self.datasets or self.keys)

    def sentences(self) -> list[str]:
        """Describe each loss by both facts."""
        return [
            *(late(run, commit) for run, commit in self.behind),
            *(f"run {run.name} ({run.id}) has files, and no record in Redis" for run in self.runs),
            *(
                f"dataset {item.name} ({item.id}) has {counted(item.rows, 'row')} in files, and "
                "Redis has no record of all of them"
                for item in self.datasets
            ),
            *(
                f"API key {item.record.name} ({item.record.id}) has a copy, and no record in Redis"
                for item in self.keys
            ),
        ]


def late(run: RunSummary, commit: Commit) -> str:
    """Describe a run whose commits Redis has lost, by both facts."""
    at = datetime.fromtimestamp(commit.time, UTC).isoformat(" ", "seconds")
    return (
        f"run {run.name} ({run.id}) has a checkpoint of step {commit.step}, committed at {at}, and "
        f"Redis knows it up to step {run.committed_step}"
    )


def recover_command(data: Path, redis_url: str) -> str:
    """Return the command that recovers this data folder and the Redis at `redis_url`, for a user to
    copy. A password is masked in it."""
    words = [program(), "recover", "--data", str(data.absolute())]
    # `headrace recover` starts the data folder's own Redis by itself.
    if not (data / "redis").is_dir():
        words += ["--redis-url", redacted(redis_url)]
    return shlex.join(words)


def lost_commit(data: Path, run: RunSummary, newest: Commit | None, redis_url: str) -> str | None:
    """Describe the loss if Redis has lost a commit of `run`; otherwise return None. `newest`: the
    run's newest commit on the volume. If a learner may commit meanwhile, read it before `run`,
    because Redis has each commit before its copy is written."""
    if newest is None or newest.step <= run.committed_step:
        return None
    return (
        f"Redis has lost acknowledged writes: {late(run, newest)}. {RESTORE}, or accept the loss: "
        f"`{recover_command(data, redis_url)}` goes on from the newest checkpoints and says what "
        "is lost"
    )


async def compare(store: Store, data: Path) -> Losses:
    """Return what Redis has lost. Raises RedisError. O(runs + datasets)."""
    kept, datasets = await anyio.to_thread.run_sync(
        lambda: (list(kept_runs(data)), list(kept_datasets(data)))
    )
    losses = Losses()
    listed = await store.runs.all()
    losses.runs.extend(run for run in kept if run.id not in {run.id for run in listed})
    for run in listed:
        newest = await anyio.to_thread.run_sync(newest_commit, data, run.id)
        if newest is None or newest.step <= run.committed_step:
            continue
        # The learner may have committed since `run` was read.
        later = await store.runs.get(run.id) or run
        if newest.step > later.committed_step:
            losses.behind.append((run, newest))
    # An unreadable record exists, and affects only itself.
    there = await store.datasets.list()
    rows = {record.id: math.inf if record.damage else record.rows for record in there}
    losses.datasets.extend(record for record in datasets if rows.get(record.id, 0) < record.rows)
    losses.keys.extend(await lost_keys(store, data))
    return losses


async def require_complete(store: Store, data: Path, redis_url: str) -> None:
    """Raise LostWrites, with both facts and the way out, each on a line of its own, if Redis has
    lost anything."""
    losses = await compare(store, data)
    if losses:
        # A record that another gateway deletes during the comparison only seems lost.
        losses = await compare(store, data)
    if not losses:
        return
    sentences = losses.sentences()
    more = [f"and {len(sentences) - SHOWN} more"] if len(sentences) > SHOWN else []
    lines = [
        "Redis has lost acknowledged writes",
        *map(one_line, sentences[:SHOWN]),
        *more,
        f"{RESTORE}.",
        "Or accept the loss and go on from the newest checkpoints:",
        f"  {recover_command(data, redis_url)}",
    ]
    raise LostWrites("\n  ".join(lines))
