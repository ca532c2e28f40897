"""`python -m services.runtime.probe URL`: a container's health check of an HTTP service in it.

`unix:PATH` asks `/readyz` over a socket. Exit code 0 for an answer of 200; else 1, with the answer
on stdout, where `docker inspect` shows it. While the answer's `status` is `loading`, it asks again:
a container whose check has not ended is still starting, and is not unhealthy. Only the standard
library: it runs every few seconds.
"""

import http.client
import json
import socket
import sys
import time
from urllib.parse import urlsplit

PATIENCE = 4.0
EVERY = 2.0
"""Seconds between two questions to a service that is loading."""


class Unix(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self._path)


def ask(url: str) -> tuple[int, str]:
    """Status and body of the answer. Raises OSError, http.client.HTTPException."""
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
    """Whether the answer says that the service is at work on its start."""
    try:
        return status == 503 and json.loads(body)["status"] == "loading"
    except (ValueError, LookupError, TypeError):
        return False


def main() -> int:
    """Ask until the service does not say that it is loading. Returns the exit code."""
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
