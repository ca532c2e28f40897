"""Goes on from what is left after Redis has lost acknowledged writes.

A run gets its newest whole checkpoint, and the ledger's rows up to it, from their copy. Its open
tasks are leased again; some of them may have been finished or dropped after that checkpoint. A run
whose record is gone comes back: as succeeded if it has the checkpoint of its last step, else as
cancelled, and can be resumed.
"""

import json
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

from headrace.wording import counted
from services.contracts.records import RunRecord, RunState, RunSummary
from services.contracts.rows.task import TaskPosition
from services.contracts.run_edits import newest_edit
from services.recovery.key_copies import align_keys, revoke_again
from services.recovery.lost_writes import Losses, late
from services.recovery.record_copies import (
    Commit,
    commits,
    cut_commits,
    forget_dataset,
    forget_run,
    kept_datasets,
    kept_runs,
)
from services.store import Gone, Store
from services.store.runs.pools import LOCK_SECONDS
from services.volume.checkpoint import damage


class CannotRecover(RuntimeError):
    """Recovery needs a step of the user first; the message says which."""


class Recovered(NamedTuple):
    done: list[str]
    """In sentences."""
    steps: dict[str, int]
    """The step that each run goes on from: `cut_ledgers` deletes the commits of later steps."""


def cut_ledgers(data: Path, steps: Mapping[str, int]) -> None:
    """Delete commits after these steps of runs. Call it once the recovered Redis is in its place:
    until then the ledgers prove the loss. Raises OSError."""
    for id, step in steps.items():
        cut_commits(data, id, step)


async def recover(store: Store, data: Path, losses: Losses) -> Recovered:
    """Write into Redis what it has lost, and change nothing on the volume. Raises CannotRecover
    while a learner lives, RedisError, OSError."""
    await _require_no_learner(store, losses)
    done: list[str] = []
    steps: dict[str, int] = {}
    for dataset in losses.datasets:
        await store.datasets.put(dataset)
        done.append(f"dataset {dataset.name} is there again, with {counted(dataset.rows, 'row')}")
    for key in losses.keys:
        await store.api_keys.add(key.digest, key.record)
        done.append(f"API key {key.record.name} ({key.record.id}) is accepted again")
    runs = sorted(losses.runs, key=lambda run: run.created)
    done += [await _resubmit(store, data, run, steps) for run in runs]
    for run, newest in losses.behind:
        later, whole = await _lost_commits(data, run)
        loss = late(run, newest)
        steps[run.id] = await _catch_up(store, data, run, loss, later, whole)
        done.append(with_step(run, steps[run.id], later))
    done += await revoke_again(store, data)
    return Recovered(done, steps)


async def note_loss(store: Store, what: str) -> None:
    """Add a loss to the audits of all runs that are not over."""
    for run in await store.runs.live():
        await store.recovery.note_loss(run.id, what)


async def align(store: Store, data: Path) -> None:
    """Delete copies that Redis does not know, after the restore of a backup: its files were read
    shortly before and after its Redis."""
    runs = {run.id: run.committed_step for run in await store.runs.all()}
    datasets = {record.id: record for record in await store.datasets.list()}
    for kept in list(kept_runs(data)):
        if kept.id not in runs:
            forget_run(data, kept.id)
    for run, step in runs.items():
        if commits(data, run):
            cut_commits(data, run, step)
    for listed in list(kept_datasets(data)):
        if listed.id not in datasets or datasets[listed.id].rows < listed.rows:
            forget_dataset(data, listed.id)
    await align_keys(store, data)


async def _require_no_learner(store: Store, losses: Losses) -> None:
    runs = [*losses.runs, *(run for run, _ in losses.behind)]
    for pool in sorted({run.pool for run in runs}):
        # The lock of a learner that was killed lapses.
        deadline = time.monotonic() + LOCK_SECONDS + 2
        while await store.pools.lock_seconds(pool) > 0:
            if time.monotonic() > deadline:
                raise CannotRecover(
                    f"a learner serves pool {pool!r}: stop it, and everything else that uses this "
                    "Redis, then give the command again"
                )
            await anyio.sleep(0.5)


async def _resubmit(store: Store, data: Path, run: RunRecord, steps: dict[str, int]) -> str:
    """Write the record of a run that is gone, and note its step in `steps`. A run that has the
    checkpoint of its last step had succeeded."""
    named = f"run {run.name} ({run.id})"
    run = run.model_copy(update={"paused_by": ""})
    # The learner took edits after their copy was written: the copy's own `max_steps` is older.
    if (last := newest_edit(run.edits, "max_steps")) is not None:
        run = run.model_copy(update={"max_steps": int(last)})
    await store.recovery.clear(run.id)
    try:
        resumed = None if run.is_fork else run.resume_from
        if resumed and (before := await store.runs.get(resumed)):
            reason = f"run {run.id} continued it"
            await store.runs.set_state(before.id, RunState.CANCELLED, reason)
        await store.runs.submit(run)
    except Gone as error:
        return f"{named} cannot be rebuilt: {error}; its checkpoints stay as files"
    await store.runs.free(run)
    later, whole = await _lost_commits(data, run)
    is_complete = whole is not None and whole.step == run.max_steps
    reason = "Redis had lost its record, which was rebuilt from its files"
    state = RunState.SUCCEEDED if is_complete else RunState.CANCELLED
    await store.runs.set_state(run.id, state, reason)
    steps[run.id] = step = await _catch_up(store, data, run, reason, later, whole)
    if is_complete:
        return f"{named} is there again as succeeded, with all of its {counted(step, 'step')}"
    if step == 0:
        return f"{named} is there again as cancelled: `headrace resume {run.id}` begins it anew"
    return (
        f"{named} is there again as cancelled, up to step {step}: `headrace resume {run.id}` "
        "continues it"
    )


