"""A small HTTP server, and a session of the OpenAI API that it may be."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]


@contextmanager
def serving(answer: Callable[[str, Any], Answer]) -> Iterator[str]:
    """The address of a server that answers `answer(path, body)`: a status, and JSON or text."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            status, said = answer(self.path, json.loads(self.rfile.read(length)))
            content = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            if status == 307:
                self.send_header("Location", "http://127.0.0.1:1/step")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Policy:
    """A session whose answers are given."""

    def __init__(self, *answers: str | Answer) -> None:
        self.answers = list(answers)
        self.asked: list[list[dict[str, Any]]] = []

    def __call__(self, path: str, body: Any) -> Answer:
        assert path == "/v1/chat/completions"
        self.asked.append(body["messages"])
        said = self.answers.pop(0)
        if not isinstance(said, str):
            return said
        message = {"role": "assistant", "content": said}
        return 200, {"choices": [{"message": message}]}


GROUP: dict[str, Any] = {"prompt": "Count.", "answer": "3", "columns": {}, "row": 7, "task": 12}


def session(url: str) -> dict[str, Any]:
    return {"id": "run-attempt-0", "base_url": f"{url}/v1", "key": "hs-1"}
