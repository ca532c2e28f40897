"""Run the reward service: listen, start the pool, serve, and drain on SIGTERM.

SIGHUP reloads settings and verifiers: the service drains, then starts again in the same process.
Its supervisor sees no exit, and runs wait a few seconds.

Exit codes: 0 after a drain, 1 if the service cannot start (port in use, a reward model that fails
to load), 2 for wrong flags or variables.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
import uvloop

from reward.app import create_app
from reward.errors import brief
from reward.grading import scorer_in
from reward.metrics import Metrics
from reward.models.process import ModelLoadError, ModelProcess
from reward.recent_logs import RecentLogs
from reward.remote_endpoints import Endpoint
from reward.remote_pool import Calls
from reward.scoring import Service
from reward.settings import RewardSettings
from reward.teachers import Teachers
from reward.uploads import Uploads
from reward.verifiers.base import RemoteVerifier, Verifier
from reward.verifiers.graders.grader_verifier import GraderVerifier
from reward.verifiers.programs.sandboxed import SandboxedCodeVerifier
from reward.verifiers.registry import Registry, build_registry
from reward.verifiers.remote.http_verifier import HttpVerifier
from reward.verifiers.remote.judge import JudgeVerifier
from reward.verifiers.remote.reward_model import ModelVerifier, RemoteModel
from reward.workers.pool import Pool, PoolStartError
from reward.workers.worker_processes import WorkerOptions
from services.http import server_config
from services.runtime.api_key import BadKeyFile, reward_service_key
from services.runtime.log_lines import LogLines
from services.runtime.logs import configure, get_logger
from services.runtime.process import die_with_parent, keep_files_private
from services.settings import EXIT_SETTINGS, from_command_line

log = get_logger("reward")

# How long uvicorn waits for idle or slow connections after the last request has ended.
CONNECTIONS_TIMEOUT = 3
RELOAD = -1
"""Returned instead of an exit code: start again in the same process."""


class RewardServer(uvicorn.Server):
    """uvicorn with other signal handling: the first SIGTERM drains, the second ends the server. A
    SIGTERM during a reload cancels the new start; the drain goes on."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stop = asyncio.Event()
        self.reload = False
        self._ending = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal. uvicorn calls this in the main thread."""
        if self._ending:
            self.should_exit = self.force_exit = True
        self._ending, self.reload = True, False
        self._loop.call_soon_threadsafe(self.stop.set)

    def _on_hangup(self) -> None:
        try:
            from_command_line(RewardSettings)
        except SystemExit:
            log.error("not reloaded: the settings are wrong (see above)")
            return
        if self._ending:
            return
        log.info("reloading")
        self.reload = True
        self.stop.set()


def main() -> int:
    """Run the service. Returns the exit code."""
    # Ignore SIGHUP until its handler is installed. A process that starts again keeps ignoring it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    die_with_parent()
    keep_files_private()
    settings = from_command_line(RewardSettings)
    configure("reward", settings.log_level, settings.log_format)
    try:
        # The socket's file mode decides who may use the service.
        key = None if settings.socket else reward_service_key(settings)
    except (BadKeyFile, OSError) as error:
        sys.stderr.write(f"error: {error}; mend it, or set HEADRACE_REWARD_KEY\n")
        return EXIT_SETTINGS
    try:
        listener = _listen_on(settings.socket) if settings.socket else _listen(settings)
    except OSError as error:
        place = settings.socket or f"{settings.host}:{settings.port}"
        way_out = "another socket with --socket" if settings.socket else "another port with --port"
        sys.stderr.write(
            f"error: cannot listen on {place} ({error.strerror}): stop what listens there, or "
            f"choose {way_out}\n"
        )
        return 1
    with listener:
        code = _run(settings, listener, key)
    if code == RELOAD:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, "-m", "reward", *sys.argv[1:]])
    return code


def _run(settings: RewardSettings, listener: socket.socket, key: str | None) -> int:
    registry = build_registry(settings.verifier_classes, _remote(settings), settings.sandbox)
    for verifier in registry.values():
        if isinstance(verifier, Verifier):
            _probe(verifier)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, listener, registry, key))


async def _serve(
    settings: RewardSettings, listener: socket.socket, registry: Registry, key: str | None
) -> int:
    metrics = Metrics()
    pool = Pool(
        workers=settings.worker_count,
        spare=settings.spare_workers,
        capacity=settings.max_queued_items,
        options=WorkerOptions(
            settings.worker_memory_mb << 20, settings.verifier_classes, settings.sandbox
        ),
        metrics=metrics,
    )
    grader = registry[GraderVerifier.name]
    assert isinstance(grader, GraderVerifier)
    grader.connect(scorer_in(pool), registry[SandboxedCodeVerifier.name])
    calls = Calls(
        [verifier for verifier in registry.values() if isinstance(verifier, RemoteVerifier)],
        at_once=settings.remote_at_once,
        capacity=settings.max_queued_items,
        metrics=metrics,
    )
    teachers = Teachers(settings.teacher_endpoints, settings.remote_at_once)
    service = Service(registry, pool, calls, teachers, metrics)
    # Whoever may connect to a socket without a key must not add code.
    is_allowed = settings.verifier_uploads and key is not None
    uploads = Uploads(settings.data, is_allowed, registry)
    app = create_app(service, settings.body_limit, key, uploads, _recent_logs(key))
    server = RewardServer(
        server_config(
            app,
            access_log=False,
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=CONNECTIONS_TIMEOUT,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(server.stop.wait())
    starting = asyncio.create_task(_start(pool, calls))
    code = 0
    try:
        await asyncio.wait({serving, stopping, starting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            for name, reason in pool.failed.items():
                registry[name].available, registry[name].notice = False, reason
                log.warning("a verifier is not available", verifier=name, problem=reason)
            log.info("reward service ready", url=_url(listener), workers=settings.worker_count)
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            await _drain(service, settings)
            # Answer the requests that still wait before the server ends. Graders wait for the pool.
            await calls.close()
            await pool.close()
            await teachers.close()
    except (PoolStartError, ModelLoadError) as error:
        log.error("reward service cannot start", problem=str(error))
        code = 1
    finally:
        stopping.cancel()
        starting.cancel()
        server.should_exit = True
        await serving
        await calls.close()
        await pool.close()
        await teachers.close()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    log.info("reward service ended")
    return RELOAD if server.reload and code == 0 else code


async def _start(pool: Pool, calls: Calls) -> None:
    await calls.open()
    await pool.start()


def _recent_logs(key: str | None) -> RecentLogs:
    """Keep what this process logs from now on."""
    lines = LogLines(f"reward/{socket.gethostname()}", [key] if key else [])
    logging.getLogger().addHandler(lines)
    return RecentLogs(lines)


def _probe(verifier: Verifier[Any]) -> None:
    try:
        verifier.probe()
    except Exception as error:
        verifier.available, verifier.notice = False, f"its probe() fails: {brief(error)}"
    if not (verifier.available or verifier.lacks_extra):
        log.warning("a verifier is not available", verifier=verifier.name, problem=verifier.notice)
    elif verifier.available and verifier.notice:
        log.info("a verifier is available", verifier=verifier.name, notice=verifier.notice)


def _remote(settings: RewardSettings) -> list[RemoteVerifier[Any]]:
    models = {
        name: RemoteModel(place) if isinstance(place, Endpoint) else ModelProcess(name, place)
        for name, place in settings.model_places.items()
    }
    sandboxed = [SandboxedCodeVerifier(settings.sandbox_socket)] if settings.sandbox_socket else []
    return [
        *sandboxed,
        JudgeVerifier(settings.judge_endpoints),
        GraderVerifier(settings.judge_endpoints, settings.embedding_endpoint),
        ModelVerifier(models),
        *(
            HttpVerifier(endpoint, settings.remote_batch)
            for endpoint in settings.verifier_endpoints
        ),
    ]


async def _drain(service: Service, settings: RewardSettings) -> None:
    """Refuse new requests. Wait for the requests in flight, up to the drain timeout."""
    service.draining = True
    log.info("draining", in_flight=service.in_flight)
    if settings.drain_delay:
        await asyncio.sleep(settings.drain_delay)
    try:
        await asyncio.wait_for(service.idle.wait(), settings.drain_timeout)
    except TimeoutError:
        log.warning("drain timeout: giving up requests in flight", in_flight=service.in_flight)


def _listen_on(path: Path) -> socket.socket:
    """Return a listening Unix socket. Replace the socket file of a killed process."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def _listen(settings: RewardSettings) -> socket.socket:
    """Return a listening socket. A port in use is thus reported by this module and not by
    uvicorn."""
    host, port = settings.host, settings.port
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
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


if __name__ == "__main__":
    sys.exit(main())
