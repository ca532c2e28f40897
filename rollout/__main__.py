"""`python -m rollout`: one worker with its own vLLM. Exit codes: 0 after SIGTERM or SIGINT (every
lease given back), 2 for flags or variables that make no sense."""

import asyncio
import signal
import sys

import uvloop
from pydantic import ValidationError
from pydantic_settings import CliApp

from rollout.settings import RolloutSettings
from rollout.supervisor import Supervisor
from services import logs
from services.process import die_with_parent
from services.settings import redacted
from services.store import Store


def main() -> int:
    """Run until told to stop. Returns the exit code."""
    try:
        settings = CliApp.run(RolloutSettings)
    except ValidationError as error:
        for detail in error.errors():
            name = "--" + "-".join(str(part) for part in detail["loc"]).replace("_", "-")
            print(f"error: {name}: {detail['msg']}", file=sys.stderr)
        return 2
    logs.configure("rollout", settings.log_level, settings.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))
    return 0


async def _serve(settings: RolloutSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    store = Store.from_url(settings.redis_url.get_secret_value())
    supervisor = Supervisor(settings, store)
    logs.get_logger(__name__).info(
        "rollout worker starts",
        worker=supervisor.record.id,
        pool=settings.pool,
        redis=redacted(settings.redis_url.get_secret_value()),
    )
    try:
        await supervisor.serve(stop)
    finally:
        await store.close()


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main())
