"""A real HTTP server that answers as a test says: a judge, a reward model, an own verifier, an
environment."""

import contextlib
import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]
"""Status, and the body: bytes as they are, anything else as JSON."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Hundreds of groups may be scored at once; connections beyond 5 would wait for seconds.
    request_queue_size = 1024


class Upstream:
    """Keeps what it was asked. `answer` gets path and body; it may be replaced at any time."""

    def __init__(self, answer: Callable[[str, Any], Answer]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Any, str | None]] = []
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                upstream.asked.append((self.path, body, self.headers["authorization"]))
                self._reply(*upstream.answer(self.path, body))

            def _reply(self, status: int, content: Any) -> None:
                raw = content if isinstance(content, bytes) else json.dumps(content).encode()
                # Who asked may have given up by now.
                with contextlib.suppress(ConnectionError):
                    self.send_response(status)
                    self.send_header("content-length", str(len(raw)))
                    if status == HTTPStatus.TEMPORARY_REDIRECT:
                        self.send_header("location", "http://127.0.0.1:1")
                    self.end_headers()
                    self.wfile.write(raw)

            def do_GET(self) -> None:
                upstream.asked.append((self.path, None, None))
                self._reply(*upstream.answer(self.path, None))

            def log_message(self, *args: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
