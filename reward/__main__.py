"""`python -m reward`: listen, start the pool, serve, and drain on SIGTERM.

Exit codes: 0 after a drain, 1 when it cannot start (port in use, a verifier that cannot be
imported), 2 for flags or variables that make no sense.
"""

import asyncio
import socket
import sys
from types import FrameType

import uvicorn
import uvloop

from reward.app import Service, create_app
from reward.metrics import Metrics
from reward.pool import Pool, PoolStartError
from reward.settings import RewardSettings
from reward.verifiers.registry import Registry, RegistryError, build_registry
from services.logs import configure, get_logger
from services.process import die_with_parent
from services.settings import from_command_line

log = get_logger("reward")

# What uvicorn waits for connections that are idle or slow to read, once nothing is in flight.
CONNECTIONS_TIMEOUT = 3


class Server(uvicorn.Server):
    """uvicorn, with its signal handling replaced: the first signal drains, the second ends."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn's signal handlers, in the main thread."""
        if self.stop.is_set():
            self.should_exit = self.force_exit = True
        self._loop.call_soon_threadsafe(self.stop.set)


def main() -> int:
    """Run the service. Returns the exit code."""
    die_with_parent()
    settings = from_command_line(RewardSettings)
    configure("reward", settings.log_level, settings.log_format)
    try:
        listener = _listen(settings.host, settings.port)
    except OSError as error:
        sys.stderr.write(
            f"error: cannot listen on {settings.host}:{settings.port} ({error.strerror}): stop "
            "what listens there, or choose another port with --port\n"
        )
        return 1
    with listener:
        return _run(settings, listener)


def _run(settings: RewardSettings, listener: socket.socket) -> int:
    try:
        registry = build_registry(settings.verifiers)
    except RegistryError as error:
        log.error("a verifier cannot be used", problem=str(error))
        return 1
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, listener, registry))


async def _serve(settings: RewardSettings, listener: socket.socket, registry: Registry) -> int:
    metrics = Metrics()
    pool = Pool(
        workers=settings.worker_count,
        spare=settings.spare_workers,
        capacity=settings.max_queued_items,
        memory_bytes=settings.worker_memory_mb << 20,
        own_verifiers=settings.verifiers,
        metrics=metrics,
    )
    service = Service(registry, pool, metrics)
    app = create_app(service, settings.body_limit)
    server = Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            log_level="warning",
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=CONNECTIONS_TIMEOUT,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(server.stop.wait())
    starting = asyncio.create_task(pool.start())
    code = 0
    try:
        await asyncio.wait({serving, stopping, starting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            log.info("reward service ready", url=_url(listener), workers=settings.worker_count)
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            await _drain(service, settings)
            # Requests that are still waiting are told so, while there is a server to tell them.
            await pool.close()
    except PoolStartError as error:
        log.error("reward service cannot start", problem=str(error))
        code = 1
    finally:
        stopping.cancel()
        starting.cancel()
        server.should_exit = True
        await serving
        await pool.close()
    log.info("reward service ended")
    return code


async def _drain(service: Service, settings: RewardSettings) -> None:
    """Take nothing new; wait for what is in flight, up to the drain timeout."""
    service.draining = True
    log.info("draining", in_flight=service.in_flight)
    if settings.drain_delay:
        await asyncio.sleep(settings.drain_delay)
    try:
        await asyncio.wait_for(service.idle.wait(), settings.drain_timeout)
    except TimeoutError:
        log.warning("drain timeout: giving up requests in flight", in_flight=service.in_flight)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a port in use is an error of ours and not of the framework."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


if __name__ == "__main__":
    sys.exit(main())
