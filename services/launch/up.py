"""`headrace up`: an installation with a display, until a signal ends it."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from services.gateway.settings import GatewaySettings
from services.launch.data_folder import DataFolder
from services.launch.display import Display
from services.launch.options import LaunchError, UpOptions
from services.launch.plan import Plan, exports, make_plan
from services.launch.stack import Planner, Running, live
from services.runtime.api_key import BadKeyFile, first_key, key_file, key_made
from services.runtime.logs import configure
from services.settings import Settings, redacted


def run(options: UpOptions, *, planner: Planner = make_plan) -> int:
    """`headrace up`: run until a signal, or until a part is given up. Returns the exit code.

    0 after an orderly stop (SIGINT, SIGTERM, SIGHUP), 1 if a second signal cut the stop short.
    Raises LaunchError if something could not be started or was given up. From the main thread only.
    """
    settings = Settings()
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

        if (made := make_key(options, running.folder.path)) is not None:
            display.say(made)
        _handle_signals(on_signal)
        display.begin(supervisor.status)

    def ready(running: Running) -> None:
        folder, plan, _ = running
        display.ready(_facts(plan, folder), exports(plan, folder.path, options))

    try:
        await live(options, planner, stop, prepared, ready, display.change)
    finally:
        display.end()
    return 1 if killing else 0


def make_key(options: UpOptions, data: Path) -> str | None:
    """Make the first API key, if the gateway will ask for one and there is none: the gateway would
    print it into its log. Returns what to tell the operator. Raises LaunchError."""
    settings = GatewaySettings(_cli_parse_args=False, host=options.host, data=data)
    if not (options.runs("gateway") and settings.asks_for_key):
        return None
    try:
        key, made = first_key(settings)
    except (BadKeyFile, OSError) as error:
        raise LaunchError(f"{error}; mend it, or set HEADRACE_API_KEY") from None
    return key_made(key, key_file(settings)) if made else None


def _handle_signals(on_signal: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # `nohup headrace up` ignores SIGHUP, and that is to stay so.
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue
        loop.add_signal_handler(number, on_signal, number.name)


def _facts(plan: Plan, folder: DataFolder) -> dict[str, str]:
    return {
        "gateway": f"{plan.gateway_url} (API description: {plan.gateway_url}/docs)",
        "redis": redacted(plan.redis_url),
        "data": str(folder.path),
        "logs": str(folder.path / "logs"),
    }
