"""Runs `headrace up`: an installation with a display, until a signal ends it."""

import asyncio
import signal
from collections.abc import Callable

import httpx

from services.launch.data_folder import DataFolder
from services.launch.display import Display
from services.launch.options import UpOptions
from services.launch.plan import Plan, exports, make_plan
from services.launch.stack import Planner, Running, live
from services.runtime.api_key import API_KEY, BadKeyFile, authorization, first_key
from services.runtime.logs import configure
from services.runtime.process import keep_files_private
from services.settings import Settings, redacted


def run(options: UpOptions, *, planner: Planner = make_plan) -> int:
    """`headrace up`: run until a signal, or until a part is given up. Returns the exit code.

    0 after an orderly stop (SIGINT, SIGTERM, SIGHUP), 1 if a second signal cut the stop short.
    Raises LaunchError if something could not be started or was given up. From the main thread only.
    """
    settings = Settings()
    keep_files_private()
    configure("up", settings.log_level, settings.log_format)
    return asyncio.run(_run(options, planner))


async def _run(options: UpOptions, planner: Planner) -> int:
    display = Display()
    stop = asyncio.Event()
    killing: set[asyncio.Task[None]] = set()

    def prepared(running: Running) -> None:
        supervisor = running.supervisor

        def on_signal(name: str) -> None:
            if stop.is_set():
                killing.add(asyncio.ensure_future(supervisor.kill()))
                return
            stop.set()
            display.say(f"{name}: stopping, workers first; a second one kills")

        _handle_signals(on_signal)
        display.begin(supervisor.status)

    def ready(running: Running) -> None:
        folder, plan, _ = running
        facts = _page(plan, folder, display.on_terminal) if options.runs("gateway") else {}
        display.ready(facts | _facts(plan, folder), exports(plan, folder.path, options))

    try:
        await live(options, planner, stop, prepared, ready, display.change)
    finally:
        display.end()
    return 1 if killing else 0


def _handle_signals(on_signal: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # `nohup headrace up` ignores SIGHUP, and that is to stay so.
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue
        loop.add_signal_handler(number, on_signal, number.name)


def _page(plan: Plan, folder: DataFolder, on_terminal: bool) -> dict[str, str]:
    """Return a link that logs in. Return the page's address if Redis has gone away again, or if the
    output is a file: another reader of a log could use the link first."""
    url = plan.gateway_url
    if not on_terminal:
        return {"page": f"{url} (`headrace keys link` prints a link that logs in)"}
    try:
        shown = authorization(first_key(Settings(data=folder.path)))
        # No proxy of the environment gets the key.
        asked = httpx.post(f"{url}/v1/login", headers=shown, timeout=10, trust_env=False)
        token = asked.raise_for_status().json()["token"]
    except (httpx.HTTPError, BadKeyFile, OSError):
        return {"page": url}
    return {"page": f"{url}/#login={token} (works once; `headrace keys link` prints another)"}


def _facts(plan: Plan, folder: DataFolder) -> dict[str, str]:
    return {
        "guide": f"{plan.gateway_url}/guide",
        "gateway": f"{plan.gateway_url} (API description: {plan.gateway_url}/docs)",
        "API key": str(folder.path / API_KEY),
        "redis": redacted(plan.redis_url),
        "data": str(folder.path),
        "logs": str(folder.path / "logs"),
    }
