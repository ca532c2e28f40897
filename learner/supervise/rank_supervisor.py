"""Keeps the ranks of a learner on one host running: when a rank dies, all ranks start again.

Restarts have no limit: only `learner.coordinate.crash_limit` decides that a run has crashed too
often. A rank that exits with code 2 or 3 would do so again, so the supervisor exits with the same
code.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from learner.settings import EXIT_CRASH, EXIT_POOL_TAKEN, LearnerSettings
from learner.supervise.rank_processes import RankProcesses
from services.runtime.logs import get_logger
from services.settings import EXIT_SETTINGS

log = get_logger(__name__)

FINAL = (EXIT_SETTINGS, EXIT_POOL_TAKEN)
STABLE_SECONDS = 60.0
"""Ranks that lived at least this long start again at once, others after a pause."""
PAUSE_SECONDS = 0.5
LONGEST_PAUSE = 5.0


def supervise(settings: LearnerSettings, module: Sequence[str]) -> int:
    """Run `python -m MODULE` as this host's ranks until asked to end. Returns the exit code."""
    ranks = settings.count_ranks()
    if ranks == 0:
        sys.stderr.write(
            "error: --ranks gpu (HEADRACE_RANKS): this process sees no GPU; name a number of ranks "
            "to train on CPUs\n"
        )
        return EXIT_SETTINGS
    return asyncio.run(_supervise(settings, ranks, module))


async def _supervise(settings: LearnerSettings, ranks: int, module: Sequence[str]) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return await RankSupervisor(RankProcesses(module, ranks), stop).run()


class RankSupervisor:
    """Supervises the ranks over successive starts. Used once."""

    def __init__(self, ranks: RankProcesses, stop: asyncio.Event) -> None:
        self._ranks, self._stop = ranks, stop

    async def run(self) -> int:
        """Run until asked to end, or until a rank exits with a final code. Returns the exit
        code."""
        starts = young_deaths = 0
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                codes = await self._run_once(starts)
                starts += 1
                if final := [code for code in codes if code in FINAL]:
                    return final[0]
                if self._stop.is_set():
                    crashed = any(code not in (0, -signal.SIGTERM) for code in codes)
                    return EXIT_CRASH if crashed else 0
                is_young = time.monotonic() - began < STABLE_SECONDS
                young_deaths = young_deaths + 1 if is_young else 0
                pause = min(PAUSE_SECONDS * young_deaths, LONGEST_PAUSE)
                log.warning("ranks have ended: all of them start again", codes=codes, pause_s=pause)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), pause)
            return 0
        finally:
            await self._ranks.end()
            await self._ranks.close()

    async def _run_once(self, starts: int) -> list[int]:
        """Start the ranks and wait until one has failed, or all have ended. Return the exit codes
        so far; no rank runs any more."""
        await self._ranks.spawn(starts)
        stop = asyncio.create_task(self._stop.wait())
        is_ending = False
        # Ranks that were asked to end do so together.
        while self._ranks.running and not any(self._ranks.codes):
            waited: list[asyncio.Future[Any]] = list(self._ranks.running)
            await asyncio.wait(
                [*waited, *([] if is_ending else [stop])], return_when="FIRST_COMPLETED"
            )
            if stop.done() and not is_ending:
                self._ranks.terminate()
                is_ending = True
        stop.cancel()
        codes = self._ranks.codes
        await self._ranks.end()
        return codes
