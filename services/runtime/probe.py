"""`python -m services.runtime.probe URL`: a container's health check of its HTTP service.

`unix:PATH` asks `/readyz` over a socket. The exit code is 0 for an answer of 200, otherwise 1, with
the answer on stdout, where `docker inspect` shows it. While the answer's `status` is `loading`, the
probe asks again: a container counts as starting, not as unhealthy, until its check has ended. Only
the standard library: it runs every few seconds.
"""

import http.client
import json
import socket
import sys
import time
from urllib.parse import urlsplit

PATIENCE = 4.0
EVERY = 2.0
"""Seconds between two requests to a service that is loading."""


class Unix(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self._path)


def ask(url: str) -> tuple[int, str]:
    """Return status and body of the answer. Raises OSError, http.client.HTTPException."""
    connection: http.client.HTTPConnection
    if url.startswith("unix:"):
        connection, path = Unix(url.removeprefix("unix:")), "/readyz"
    else:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)
        path = parts.path
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(4096).decode(errors="replace")
    finally:
        connection.close()


def is_loading(status: int, body: str) -> bool:
    """Return whether the answer says that the service is still starting."""
    try:
        return status == 503 and json.loads(body)["status"] == "loading"
    except (ValueError, LookupError, TypeError):
        return False


def main() -> int:
    """Ask until the service has left the status `loading`. Returns the exit code."""
    try:
        while is_loading(*(answer := ask(sys.argv[1]))):
            time.sleep(EVERY)
    except (OSError, http.client.HTTPException) as error:
        print(f"{type(error).__name__}: {error}")
        return 1
    status, body = answer
    print(status, body)
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