def with_step(run: RunSummary, step: int, later: list[Commit]) -> str:
    """Describe a run that Redis knows, and that recovery has set to `step`. `later`: its commits
    that Redis had lost."""
    named = f"run {run.name} ({run.id})"
    damaged = later[-1].step > step
    if run.state.final:
        more = f"; later ones, up to step {later[-1].step}, are damaged" if damaged else ""
        return f"{named} stays {run.state}, with the checkpoint of step {step}{more}"
    if step == run.max_steps:
        return (
            f"{named} has all of its {counted(step, 'step')}, and ends once a learner serves its "
            "pool"
        )
    again = f"steps {step + 1} to {later[-1].step}" if damaged else "what was finished after it"
    return f"{named} goes on from step {step}, and does {again} again"


async def _lost_commits(data: Path, run: RunSummary) -> tuple[list[Commit], Commit | None]:
    """Return the commits of a run that Redis has lost, and the newest of them whose checkpoint is
    whole."""
    kept = await anyio.to_thread.run_sync(commits, data, run.id)
    later = [commit for commit in kept if commit.step > run.committed_step]
    whole = (commit for commit in reversed(later) if damage(data / commit.checkpoint) is None)
    return later, next(whole, None)


async def _catch_up(
    store: Store,
    data: Path,
    run: RunSummary,
    loss: str,
    later: list[Commit],
    whole: Commit | None,
) -> int:
    """Set a run to its newest whole checkpoint. Return its step."""
    if whole is None:
        again = (
            f"; steps {run.committed_step + 1} to {later[-1].step} are done again" if later else ""
        )
        await store.recovery.note_loss(run.id, f"{loss}{again}")
        return run.committed_step
    recovered_at = datetime.now(UTC).isoformat(" ", "seconds")
    note = (
        f"{loss}. It was recovered at {recovered_at} from the checkpoint of step {whole.step}: "
        "which tasks were finished or dropped after that step is not known, and they are sampled "
        "again"
    )
    await _write(store, data, run, whole, [c for c in later if c.step <= whole.step], note)
    return whole.step


async def _write(
    store: Store, data: Path, run: RunSummary, commit: Commit, later: list[Commit], note: str
) -> None:
    """Write the commits `later` into Redis."""
    generation = await store.ledger.generation(run.id)
    there = [fields for _, fields in await store.ledger.rows_after(run.id, "")]
    rows = [fields for newer in later for _, fields in newer.rows if fields not in there]
    ended = ended_tasks([*there, *rows])
    places = [*generation.returned, *generation.held, *(task for _, task in generation.groups)]
    cursor = await store.recovery.cursor(run.id)
    order: dict[str, int] = {}
    tasks: list[str] = []
    if cursor is not None:
        first, dataset_rows = cursor
        after, tasks = still_open(first, dataset_rows, places, ended)
        order = {"position": after.position, "epoch": after.epoch, "rows": after.rows}
        order |= {"index": after.index, "last_finished": after.position}
    known = {name for name, _ in generation.lineages}
    state = json.loads((data / commit.checkpoint / "training" / "state.json").read_text())
    lineages = [f"{name}:{began}" for name, began in state["lineages"] if name not in known]
    await store.recovery.recover(
        run.id, commit.step, commit.checkpoint, note, rows, order, tasks, lineages
    )


def ended_tasks(rows: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the tasks that have ended by these rows of a ledger, without undone training."""
    ended: list[tuple[int, list[str]]] = []
    for fields in rows:
        step = int(fields.get("step", 0))
        if fields["end"] == "undone":
            ended = [(trained, tasks) for trained, tasks in ended if trained <= step]
        else:
            ended.append((step, json.loads(fields["tasks"])))
    return [task for _, tasks in ended for task in tasks]


def still_open(
    cursor: TaskPosition, dataset_rows: int, places: Iterable[str], ended: Iterable[str]
) -> tuple[TaskPosition, list[str]]:
    """Return the cursor after all known tasks, and the open tasks in the run's order. `cursor` is
    the next task as Redis knows it. A task between these two cursors was leased, and is the task
    that `lease.lua` would have made."""
    over = {task.position: task for task in map(TaskPosition.parse, ended)}
    tasks = {task.position: task for task in map(TaskPosition.parse, places)}
    after = cursor
    for position in range(cursor.position, max(over, default=-1) + 1):
        if after.index >= after.rows:
            after = TaskPosition(position, after.epoch + 1, dataset_rows, 0)
        task = over.get(position, after)
        tasks[position] = task
        after = TaskPosition(position + 1, task.epoch, task.rows, task.index + 1)
    return after, [str(tasks[position]) for position in sorted(tasks.keys() - over.keys())]
