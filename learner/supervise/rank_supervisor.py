"""Keeps the ranks of one host running: when a rank dies on any node, all ranks start again.

Restarts have no limit: only `learner.coordinate.crash_limit` decides that a run has crashed too
often. A rank that exits with code 2 or 3 would do so again, so the supervisor exits with the same
code.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from learner.settings import EXIT_CRASH, EXIT_POOL_TAKEN, LearnerSettings
from learner.supervise.one_node import Nodes, OneNode, RankStart
from learner.supervise.rank_processes import RankProcesses
from services.runtime.logs import get_logger
from services.settings import EXIT_SETTINGS

log = get_logger(__name__)

FINAL = (EXIT_SETTINGS, EXIT_POOL_TAKEN)
EVERY_SECONDS = 1.0
"""Seconds between two checks of the nodes' agreement."""
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
    if settings.learner_nodes == 1:
        return await RankSupervisor(OneNode(ranks), module, stop).run()
    # A learner of one node does not need to import the store.
    from learner.supervise.several_nodes import joined

    async with joined(settings, ranks) as nodes:
        return await RankSupervisor(nodes, module, stop).run()


class RankSupervisor:
    """Supervises the ranks of one host over successive starts. Used once."""

    def __init__(self, nodes: Nodes, module: Sequence[str], stop: asyncio.Event) -> None:
        self._nodes = nodes
        self._ranks = RankProcesses(module)
        self._stop = stop
        self._start: RankStart | None = None
        """The start whose ranks run now."""
        self._ended = ""
        self._starts = 0
        self._young_deaths = 0
        self._began = self._not_before = 0.0

    async def run(self) -> int:
        """Run until asked to end, or until a rank exits with a final code. Returns the exit
        code."""
        is_ending = False
        try:
            while True:
                if self._stop.is_set() and self._start is None:
                    return 0
                await self._follow()
                if self._start is not None and self._stop.is_set() and not is_ending:
                    self._ranks.terminate()
                    is_ending = True
                await self._wait(is_ending)
                if (code := await self._look()) is not None:
                    return code
        finally:
            if self._start is not None:
                await self._ranks.end()
            await self._ranks.close()
            await self._nodes.leave()

    async def _follow(self) -> None:
        """Run exactly the start that the nodes agree on."""
        start = await self._nodes.agree(self._start, self._ended)
        if self._start is not None and (start is None or start.id != self._start.id):
            log.warning("the ranks of another node have ended: those of this node start again")
            await self._end_ranks()
            return
        ready = time.monotonic() >= self._not_before and not self._stop.is_set()
        if self._start is None and start is not None and ready:
            self._start, self._began = start, time.monotonic()
            await self._ranks.spawn(start, self._starts)
            self._starts += 1

    async def _wait(self, is_ending: bool) -> None:
        """Wait until a rank ends or a stop is requested, for EVERY_SECONDS at most."""
        stop = asyncio.create_task(self._stop.wait())
        events: list[asyncio.Future[Any]] = [*self._ranks.running, *([] if is_ending else [stop])]
        if events:
            await asyncio.wait(events, timeout=EVERY_SECONDS, return_when="FIRST_COMPLETED")
        stop.cancel()

    async def _look(self) -> int | None:
        """Handle ranks that have ended. Return an exit code if the supervisor should exit."""
        codes = self._ranks.codes
        if self._start is None or not codes:
            return None
        if not any(codes) and self._ranks.running:
            # Ranks that were asked to end do so together.
            return None
        final = [code for code in codes if code in FINAL]
        await self._end_ranks()
        if final:
            return final[0]
        if self._stop.is_set():
            return EXIT_CRASH if any(code not in (0, -signal.SIGTERM) for code in codes) else 0
        young = time.monotonic() - self._began < STABLE_SECONDS
        self._young_deaths = self._young_deaths + 1 if young else 0
        pause = min(PAUSE_SECONDS * self._young_deaths, LONGEST_PAUSE)
        self._not_before = time.monotonic() + pause
        log.warning("ranks have ended: all of them start again", codes=codes, pause_s=pause)
        return None

    async def _end_ranks(self) -> None:
        assert self._start is not None
        self._ended = self._start.id
        # Meanwhile other nodes end their ranks.
        await self._nodes.agree(self._start, self._ended)
        await self._ranks.end()
        self._start = None
