"""`python -m services.gateway`: the REST API on one port. Exit code 0 after a signal, 1 where it
cannot start."""

import socket
import sys

import uvicorn
from pydantic import ValidationError
from pydantic_settings import CliApp

from services import logs
from services.gateway.app import create_app
from services.gateway.settings import GatewaySettings
from services.process import die_with_parent
from services.settings import redacted


def main() -> int:
    """Listen until told to stop."""
    try:
        settings = CliApp.run(GatewaySettings)
    except ValidationError as error:
        for detail in error.errors():
            name = "--" + "-".join(str(part) for part in detail["loc"]).replace("_", "-")
            print(f"error: {name}: {detail['msg']}", file=sys.stderr)
        return 2
    logs.configure("gateway", settings.log_level, settings.log_format)
    log = logs.get_logger(__name__)
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
    config = uvicorn.Config(
        create_app(settings),
        log_config=None,
        access_log=settings.log_level == "debug",
        # Followers of events hold their connection for as long as a run takes.
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    with listener:
        uvicorn.Server(config).run(sockets=[listener])
    return 0


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
