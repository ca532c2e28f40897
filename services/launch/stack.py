"""An installation on this machine, from start to end; `Stack` is one for programs and tests.

It ends everything it started, whichever way it is left. Killed with SIGKILL it cannot, and
the kernel does it (see `services.runtime.process`).
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from services.launch.control import Say, ask, control
from services.launch.data_folder import DataFolder, holder_of
from services.launch.external_redis import check_external_redis
from services.launch.options import LaunchError, UpOptions
from services.launch.part import Status
from services.launch.parts_supervisor import Supervisor
from services.launch.plan import Plan, make_keys, make_plan
from services.launch.scaling import Scaling
from services.launch.supervised_part import Rules
from services.launch.unreadable_redis import explained
from services.runtime.api_key import first_key
from services.runtime.process import kill_marked
from services.settings import Settings

Planner = Callable[[UpOptions, Path], Plan]


class Running(NamedTuple):
    folder: DataFolder
    plan: Plan
    supervisor: Supervisor


async def live(
    options: UpOptions,
    planner: Planner,
    stop: asyncio.Event,
    prepared: Callable[[Running], None],
    ready: Callable[[Running], None],
    watch: Callable[[Status], None],
) -> None:
    """Run one installation until `stop` ends it. `prepared` is called before anything is started,
    `ready` when everything is ready. Raises LaunchError if a part does not start or was given up,
    after all other parts have ended."""
    with DataFolder(options.data) as folder:
        if options.redis_url is not None:
            await check_external_redis(options, options.redis_url)
        plan = planner(options, folder.path)
        rules = Rules(
            marker=folder.marker,
            grace=options.grace,
            start_tries=options.start_tries,
            watch=watch,
        )
        supervisor = Supervisor(plan.parts, folder.path / "logs", rules)
        scaling = Scaling(options, plan, supervisor)

        async def answer(request: dict[str, Any], say: Say) -> dict[str, Any]:
            """{"redis": true} is answered with its URL, {"scale": ...} by scaling."""
            if request.get("redis"):
                return {"redis": plan.redis_url}
            return await scaling.answer(request, say)

        running = Running(folder, plan, supervisor)
        make_keys(options, folder.path)
        prepared(running)
        stopped = asyncio.ensure_future(stop.wait())
        try:
            with explained(folder.path):
                started = await _unless(stopped, supervisor.start())
            if started:
                async with control(folder.instance, answer):
                    ready(running)
                    await _unless(stopped, supervisor.failed())
        finally:
            stopped.cancel()
            await supervisor.stop()


async def _unless(stopped: asyncio.Future[Any], work: Coroutine[Any, Any, None]) -> bool:
    """Wait for `work` or `stopped`. Return whether `work` ended first; if not, it is cancelled.
    Raises the error of `work`."""
    doing = asyncio.ensure_future(work)
    await asyncio.wait({doing, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if doing.done():
        doing.result()
        return True
    doing.cancel()
    await asyncio.wait({doing})
    return False


@contextmanager
def redis_of(data: Path) -> Iterator[str]:
    """Yield the URL of a data folder's Redis: the Redis of the `headrace up` that holds the folder,
    else a Redis that runs while the context lasts. Raises LaunchError."""
    if holder_of(data) is not None:
        yield str(ask(data, {"redis": True}, lambda text: None)["redis"])
        return
    with Stack(UpOptions(data=data, parts=frozenset({"redis"}))) as stack:
        yield stack.redis_url


class Stack:
    """The same installation inside `with`: ready on enter, gone on exit.

    Runs in a thread of its own, so that the caller may block. LaunchError on enter if a part does
    not come up; afterwards, `check` says whether one was given up.
    """

    def __init__(self, options: UpOptions, *, planner: Planner = make_plan) -> None:
        self.options = options
        self.data = options.data.resolve()
        self._planner = planner
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._running: Running | None = None
        self._settled = threading.Event()
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._serve, name="headrace stack", daemon=True)
        self._thread.start()
        try:
            self._settled.wait()
            self.check()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def api_key(self) -> str:
        """The first key of the gateway."""
        return first_key(Settings(data=self.data))

    @property
    def gateway_url(self) -> str:
        return self._started().plan.gateway_url

    @property
    def reward_url(self) -> str:
        return self._started().plan.reward_url

    @property
    def redis_url(self) -> str:
        return self._started().plan.redis_url

    @property
    def processes(self) -> dict[str, int]:
        """The pid of each running part, without its descendants."""
        return self._running.supervisor.pids if self._running is not None else {}

    @property
    def marker(self) -> dict[str, str]:
        """The environment by which `process.marked` finds all processes of this stack."""
        return self._running.folder.marker if self._running is not None else {}

    def status(self, part: str) -> Status:
        """Return the current state, pid and restarts of the part."""
        return self._started().supervisor.status[part]

    def log(self, part: str) -> Path:
        """Return the path of the part's log."""
        return self.data / "logs" / f"{part}.log"

    def check(self) -> None:
        """Raise LaunchError if a part was given up, or if the stack has ended with another
        error."""
        if self._running is not None and (failure := self._running.supervisor.failure):
            with explained(self.data):
                raise LaunchError(failure)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End everything, in order; at once on a KeyboardInterrupt, which is raised again."""
        if self._thread is None:
            return
        try:
            if self._loop is not None and self._stop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        except KeyboardInterrupt:
            if self.marker:
                kill_marked(self.marker)
            self._thread.join()
            raise

    def _started(self) -> Running:
        if self._running is None:
            raise LaunchError("the stack has not been started")
        return self._running

    def _serve(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            self._error = error
        finally:
            self._settled.set()

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()

        def prepared(running: Running) -> None:
            self._running = running

        def ready(running: Running) -> None:
            self._settled.set()

        await live(
            self.options, self._planner, self._stop, prepared, ready, watch=lambda status: None
        )
