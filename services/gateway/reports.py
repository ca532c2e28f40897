"""Write a report of every run and every chain that has ended, on the data volume.

A child process of low priority draws and writes, one report at a time. The records and the files
alone say which reports are due: after a kill the gateway writes the missing ones. A report that
cannot be written is a warning among the run's events, and harms nothing else.
"""

import asyncio
import shutil
import signal
import sys
import time
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
from redis.exceptions import RedisError, ResponseError

from headrace.config_keys import dataset_names
from recipes import UnknownRecipe, find_recipe
from services.contracts.chains import ChainRecord, viewed
from services.contracts.records import RunRecord, RunSummary
from services.report.job import Job, JobRun
from services.runtime.children import signal_child
from services.runtime.logs import get_logger
from services.store import Store
from services.store.unreadable import is_damage
from services.volume import Volume
from services.volume.run_files import METRICS

log = get_logger(__name__)

LOOK_SECONDS = 15.0
NEWEST = 86_400.0
"""Seconds. A run that ended earlier gets no report by itself."""
MOST_SECONDS = 300.0
"""Timeout of one report."""
CLOCK_DIFFERENCE = 3600.0
"""Seconds by which the clock of another gateway may be behind."""
FRESH_SECONDS = 10.0
"""Seconds for which the report of an unfinished run is kept."""
FOLDER, PAGE = "report", "report.html"


class ReportFailed(RuntimeError):
    """A report cannot be written; the message says why."""


