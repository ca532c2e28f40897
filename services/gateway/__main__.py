"""`python -m services.gateway`: the REST API on one port. Exit codes: 0 after a signal, 1 if it
cannot listen, 2 for invalid settings or a Redis that may lose work, or has lost some."""

import asyncio
import signal
import socket
import sys

import uvicorn
from redis.exceptions import RedisError

from services.contracts.schema import SchemaMismatch
from services.gateway.app import create_app
from services.gateway.settings import GatewaySettings
from services.http import server_config
from services.log_shipping import ShippedLogs
from services.recovery.key_copies import revoke_again
from services.recovery.lost_writes import require_complete
from services.runtime import logs
from services.runtime.api_key import BadKeyFile, first_key
from services.runtime.process import die_with_parent, keep_files_private
from services.settings import EXIT_SETTINGS, from_command_line, redacted
from services.store import LostWrites, Store, UnsafeRedis
from services.store.at_start import cannot_use, require_durable


def main() -> int:
    """Listen until told to stop."""
    keep_files_private()
    settings = from_command_line(GatewaySettings)
    logs.configure("gateway", settings.log_level, settings.log_format)
    log = logs.get_logger(__name__)
    try:
        key = first_key(settings)
    except (BadKeyFile, OSError) as error:
        print(f"error: {error}; mend it, or set HEADRACE_API_KEY", file=sys.stderr)
        return EXIT_SETTINGS
    try:
        listener = _listen(settings.host, settings.port)
    except OSError as error:
        print(
            f"error: cannot listen on {settings.host}:{settings.port} ({error.strerror}): stop "
            "what listens there, or choose another port with --port",
            file=sys.stderr,
        )
        return 1
    host, port = listener.getsockname()[:2]
    log.info(
        "gateway listens",
        url=f"http://{host}:{port}",
        redis=redacted(settings.redis_url.get_secret_value()),
        data=str(settings.data.absolute()),
    )
    try:
        asyncio.run(_look_at_redis(settings))
    except (UnsafeRedis, SchemaMismatch, LostWrites) as error:
        listener.close()
        print(f"error: {cannot_use(settings, error)}", file=sys.stderr)
        return EXIT_SETTINGS
    except (RedisError, OSError) as error:
        # It may come: the gateway answers 503 until it does.
        log.warning("starting without Redis", reason=cannot_use(settings, error))
    config = server_config(
        create_app(settings, key),
        access_log=settings.log_level == "debug",
        # Followers of events hold their connection for as long as a run takes.
        timeout_graceful_shutdown=2,
    )
    # uvicorn raises the signal that stopped it once more, which would be the process' end by it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    with listener, ShippedLogs(settings, f"gateway/{socket.gethostname()}"):
        uvicorn.Server(config).run(sockets=[listener])
    return 0


async def _look_at_redis(settings: GatewaySettings) -> None:
    store = Store.from_url(settings.redis_url.get_secret_value())
    try:
        await require_durable(store, settings)
        if flaw := await store.lua_flaw():
            logs.get_logger(__name__).warning("Redis should be updated", reason=flaw)
        await require_complete(store, settings.data, settings.redis_url.get_secret_value())
        for sentence in await revoke_again(store, settings.data):
            logs.get_logger(__name__).warning("Redis has lost a write", reason=sentence)
    finally:
        await store.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main())
