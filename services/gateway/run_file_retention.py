"""The files of runs: their sizes, the files that a finished run keeps, and the unused payloads
outside of Redis.

A finished run keeps its current checkpoint, so that it can be resumed, exported and started from.
Its weight versions are deleted as soon as workers and learners have released them. The deletion is
idempotent.
"""

import asyncio
import contextlib
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable
from pathlib import Path

import anyio.to_thread
from redis.exceptions import RedisError

from services.contracts.chains import ChainRecord, references, referred
from services.contracts.events import DeletedData
from services.contracts.records import RunSummary
from services.datasets.segments import UNPUBLISHED
from services.gateway.openai_jobs.file_shelf import FileShelf
from services.gateway.settings import GatewaySettings
from services.models.path import named_steps
from services.payloads import Payloads
from services.runtime.logs import get_logger
from services.store import Store, Unreadable
from services.volume.kept_checkpoints import hide, pinned_names
from services.volume.run_files import last_metric

log = get_logger(__name__)

CHECKPOINT = re.compile(r"step-(\d+)-.+")
UNFINISHED_SECONDS = 24 * 3600.0
"""Another gateway may be writing a file that is younger."""
DAY = 24 * 3600.0
SIZE_SECONDS = 30.0
"""A measured size is used for this long."""


class Sizes:
    """Bytes of each run's folder, measured at most every SIZE_SECONDS."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._measured: dict[str, tuple[float, int]] = {}
        self._rollouts: dict[Path, tuple[int, int]] = {}
        """By folder of rollouts: when it changed last (ns), and its bytes then."""

    async def of(self, runs: Collection[str]) -> dict[str, int]:
        """Bytes by run id; 0 for a run without a folder."""
        fresh = time.monotonic() - SIZE_SECONDS
        old = [run for run in runs if self._measured.get(run, (-SIZE_SECONDS, 0))[0] <= fresh]
        sizes = await anyio.to_thread.run_sync(
            lambda: {run: self._run_bytes(self._root / "runs" / run) for run in old}
        )
        self._measured |= {run: (time.monotonic(), size) for run, size in sizes.items()}
        return {run: self._measured[run][1] for run in runs}

    def _run_bytes(self, folder: Path) -> int:
        """Bytes of a run's folder. Its rollouts have a file for each step, so they are measured
        again only after a file has come or gone."""
        rollouts = folder / "rollouts"
        try:
            changed = rollouts.stat().st_mtime_ns
        except OSError:
            return folder_bytes(folder)
        if self._rollouts.get(rollouts, (0, 0))[0] != changed:
            self._rollouts[rollouts] = changed, folder_bytes(rollouts)
        return folder_bytes(folder, without="rollouts") + self._rollouts[rollouts][1]


def folder_bytes(folder: Path, without: str = "") -> int:
    """Bytes of all files below `folder`, as they are named now. `without`: a folder in it that does
    not count."""
    total = 0
    for root, folders, names in os.walk(folder):
        if without and root == str(folder):
            folders[:] = [name for name in folders if name != without]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(f"{root}/{name}").st_size
    return total


def unneeded(
    root: Path,
    run: RunSummary,
    settings: GatewaySettings,
    needed: Collection[str],
    steps: Collection[int] = (),
) -> list[Path]:
    """List weight versions, checkpoints and rollouts that a finished run need not keep. `needed`
    names files to keep (relative to `root`), and `steps` checkpoints to keep."""
    folder = root / "runs" / run.id
    weights = folder.glob("weights/*.safetensors")
    gone = [path for path in weights if str(path.relative_to(root)) not in needed]
    if (keep := settings.keep_finished_checkpoints) is not None:
        named = ((path, CHECKPOINT.fullmatch(path.name)) for path in folder.glob("checkpoints/*"))
        checkpoints = sorted((int(match[1]), path) for path, match in named if match)
        pinned = pinned_names(folder / "checkpoints")
        others = [
            path
            for step, path in checkpoints
            if str(path.relative_to(root)) != run.checkpoint
            and step not in steps
            and path.name not in pinned
        ]
        gone += others[: max(0, len(checkpoints) - keep)]
    if rollouts_are_over(run, settings):
        gone += folder.glob("rollouts")
    # A process that died may leave files that it was writing or deleting.
    remains = ("weights/.*", "checkpoints/.*", ".rollouts")
    return [*gone, *(path for pattern in remains for path in folder.glob(pattern))]


def rollouts_are_over(run: RunSummary, settings: GatewaySettings) -> bool:
    """Return whether a run has ended so long ago that it loses its rollouts."""
    days = settings.keep_rollouts_days
    return bool(days is not None and run.finished and time.time() - run.finished >= days * DAY)


def prune(paths: Iterable[Path]) -> DeletedData:
    """Delete files and folders. Returns what was deleted: a checkpoint that was pinned meanwhile is
    left."""
    deleted = DeletedData(checkpoints=[], rollouts=False, bytes=0)
    for path in paths:
        size = folder_bytes(path) if path.is_dir() else path.stat().st_size
        # Renamed first: a reader sees a whole file or folder, or none.
        hidden = path if path.name[0] == "." else hide(path, f".{path.name}")
        if hidden is None:
            continue
        shutil.rmtree(hidden) if hidden.is_dir() else hidden.unlink()
        deleted.bytes += size
        if CHECKPOINT.fullmatch(path.name):
            deleted.checkpoints.append(path.name)
        deleted.rollouts |= path.name == "rollouts"
    return deleted


def remove_unfinished(data: Path) -> None:
    """Delete the files of uploads that a gateway was writing when it died."""
    for path in data.glob(f"datasets/{UNPUBLISHED}*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - UNFINISHED_SECONDS:
                path.unlink()
                log.info("a file of an upload that broke off deleted", file=path.name)


async def prune_finished(store: Store, settings: GatewaySettings) -> None:
    """Prune every run that ended at least `keep_finished_seconds` ago, and delete remains of
    uploads."""
    await anyio.to_thread.run_sync(remove_unfinished, settings.data)
    await anyio.to_thread.run_sync(FileShelf(settings.data).forget_expired)
    ended = [
        run
        for run in await store.runs.all()
        if run.finished
        and not run.damage
        and time.time() - run.finished >= settings.keep_finished_seconds
    ]
    needed = {name for worker in await store.workers.list() for name in worker.files}
    # Without a limit on checkpoints, skip the lookup.
    limited = settings.keep_finished_checkpoints is not None
    named = await _named_steps(store) if limited else set()
    for run in ended:
        steps = {step for id, step in named if id == run.id}
        try:
            if limited and run.kind == "sft":
                steps |= await _best_step(settings.data / "runs" / run.id)
            gone = await anyio.to_thread.run_sync(
                unneeded, settings.data, run, settings, needed, steps
            )
            if not gone or not await store.runs.free(run):
                continue
            deleted = await anyio.to_thread.run_sync(prune, gone)
            # The weight versions go after each run, and nobody misses them.
            if deleted.checkpoints or deleted.rollouts:
                await store.events.add(run.id, "deleted", deleted.model_dump())
        except (OSError, ValueError) as error:
            # A damaged row of metrics raises too: the best step is unknown then.
            log.warning("files of a finished run stay", run=run.id, reason=str(error))
        else:
            log.info("files of a finished run deleted", run=run.id, **deleted.model_dump())


async def _named_steps(store: Store) -> set[tuple[str, int]]:
    """Return (run, step) of each checkpoint that unfinished runs and open chains start from."""
    named = set()
    for run in await store.runs.live():
        named |= named_steps(run.config)
    for id in await store.chains.open():
        if (chain := await store.chains.get(id)) is not None:
            named |= _steps_of_chain(chain)
    return named


def _steps_of_chain(chain: ChainRecord) -> set[tuple[str, int]]:
    """Return the named steps of one chain. A resumed step has several runs, and any of them may
    have made the checkpoint."""
    named = set()
    runs = {step.name: step.runs for step in chain.steps}
    for step in chain.steps:
        named |= named_steps(step.config)
        for path in references(step.config).values():
            name, which = referred(path) or ("", "")
            if which.isdigit():
                named |= {(run, int(which)) for run in runs.get(name, [])}
    return named


async def _best_step(folder: Path) -> set[int]:
    """Return the step with the best validation of the supervised run in `folder`, if known. The
    file of metrics is read because the run's record has only the metrics of the last step."""
    best = await last_metric(folder, "validation/best_step")
    return set() if best is None else {int(best)}


async def sweep_payloads(store: Store, data: Path, payloads: Payloads) -> None:
    """Delete the payloads outside of Redis that nobody needs. A run that has a folder in `data` and
    is not in Redis keeps its own: this Redis may be the wrong one, or not be restored yet."""
    if await store.dumps.restoring():
        return
    runs = await payloads.runs()
    for run, there in zip(runs, await store.runs.summaries(runs), strict=True):
        if there is not None or not (data / "runs" / run).exists():
            try:
                await payloads.sweep(run)
            except Unreadable as error:
                log.error("payloads of a run stay", run=run, reason=str(error))


async def keep_pruning(store: Store, settings: GatewaySettings, payloads: Payloads) -> None:
    """Prune finished runs and sweep payloads again and again, until cancelled."""
    while True:
        try:
            await prune_finished(store, settings)
        except Unreadable as error:
            log.error("files of finished runs stay", reason=str(error))
        except (RedisError, OSError) as error:
            log.debug("files of finished runs stay", reason=str(error))
        try:
            await sweep_payloads(store, settings.data, payloads)
        except (RedisError, OSError, Unreadable) as error:
            log.warning("payloads stay", reason=str(error))
        await asyncio.sleep(min(60, settings.keep_finished_seconds))