class Reports:
    """Writes reports, one at a time."""

    def __init__(self, store: Store, volume: Volume, prices: str = "") -> None:
        """`prices`: `GatewaySettings.gpu_hour_price`."""
        self._prices = prices
        self._store = store
        self._volume = volume
        self._writing = asyncio.Lock()
        self._settled: set[str] = set()
        """Ids of ended runs and chains whose report was written, tried or is not wanted."""
        self._since = -inf
        """All runs that were submitted earlier are settled."""

    async def keep_writing(self) -> None:
        """Write the reports that are due, every LOOK_SECONDS, until cancelled."""
        while True:
            try:
                await self._write_due()
            except RedisError as error:
                log.debug("reports wait", reason=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def _write_due(self) -> None:
        """Read the runs since the oldest unfinished one, the ids of chains, and the ended chains.
        Write their reports."""
        runs = await self._store.runs.all(self._since)
        for run in reversed(runs):
            if run.finished is not None:
                await self._settle(run)
        going = [run.created for run in runs if run.finished is None]
        newest = max((run.created for run in runs), default=-inf)
        self._since = max(self._since, min([newest - CLOCK_DIFFERENCE, *going]))
        ids, open = await self._store.chains.ids(), set(await self._store.chains.open())
        # A resumed chain is open again.
        self._settled -= open
        for id in ids:
            if id in open or id in self._settled:
                continue
            if (chain := await self._store.chains.get(id)) is not None:
                await self._settle(chain)

    async def _settle(self, ended: RunSummary | ChainRecord) -> None:
        """Write the report of `ended` if it ended recently and no report was tried."""
        recent = (ended.finished or 0.0) > time.time() - NEWEST
        if recent and ended.id not in self._settled:
            await self._try(ended)
        self._settled.add(ended.id)

    async def _try(self, ended: RunSummary | ChainRecord) -> None:
        """Write the report of `ended`. A failure is one warning."""
        try:
            if (record := await self._now(ended)) is not None:
                await self.page_of(record)
        except RedisError:
            raise
        except Exception as error:
            log.warning("no report", of=ended.id, reason=str(error))
            if isinstance(ended, RunSummary):
                words = f"the report was not written: {error}"
                try:
                    await self._store.events.add(ended.id, "warning", {"message": words})
                except ResponseError as wrong:
                    if not is_damage(wrong):
                        raise

    async def page_of(
        self, record: RunRecord | ChainRecord, against: RunRecord | None = None
    ) -> Path | None:
        """Return the page of the report of a run or a chain. Write it if it is missing or old.
        Return None if there is nothing to report. Raise ReportFailed."""
        kind = "chains" if isinstance(record, ChainRecord) else "runs"
        folder = self._volume.path(f"{kind}/{record.id}")
        if not await self._runs_of(record):
            return None
        page = folder / FOLDER / (f"against-{against.id}.html" if against else PAGE)
        ends = [run.finished for run in (record, against) if run is not None]
        async with self._writing:
            if not _stands(page, ends):
                await self._write(record, page, against)
            return page

    async def _write(
        self, record: RunRecord | ChainRecord, page: Path, against: RunRecord | None
    ) -> None:
        """Write a report. Write it again if `record` ended meanwhile, since the page would be newer
        than the end. Remove it if `record` was deleted."""
        folder = page.parents[1]
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            await _draw(await self._job(record, page, against))
            now = await self._now(record)
            if now is None:
                await anyio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))
                return
            if now.finished == record.finished or not await self._runs_of(now):
                return
            record = now

    async def _now(self, ended: RunSummary | ChainRecord) -> RunRecord | ChainRecord | None:
        store = self._store
        of_chain = isinstance(ended, ChainRecord)
        return await (store.chains.get(ended.id) if of_chain else store.runs.get(ended.id))

    async def _job(
        self, record: RunRecord | ChainRecord, page: Path, against: RunRecord | None
    ) -> Job:
        runs, chain = await self._runs_of(record), None
        if isinstance(record, ChainRecord):
            view = viewed(record, {run.id: run for run in runs.values()})
            chain = view.model_dump(mode="json")
        jobs = [await self._run(run, step) for step, run in runs.items()]
        jobs += [await self._run(against, "")] if against else []
        return Job(str(page), jobs, version("headrace"), time.time(), self._prices, chain)

    async def _runs_of(self, record: RunRecord | ChainRecord) -> dict[str, RunRecord]:
        """Return the readable runs of a chain by the names of its steps, or the run itself if it
        has metrics or has failed."""
        runs: list[tuple[str, RunRecord | None]] = []
        if isinstance(record, ChainRecord):
            runs = [(step.name, await self._store.runs.get(step.run)) for step in record.steps]
        elif record.state == "failed" or self._volume.path(f"runs/{record.id}/{METRICS}").is_file():
            runs = [("", record)]
        return {name: run for name, run in runs if run is not None and not run.damage}

    async def _run(self, record: RunRecord, step: str) -> JobRun:
        store = self._store
        named = dataset_names(record.config)
        datasets = {name: await store.datasets.find(name) for name in sorted({*named.values()})}
        dataset = datasets.get(named.get("data.dataset", ""))
        workers = await store.workers.list(record.pool)
        return JobRun(
            files=str(self._volume.path(f"runs/{record.id}")),
            record=record.model_dump(mode="json"),
            dataset=dataset.model_dump(mode="json") if dataset else None,
            workers=[worker.model_dump(mode="json") for worker in workers],
            recipe=_recipe(record.recipe or record.name),
            names={name: dataset.name for name, dataset in datasets.items() if dataset},
            step=step,
        )


def _recipe(name: str) -> dict[str, Any] | None:
    try:
        return find_recipe(name).config
    except UnknownRecipe:
        return None


def _stands(page: Path, ends: list[float | None]) -> bool:
    """Whether the page exists and is newer than the ends of its runs. The page of an unfinished run
    may be FRESH_SECONDS old."""
    try:
        written = page.stat().st_mtime
    except OSError:
        return False
    fresh = time.time() - FRESH_SECONDS
    return all(written >= (fresh if end is None else end) for end in ends)


async def _draw(job: Job) -> None:
    """Write a report in a child process. Raise ReportFailed."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.report"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, output = await asyncio.wait_for(
            child.communicate(msgspec.json.encode(job)), MOST_SECONDS
        )
    except TimeoutError:
        raise ReportFailed(f"drawing took more than {MOST_SECONDS:.0f} s") from None
    finally:
        signal_child(child, signal.SIGKILL)
        await child.wait()
    if child.returncode:
        words = output.decode(errors="replace").strip().splitlines() or [f"code {child.returncode}"]
        raise ReportFailed(words[-1][:500])
