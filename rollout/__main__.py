"""`python -m rollout`: one worker with its own vLLM.

Exit codes: 0 after SIGTERM or SIGINT (all leases are released); 2 for wrong settings, an unusable
Redis or no free GPU.
"""

import asyncio
import os
import signal
import sys

import uvloop
from redis.exceptions import RedisError
from structlog.contextvars import bind_contextvars

from rollout.settings import RolloutSettings
from rollout.vllm.process.gpu_lock import GPUsTaken, take_gpus
from rollout.vllm.process.log_follower import pass_on_to
from rollout.worker_supervisor import WorkerSupervisor
from services.contracts.schema import SchemaMismatch
from services.log_shipping import ShippedLogs
from services.runtime.gpus import SHARED_MEMORY, GPUsUnknown
from services.runtime.logs import configure, get_logger
from services.runtime.process import die_with_parent, keep_files_private
from services.settings import EXIT_SETTINGS, from_command_line, redacted
from services.store import Store, UnsafeRedis
from services.store.at_start import cannot_use, require_durable

log = get_logger(__name__)


def main() -> int:
    settings = from_command_line(RolloutSettings)
    configure("rollout", settings.log_level, settings.log_format)
    try:
        # Held until this process ends.
        gpus = take_gpus(settings)
    except (GPUsTaken, GPUsUnknown) as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_SETTINGS
    os.environ.update(gpus.environment)
    if gpus.shared and settings.vllm_gpu_memory_utilization is None:
        settings.vllm_gpu_memory_utilization = SHARED_MEMORY
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings))


async def _serve(settings: RolloutSettings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    store = Store.from_url(settings.redis_url.get_secret_value())
    supervisor = WorkerSupervisor(settings, store)
    bind_contextvars(worker=supervisor.record.id)
    with ShippedLogs(settings, f"rollout/{supervisor.record.id}", settings.pool) as logs:
        pass_on_to(logs.lines)
        return await _work(settings, store, supervisor, stop)


async def _work(
    settings: RolloutSettings, store: Store, supervisor: WorkerSupervisor, stop: asyncio.Event
) -> int:
    try:
        await require_durable(store, settings)
    except (UnsafeRedis, SchemaMismatch, RedisError, OSError) as error:
        await store.close()
        sys.stderr.write(f"error: {cannot_use(settings, error)}\n")
        return EXIT_SETTINGS
    log.info(
        "rollout worker starts",
        pool=settings.pool,
        redis=redacted(settings.redis_url.get_secret_value()),
    )
    try:
        await supervisor.serve(stop)
    finally:
        await store.close()
    return 0


if __name__ == "__main__":
    die_with_parent()
    keep_files_private()
    sys.exit(main())
